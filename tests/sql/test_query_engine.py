"""Queries of callers: what is known about a text and its tables is not computed again, and changes are noticed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from skiway.airport import ScanOptions, Table
from skiway.errors import NotFound, Unsupported
from skiway.sandbox.queries import Queries, QueryProcess
from skiway.sql.queries import Query, QueryEngine
from skiway.sql.relations import SqlView


class Rows(Table):
    """A table with one row of zeros."""

    def __init__(self, name: str, schema: pa.Schema) -> None:
        self.name, self.schema = name, schema

    def scan(self, options: ScanOptions) -> pa.Table:
        return pa.table([pa.array([0]).cast(field.type) for field in self.schema], schema=self.schema)


class View(SqlView, Table):
    """A view with columns of its own."""

    def __init__(self, name: str, sql: str) -> None:
        self.name, self._sql = name, sql
        self.schema = pa.schema({"n": pa.int64()})

    @property
    def sql(self) -> str:
        return self._sql

    def scan(self, options: ScanOptions) -> pa.Table:
        raise AssertionError("the query reads the tables of the view")


@pytest.fixture(scope="module")
def engine() -> Iterator[QueryEngine]:
    queries = Queries(memory_limit="300MB", workers=1, threads=1)
    yield QueryEngine(queries)
    queries.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests to processes."""
    found = list[str]()

    def counted(name: str) -> Callable[..., Any]:
        original = getattr(QueryProcess, name)

        def call(self: QueryProcess, *args: Any, **options: Any) -> Any:
            found.append(name)
            return original(self, *args, **options)

        return call

    for name in ("parse", "run"):
        monkeypatch.setattr(QueryProcess, name, counted(name))
    return found


def query(sql: str, *tables: Table, **options: Any) -> Query:
    named = {each.name: each for each in tables}
    return Query(sql, lambda _catalog, _schema, name: named.get(name), **{"catalog": "c", "schema": "s", **options})


NUMBERS = Rows("t", pa.schema({"a": pa.int64(), "b": pa.int32()}))


def test_same_text_over_the_same_tables_is_parsed_and_described_once(engine: QueryEngine, calls: list[str]) -> None:
    asked = query("SELECT a, a + b AS c FROM t", NUMBERS)
    first = engine.columns(asked)
    assert first == pa.schema({"a": pa.int64(), "c": pa.int64()})
    assert calls == ["parse", "run"]
    assert engine.columns(asked) == first
    assert [batch.to_pylist() for batch in engine.rows(asked)] == [[{"a": 0, "c": 0}]]
    assert calls == ["parse", "run", "run"]


def test_columns_are_described_again_after_a_change(engine: QueryEngine) -> None:
    sql = "SELECT * FROM t"
    assert engine.columns(query(sql, NUMBERS)).names == ["a", "b"]
    assert engine.columns(query(sql, Rows("t", pa.schema({"a": pa.int64(), "new": pa.int32()})))).names == ["a", "new"]
    assert engine.columns(query(sql, Rows("t", pa.schema({"a": pa.string()})))).types == [pa.string()]
    views = [View("t", "SELECT 1 AS x"), View("t", "SELECT 1 AS y"), View("t", "SELECT a AS z FROM u")]
    found = [engine.columns(query(sql, view, Rows("u", pa.schema({"a": pa.int8()})))) for view in views]
    assert [each.names for each in found] == [["x"], ["y"], ["z"]]
    assert [
        found[2].field("z").type,
        engine.columns(query(sql, views[2], Rows("u", pa.schema({"a": pa.date32()})))).types[0],
    ] == [
        pa.int8(),
        pa.date32(),
    ]


def test_names_and_types_depend_on_the_caller(engine: QueryEngine) -> None:
    sql = "SELECT uuid() AS key FROM t"
    assert engine.columns(query(sql, NUMBERS)).types != engine.columns(query(sql, NUMBERS, plain=True)).types
    where = "SELECT current_schema() AS a FROM s.t"
    for schema in ("s", "main", "s"):
        (batch,) = engine.rows(query(where, NUMBERS, schema=schema))
        assert batch.to_pylist() == [{"a": schema}]


def test_points_in_time_are_evaluated_for_each_call(engine: QueryEngine, calls: list[str]) -> None:
    asked = query("FROM t AT (TIMESTAMP => now())", NUMBERS)
    for _ in range(2):
        with pytest.raises(Unsupported, match="has no history"):
            engine.columns(asked)
    assert calls == ["parse", "parse"]


def test_missing_table_is_reported_after_it_was_described(engine: QueryEngine) -> None:
    assert engine.columns(query("SELECT a FROM s.t", NUMBERS)).names == ["a"]
    with pytest.raises(NotFound, match=r"table c\.s\.t does not exist"):
        engine.columns(query("SELECT a FROM s.t"))
