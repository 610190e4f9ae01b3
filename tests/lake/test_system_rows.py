"""Rows of system tables and functions, the names in their arguments, and the types that a histogram divides into ranges."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.airport import Request, ScanOptions
from skiway.airport.request import entered
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.foundation.cache import Cache
from skiway.lake.system.effects import ActingFunction, table_name
from skiway.lake.system.functions import QueryFunction, _as_number
from skiway.lake.system.tables import Row, VisibleTable, _column_row, _snapshot_row, schema_of, snapshots
from skiway.model import v1


def row(**stats: Any) -> tuple[Any, ...]:
    found = v1.ColumnStats(column_id=7, column_name="x", logical_type="INT", value_count=9, **stats)
    assert _column_row(found)[:4] == (7, "x", "INT", 9)
    return _column_row(found)[4:]


def test_unknown_statistics_are_null_and_zeros_are_not() -> None:
    assert row() == (None, None, None, None, None)
    assert row(null_count=0, nan_count=0, min="", max="") == (0, 0, None, "", "")
    assert row(null_count=1, nan_count=2, min="a", max="b") == (1, 2, None, "a", "b")
    assert row(ndv=v1.Ndv(exact=0)) == (None, None, 0.0, None, None)
    assert row(ndv=v1.Ndv(exact=5)) == (None, None, 5.0, None, None)
    assert row(ndv=v1.Ndv(approx=v1.NdvApprox(estimate=2.5))) == (None, None, 2.5, None, None)


@pytest.mark.parametrize(
    ("of", "number"),
    [
        (pa.int8(), "BIGINT"),
        (pa.uint32(), "BIGINT"),
        (pa.uint64(), "DOUBLE"),
        (pa.float32(), "DOUBLE"),
        (pa.decimal128(9, 2), "DOUBLE"),
        (pa.date32(), "TIMESTAMP"),
        (pa.timestamp("us", tz="UTC"), "TIMESTAMP"),
        (pa.string(), None),
        (pa.bool_(), None),
        (pa.time64("us"), None),
    ],
)
def test_numbers_and_times_are_divided_into_ranges(of: pa.DataType, number: str | None) -> None:
    assert _as_number(pa.field("x", of)) == number


class Renamed(ActingFunction):
    """A function that changes nothing and tells the name that it was given."""

    name, result = "renamed", schema_of("name text, count bigint")

    def act(self, given: Mapping[str, Any]) -> Row:
        return given["name"], given["count"]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [(None, {"name": "t", "count": 3}), (["count"], {"count": 3}), (["count", "name"], {"count": 3, "name": "t"})],
)
def test_result_of_a_change_has_the_requested_columns(columns: list[str] | None, expected: dict[str, Any]) -> None:
    arguments = {"name": pa.scalar("t"), "count": pa.scalar(3)}
    (found,) = Renamed().execute(arguments, ScanOptions(columns=columns))
    assert found.to_pylist() == [expected]
    assert found.schema.names == list(expected)


@pytest.mark.parametrize(
    ("name", "found"), [("s.t", ("s", "t")), ("c.s.t", ("s", "t")), ('C."s x"."t.y"', ("s x", "t.y"))]
)
def test_names_of_tables_are_parsed(name: str, found: tuple[str, str]) -> None:
    table = table_name(name, "c", "f")
    assert (table.db, table.name) == found


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("t", "'t' is not the name of a table or view"),
        ("", "'' is not the name of a table or view"),
        ("s.t.u.v.w(", "is not the name of a table or view"),
        ("other.s.t", r"other\.s\.t is not in catalog c: call other\.skiway\.f"),
    ],
)
def test_invalid_names_of_tables_are_rejected(name: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        table_name(name, "c", "f")


@pytest.mark.parametrize(("now", "is_current"), [(5, True), (6, False), (None, False)])
@pytest.mark.parametrize("damage", ["", "its record is unreadable"])
def test_current_snapshot_is_marked_even_if_it_is_damaged(now: int | None, is_current: bool, damage: str) -> None:
    shown = VisibleTable("s", v1.Table(display_name="t"))
    found = _snapshot_row(shown, v1.Snapshot(snapshot_id=5, damage=damage), now, None)
    assert len(found) == len(snapshots.schema)
    row = dict(zip(snapshots.schema.names, found, strict=True))
    assert (row["snapshot_id"], row["parent_id"], row["is_current"]) == (5, None, is_current)
    assert (row["damage"] or "") == damage
    assert (row["sequence_number"] is None) == bool(damage)


def test_query_is_planned_again_after_its_tables_have_changed() -> None:
    planned, read = pa.schema({"x": pa.int64()}), pa.record_batch({"x": ["text"]})
    queries = SimpleNamespace(columns=lambda _query: planned, rows=lambda _query: iter([read]))
    callers = SimpleNamespace(principal=SimpleNamespace(account_id="a", subject="me"))
    shapes = Cache[tuple[str, ...], pa.Schema](1000)
    context = cast(Any, SimpleNamespace(queries=queries, callers=callers, query_shapes=shapes))
    function = QueryFunction(context, "c", cast(Any, None))
    none = pa.scalar(None, pa.string())
    arguments = {"sql": pa.scalar("FROM t"), "schema": none, "engine": none}
    with entered(Request(transaction_id="tx")):
        assert function.schema_for(arguments) == planned
        planned = read.schema
        assert function.schema_for(arguments) != planned, "it is remembered for the statement"
        with pytest.raises(PreconditionFailed, match="the tables of the query have changed"):
            list(function.execute(arguments, ScanOptions()))
        assert [each.to_pylist() for each in function.execute(arguments, ScanOptions())] == [[{"x": "text"}]]
    with pytest.raises(InvalidArgument, match="query needs SQL"):
        function.schema_for({**arguments, "sql": pa.scalar("  ")})


def test_columns_of_a_query_are_remembered_for_one_caller() -> None:
    """A trace id is no secret, and another caller may not be allowed to know the columns."""
    caller, asked = SimpleNamespace(account_id="a", subject="me"), list[str]()

    def columns(_query: Any) -> pa.Schema:
        asked.append(caller.subject)
        return pa.schema({"x": pa.int64()})

    callers, queries = SimpleNamespace(principal=caller), SimpleNamespace(columns=columns)
    context = cast(Any, SimpleNamespace(queries=queries, callers=callers, query_shapes=Cache(1000)))
    function = QueryFunction(context, "c", cast(Any, None))
    none = pa.scalar(None, pa.string())
    arguments = {"sql": pa.scalar("FROM t"), "schema": none, "engine": none}
    with entered(Request(trace_id="t")):
        for caller.subject in ("me", "me", "you"):
            function.schema_for(arguments)
        caller.account_id = "b"
        function.schema_for(arguments)
    assert asked == ["me", "you", "you"]
    with entered(Request()):  # which does not tell the statement
        function.schema_for(arguments)
        function.schema_for(arguments)
    assert len(asked) == 5
