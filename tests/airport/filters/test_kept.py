"""The committed list of what each encoder keeps: nothing may silently be said no more, nor silently be said anew."""

from __future__ import annotations

import json

import pytest
from pyiceberg.expressions import AlwaysTrue

from airport.filters.recorded import HERE, WITH_FILTER
from skiway.airport import filters
from skiway.formats.iceberg.filters import to_iceberg

KEPT = json.loads((HERE / "kept.json").read_text())
FLOORS = {"sql": 0.90, "arrow": 0.60, "iceberg": 0.40}


def said(parsed: filters.Filter) -> dict[str, bool]:
    return {
        "sql": filters.to_sql(parsed) is not None,
        "arrow": filters.to_arrow(parsed) is not None,
        "iceberg": to_iceberg(parsed) != AlwaysTrue(),
    }


def test_each_encoder_keeps_the_predicates_it_must() -> None:
    assert {each.predicate: said(each.filter) for each in WITH_FILTER} == KEPT


@pytest.mark.parametrize("encoder", FLOORS)
def test_each_encoder_keeps_enough_of_what_is_sent(encoder: str) -> None:
    kept = sum(each[encoder] for each in KEPT.values())
    assert kept / len(KEPT) >= FLOORS[encoder]
