"""Filters in the JSON of the REST specification prune the same files as PyIceberg does with its own expressions."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNull,
    NotStartsWith,
    Or,
    StartsWith,
)

from formats.managed import LooseTable
from skiway.errors import InvalidArgument, LimitExceeded
from skiway.formats.iceberg.planning.expressions import MAX_CONDITIONS, filter_in

NAN = float("nan")
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "small": pa.int32(),
        "name": pa.string(),
        "price": pa.decimal128(9, 2),
        "ratio": pa.float64(),
        "day": pa.date32(),
        "at": pa.timestamp("us"),
        "ok": pa.bool_(),
        "part": pa.struct({"x": pa.int64()}),
    }
)
DAY, AT = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)


def batch(start: int, **changed: Any) -> pa.Table:
    numbers = range(start, start + 10)
    rows: dict[str, Any] = {
        "id": list(numbers),
        "small": list(numbers),
        "name": [f"n{number:03d}" for number in numbers],
        "price": [Decimal(number) for number in numbers],
        "ratio": [float(number) for number in numbers],
        "day": [DAY + dt.timedelta(number) for number in numbers],
        "at": [AT + dt.timedelta(number) for number in numbers],
        "ok": [start == 0] * 10,
        "part": [{"x": number} for number in numbers],
    }
    return pa.table({**rows, **changed}, SCHEMA)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> LooseTable:
    made = LooseTable(tmp_path_factory.mktemp("table"), SCHEMA)
    for start in (0, 100, 200):
        made.append(batch(start))
    made.append(batch(300, name=[None] * 10, ratio=[NAN] * 10))
    return made


def planned(table: LooseTable, expression: Any, **options: Any) -> list[int]:
    """The smallest id of each planned file."""
    handle = table.handle
    current = handle.current()
    assert current is not None
    found = handle.plan(current, filter_in(expression, table.metadata.schema(), **options))
    return sorted(
        handle.read(current, files=found.slice(each, 1), columns=["id"]).read_all()["id"][0].as_py()
        for each in range(found.num_rows)
    )


def planned_by_pyiceberg(table: LooseTable, expression: BooleanExpression) -> list[int]:
    files = [each.file for each in table.peer.scan(row_filter=expression).plan_files()]
    number = table.metadata.schema().find_field("id").field_id
    return sorted(int.from_bytes(each.lower_bounds[number], "little") for each in files)


@pytest.mark.parametrize(
    "expression",
    [
        EqualTo("id", 105),
        EqualTo("small", 105),
        NotEqualTo("id", 105),
        NotEqualTo("ok", True),
        LessThan("id", 100),
        LessThanOrEqual("id", 100),
        GreaterThan("price", Decimal("109.00")),
        GreaterThanOrEqual("price", Decimal("209.00")),
        GreaterThanOrEqual("ratio", 205.0),
        LessThan("day", "2026-01-03"),
        GreaterThan("at", "2026-07-01T00:00:00"),
        In("id", {1, 205}),
        In("name", {"n001", "n205", "zzz"}),
        NotIn("id", {1, 2}),
        StartsWith("name", "n10"),
        NotStartsWith("name", "n10"),
        IsNull("name"),
        NotNull("name"),
        IsNaN("ratio"),
        EqualTo("ok", True),
        And(GreaterThan("id", 50), LessThan("id", 150)),
        Or(LessThan("id", 5), GreaterThan("id", 305)),
        Not(Or(LessThan("id", 100), GreaterThan("id", 250))),
        Not(And(NotNull("name"), GreaterThan("id", 50))),
        EqualTo("part.x", 5),
        EqualTo("id", 2**40),
    ],
    ids=str,
)
def test_no_file_is_lost_and_pruning_is_as_good_as_pyicebergs(table: LooseTable, expression: BooleanExpression) -> None:
    own = planned(table, json.loads(expression.model_dump_json()))
    matching = table.peer.scan(row_filter=expression).to_arrow()["id"].to_pylist()
    assert set(own) >= {number // 100 * 100 for number in matching}, "a file with matching rows is missing"
    # Our planner does not prune by these conditions, and keeps files with NaN, which is greater than all numbers.
    others = ("part.x", "NotIn", "IsNaN", "NotStartsWith", "ratio")
    assert set(own) <= set(planned_by_pyiceberg(table, expression)) or any(each in str(expression) for each in others)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (True, [0, 100, 200, 300]),
        (False, []),
        ({"type": "true"}, [0, 100, 200, 300]),
        ({"type": "false"}, []),
        ({"type": False}, []),
        ({"type": "eq", "left": {"type": "reference", "name": "id"}, "right": 105}, [100]),
        ({"type": "eq", "left": {"type": "reference", "id": 1}, "right": {"type": "literal", "value": 105}}, [100]),
        ({"type": "lt", "left": 105, "right": {"type": "reference", "name": "id"}}, [100, 200, 300]),
        ({"type": "is-null", "child": {"type": "reference", "name": "name"}}, [300]),
        ({"type": "in", "child": {"type": "reference", "name": "id"}, "values": [1, 205]}, [0, 200]),
        (
            {"type": "in", "term": "id", "values": {"type": "literals", "values": [1], "data-type": "long"}},
            [0],
        ),
        ({"type": "not", "child": {"type": "gt", "term": "id", "value": 9}}, [0]),
        # Nothing is known about functions, also if they are negated.
        (
            {"type": "eq", "term": {"type": "transform", "transform": "bucket[4]", "term": "id"}, "value": 1},
            [0, 100, 200, 300],
        ),
        ({"type": "not", "child": {"type": "eq", "term": "_file", "value": "x"}}, [0, 100, 200, 300]),
        (
            {
                "type": "not",
                "child": {"type": "is-null", "child": {"type": "apply", "function": "f", "arguments": []}},
            },
            [0, 100, 200, 300],
        ),
        (
            {
                "type": "eq",
                "left": {"type": "reference", "name": "id"},
                "right": {"type": "reference", "name": "small"},
            },
            [0, 100, 200, 300],
        ),
    ],
)
def test_forms_of_the_specification(table: LooseTable, expression: Any, expected: list[int]) -> None:
    assert planned(table, expression) == expected


def test_names_may_ignore_case(table: LooseTable) -> None:
    expression = {"type": "eq", "term": "ID", "value": 105}
    assert planned(table, expression, case_sensitive=False) == [100]
    with pytest.raises(InvalidArgument, match="ID"):
        planned(table, expression)


@pytest.mark.parametrize(
    "expression",
    [
        None,
        1,
        [],
        {},
        {"type": "maybe"},
        {"type": "and", "left": True},
        {"type": "not"},
        {"type": "eq", "term": "nothing", "value": 1},
        {"type": "eq", "term": "id", "value": "x"},
        {"type": "eq", "term": "id", "value": [1]},
        {"type": "eq", "term": "id", "value": {"type": "literal", "value": None}},
        {"type": "in", "term": "id", "values": 1},
        {"type": "in", "term": "id"},
        {"type": "is-null", "term": 7},
        {"type": "is-null", "child": {"type": "reference", "id": 77}},
        {"type": "eq", "term": "part", "value": 1},
        {"type": "starts-with", "term": "id", "value": "x"},
        {"type": "eq", "term": "day", "value": "yesterday"},
    ],
)
def test_invalid_expressions_are_rejected(table: LooseTable, expression: Any) -> None:
    with pytest.raises(InvalidArgument) as caught:
        planned(table, expression)
    assert caught.value.key == "filter.invalid"


def test_long_lists_are_planned_by_their_range(table: LooseTable) -> None:
    ids = [*range(100, 110), *range(110, 200)]
    among = {"type": "in", "term": "id", "values": ids}
    assert planned(table, among) == [100]
    assert planned(table, {"type": "in", "term": "ID", "values": ids}, case_sensitive=False) == [100]
    assert planned(table, {"type": "in", "term": "name", "values": [f"n{number}" for number in ids]}) == [100]
    everything = [0, 100, 200, 300]
    assert planned(table, {"type": "not", "child": among}) == everything
    assert planned(table, {"type": "not-in", "term": "id", "values": ids}) == everything
    assert planned(table, {"type": "in", "term": "ratio", "values": [float(each) for each in ids]}) == everything
    with pytest.raises(InvalidArgument):
        planned(table, {"type": "in", "term": "nothing", "values": ids})


def test_size_is_limited(table: LooseTable) -> None:
    deep: Any = True
    for _ in range(150):
        deep = {"type": "not", "child": deep}
    wide = {"type": "eq", "term": "id", "value": 1}
    for _ in range(20):
        wide = {"type": "or", "left": wide, "right": wide}
    for expression in (deep, wide):
        with pytest.raises(LimitExceeded, match=str(MAX_CONDITIONS)):
            planned(table, expression)
