"""The examples on the filters page run and do what it says, and its figures match the committed list."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest

from airport.filters.building import column, compare, constant, text
from airport.filters.recorded import HERE
from skiway.airport import filters

PAGE = (HERE.parents[2] / "docs" / "filters.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def run(example: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile(example, "docs/filters.md", "exec"), names)
    return names


def scan_for(name: str, of: str, value: Any) -> SimpleNamespace:
    sent = text(compare(column(0, of), "EQUAL", constant(of, value)), names=(name,))
    return SimpleNamespace(filter=filters.parse(sent))


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_every_example_runs(example: str) -> None:
    run(example)


def example_with(needle: str) -> dict[str, Any]:
    (found,) = [example for example in EXAMPLES if needle in example]
    return run(found)


def test_the_example_with_arrow_filters() -> None:
    people = example_with("def people(scan)")["people"]
    assert people(scan_for("id", "BIGINT", 2))["name"].to_pylist() == ["Grace"]
    assert people(SimpleNamespace(filter=filters.Filter())).num_rows == 3


def test_the_example_with_duckdb_filters_by_renamed_and_computed_columns() -> None:
    users = example_with("def users(scan)")["users"]
    assert users(SimpleNamespace(filter=filters.Filter())).fetchall() == [(7, "Ada Lovelace")]
    assert users(scan_for("full_name", "VARCHAR", "Ada Lovelace")).fetchall() == [(7, "Ada Lovelace")]
    assert users(scan_for("user_id", "INTEGER", 8)).fetchall() == []
    assert users(scan_for("rowid", "BIGINT", 99)).fetchall() == [(7, "Ada Lovelace")]


def test_the_example_with_sqlite() -> None:
    items = example_with("def items(scan)")["items"]
    assert items(scan_for("title", "VARCHAR", "cake")) == [{"id": 2, "title": "cake", "price": 4.0}]
    assert len(items(SimpleNamespace(filter=filters.Filter()))) == 2


def test_the_figures_are_those_of_the_committed_list() -> None:
    supported = json.loads((HERE / "kept.json").read_text()).values()
    for encoders in (("sql", "arrow", "iceberg"), ("postgres", "sqlite", "generic")):
        figures = " | ".join(f"{sum(each[encoder] for each in supported)} of {len(supported)}" for encoder in encoders)
        assert f"| of the predicates recorded from a client | {figures} |" in PAGE
