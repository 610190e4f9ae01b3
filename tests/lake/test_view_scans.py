"""What a scan of a view asks the engine for: the columns, conditions and limits of the reader, and where they are applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest

from skiway.airport import ScanOptions, Table
from skiway.client import col
from skiway.client.airport.filters import filter_json
from skiway.errors import InvalidArgument
from skiway.lake.context import Context
from skiway.lake.views import DefinerView, LakeView
from skiway.model import v1
from skiway.sql import Query

COLUMNS = pa.schema({"id": pa.int32(), "name": pa.string()})
RECORD = v1.View(
    display_name="v",
    sql_definitions=[v1.ViewSql(sql="SELECT id, name FROM t", dialect="duckdb")],
    definer=v1.ViewDefiner(catalog="c", schema="s"),
)
ROWS = pa.record_batch({"id": pa.array([1, 2, 3], pa.int32()), "name": ["a", "b", "c"]}, schema=COLUMNS)


class Engine:
    """Records queries, and returns no rows."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def rows(self, query: Query) -> Iterator[pa.RecordBatch]:
        self.asked.append(query.sql)
        return iter(())


def context(engine: Engine) -> Context:
    principal = SimpleNamespace(account_id="a1", subject="ada")
    callers = SimpleNamespace(
        require=lambda *_: None,
        principal=principal,
        authenticated=principal,
        acting_as=lambda _principal, _bound, rows: copy_context().run(lambda: iter(list(rows()))),
    )
    return cast(Context, SimpleNamespace(callers=callers, queries=engine))


def condition() -> str:
    return filter_json(col("id") > 1, ["id"], {"id": COLUMNS.field("id")})


CASTS = 'SELECT CAST("id" AS INTEGER) AS "id", CAST("name" AS VARCHAR) AS "name" FROM "c"."s"."v"'


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ScanOptions(), f'SELECT "id", "name" FROM ({CASTS})'),
        (ScanOptions(columns=["name"]), f'SELECT "name" FROM ({CASTS})'),
        (ScanOptions(columns=[]), f'SELECT "id" FROM ({CASTS})'),
        (ScanOptions(json_filters=condition()), f'SELECT "id", "name" FROM ({CASTS}) WHERE "id" > 1'),
    ],
)
def test_columns_and_conditions_are_part_of_the_query(options: ScanOptions, expected: str) -> None:
    engine = Engine()
    view = LakeView(context(engine), RECORD, ("c", "s"), lambda *_: None)
    view.schema = COLUMNS
    assert list(view.scan(options)) == []
    assert engine.asked == [expected]


class Inner(Table):
    """The view with the rights of the definer. It records what is asked."""

    name, schema = "v", COLUMNS

    def __init__(self) -> None:
        self.asked: list[ScanOptions] = []

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        self.asked.append(options)
        yield ROWS.select(options.columns)


@pytest.mark.parametrize(
    ("options", "asked", "expected"),
    [
        (ScanOptions(), ScanOptions(columns=["id", "name"]), [(1, "a"), (2, "b"), (3, "c")]),
        (
            ScanOptions(columns=["name"], json_filters=condition()),
            ScanOptions(columns=["id", "name"]),
            [("b",), ("c",)],
        ),
    ],
)
def test_conditions_of_readers_are_applied_to_the_rows_of_a_definers_view(
    options: ScanOptions, asked: ScanOptions, expected: Any
) -> None:
    """As a part of the definer's query, they could meet rows that the view hides."""
    view, inner = DefinerView(context(Engine()), RECORD, ("c", "s"), lambda *_: None), Inner()
    view._view = cast(LakeView, inner)
    rows = [tuple(row.values()) for batch in view.scan(options) for row in batch.to_pylist()]
    assert (rows, inner.asked) == (expected, [asked])


def test_definers_views_are_nested_up_to_a_limit() -> None:
    """Each takes a worker of its own."""

    def nested(depth: int) -> Table:
        if depth == 0:
            return Inner()
        record = v1.View(
            display_name=f"v{depth}", resource_id=v1.ResourceId(id=f"id{depth}"), definer=v1.ViewDefiner(catalog="c")
        )
        view = DefinerView(context(Engine()), record, ("c", "s"), lambda *_: None)
        view._view = cast(LakeView, nested(depth - 1))
        return view

    assert len(list(cast(Any, nested(8)).scan(ScanOptions()))) == 1
    with pytest.raises(InvalidArgument, match="nested more than 8 deep: v1 is the last") as error:
        list(cast(Any, nested(9)).scan(ScanOptions()))
    assert error.value.key == "view.depth"
