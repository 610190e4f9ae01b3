"""The committed list of the predicates that each encoder supports: none may be added or lost silently."""

from __future__ import annotations

import json

import pytest
from pyiceberg.expressions import AlwaysTrue

from airport.filters.recorded import HERE, WITH_FILTER
from skiway.airport import filters
from skiway.formats.iceberg.planning.filters import to_iceberg

KEPT = json.loads((HERE / "kept.json").read_text())
FLOORS = {"sql": 0.90, "arrow": 0.60, "iceberg": 0.40, "postgres": 0.60, "sqlite": 0.40, "generic": 0.35}


def supported(parsed: filters.Filter) -> dict[str, bool]:
    return {
        "sql": filters.to_sql(parsed) is not None,
        "arrow": filters.to_arrow(parsed) is not None,
        "iceberg": to_iceberg(parsed) != AlwaysTrue(),
        "postgres": filters.to_sql(parsed, dialect="postgres") is not None,
        "sqlite": filters.to_sql(parsed, dialect="sqlite") is not None,
        "generic": filters.to_sql(parsed, dialect="generic") is not None,
    }


def test_each_encoder_supports_the_committed_predicates() -> None:
    assert {each.predicate: supported(each.filter) for each in WITH_FILTER} == KEPT


@pytest.mark.parametrize("encoder", FLOORS)
def test_each_encoder_supports_enough_of_the_recorded_predicates(encoder: str) -> None:
    supported_count = sum(each[encoder] for each in KEPT.values())
    assert supported_count / len(KEPT) >= FLOORS[encoder]
