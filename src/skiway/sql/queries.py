"""Queries of callers, which run in the sandbox."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from skiway.airport import current_request
from skiway.cache import Cache
from skiway.doors import require_at_most
from skiway.sandbox.queries import Queries, QueryProcess
from skiway.sandbox.relations import BoundQuery, Expression, Parsed, Relation, StoredQuery, TableName
from skiway.sql.metadata_queries import row_count
from skiway.sql.relations import CountsRows, Find, names_in, resolved

__all__ = ["Query", "QueryEngine"]

MAX_SQL: Final = 1 << 20
"""The characters of a query."""

MAX_TOKENS: Final = 50_000
"""The names, constants and symbols of a query. DuckDB takes many seconds for more, however few rows they read."""

MAX_PARAMETERS: Final = 1 << 16
"""The bytes of the values of parameters. DuckDB's time to quote them grows with their square."""

_TOKEN: Final = re.compile(r"""'[^']*'|"[^"]*"|\w+|[^\w\s]""")

_SMALLER: Final = "put the values into a table, and join it"

_CACHED_CHARACTERS: Final = 4 << 20
"""Of queries whose tables are known."""

_CACHED_COLUMNS: Final = 100_000
"""Of queries whose columns are known."""

_is_inside: ContextVar[bool] = ContextVar("skiway_query_is_inside", default=False)
"""Whether a query reads the rows: scans of a query run in a copy of its context."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a caller.

    `find` looks up a table or view by catalog, schema and name, with the caller's rights; None if there is none. Names
    without a catalog or a schema are completed with those of the query. `owner` shares the workers fairly with others.
    The result has DuckDB's extension types of Arrow, unless it is `plain`.
    """

    sql: str
    find: Find
    catalog: str
    schema: str = ""
    owner: str = ""
    plain: bool = False


@dataclass(frozen=True, slots=True)
class _Count:
    """A query that counts the rows of a table: the name of its only column, and the table."""

    name: str
    table: CountsRows

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(self.name, pa.int64())])


def _weight(parsed: Parsed) -> int:
    """What a query takes in the cache. One with points in time is too heavy: they can depend on the current time."""
    has_times = any(each.unit for each in parsed.tables)
    return _CACHED_CHARACTERS + 1 if has_times else 1000 + 2 * len(parsed.sql)


def _check_size(sql: str) -> None:
    """Raise `LimitExceeded` if DuckDB would take long to parse and plan a query."""
    require_at_most(MAX_SQL, len(sql), "the query has {} characters", remedy=_SMALLER, key="sql.too_large")
    tokens = sum(1 for _ in islice(_TOKEN.finditer(sql), MAX_TOKENS + 1))
    what = "the query has {} or more names, constants and symbols"
    require_at_most(MAX_TOKENS, tokens, what, remedy=_SMALLER, key="sql.too_large")


class QueryEngine:
    """Runs queries in the sandbox."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._expressions = Cache[str, Sequence[Expression]](1000)
        self._parsed = Cache[tuple[str, str], Parsed](_CACHED_CHARACTERS, weigh=_weight)
        self._columns = Cache[bytes, pa.Schema](_CACHED_COLUMNS, weigh=len, max_entries=1000)

    def expressions(self, texts: Sequence[str], claims: Mapping[str, Any], *, owner: str = "") -> Sequence[Expression]:
        """Compile expressions over the columns of a row, in which `caller('name')` is the value of a claim."""

        def find() -> Sequence[Expression]:
            process = self._queries.start(owner, inside=_is_inside.get())
            try:
                return process.expressions(texts, claims)
            finally:
                process.close()

        return self._expressions.get(json.dumps([texts, dict(claims)], sort_keys=True), find) if texts else []

    def columns(self, query: Query) -> pa.Schema:
        """The columns of a query, without running it."""
        if (count := self._count(query)) is not None:
            return count.schema
        process = self._started(query)
        try:
            parsed, relations, views = self._resolved(process, query, plan=False)

            def find() -> pa.Schema:
                schema, rows = self._run(process, query, parsed, relations, views, describe=True)
                for _ in rows:
                    pass
                return schema

            shapes = [(each.name, each.schema.serialize().to_pybytes()) for each in relations]
            key = repr((parsed.sql, shapes, views, query.catalog, query.schema, query.plain))
            return self._columns.get(sha256(key.encode()).digest(), find)
        finally:
            process.close()

    def tables(self, query: Query) -> list[TableName]:
        """The names of the tables and views that a query names, without common table expressions."""
        process = self._started(query)
        try:
            return names_in(self._parse(process, query.sql), query.find, (query.catalog, query.schema))
        finally:
            process.close()

    def rows(self, query: Query) -> Iterator[pa.RecordBatch]:
        """Run a query. It is cancelled when the iterator is closed, and when the client of the call is gone."""
        with self.result(query) as (_, batches):
            yield from batches

    @contextmanager
    def result(self, query: Query) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """Run a query within the block: its columns and its rows."""
        count = self._count(query)
        rows = None if count is None else count.table.counted_rows()
        if count is not None and rows is not None:
            yield count.schema, iter([pa.RecordBatch.from_arrays([pa.array([rows], pa.int64())], schema=count.schema)])
            return
        process = self._started(query)
        try:
            yield self._run(process, query, *self._resolved(process, query, plan=True))
        finally:
            process.close()

    def explain(self, query: Query) -> str:
        """DuckDB's plan of a query, over the files that are left after pruning. The query does not run."""
        process = self._started(query)
        try:
            _, rows = self._run(process, query, *self._resolved(process, query, plan=True), explain=True)
            return "".join(str(text) for batch in rows for text in batch.column("plan").to_pylist())
        finally:
            process.close()

    def bound(self, sql: str, values: pa.Table | None = None, *, owner: str = "") -> BoundQuery:
        """A query with the values of one row instead of its parameters; with NULL if there are no values."""
        size = 0 if values is None else values.nbytes
        require_at_most(MAX_PARAMETERS, size, "the parameters have {} bytes", remedy=_SMALLER, key="sql.too_large")
        process = self._start(sql, owner)
        try:
            bound = process.bind(sql, values)
        finally:
            process.close()
        _check_size(bound.sql)
        return bound

    def _count(self, query: Query) -> _Count | None:
        """The table whose rows a query only counts; None for other queries. No process is needed to look it up."""
        counted = row_count(query.sql)
        if counted is None or not (counted.schema or query.schema):
            return None
        table = query.find(counted.catalog or query.catalog, counted.schema or query.schema, counted.table)
        return _Count(counted.name, table) if isinstance(table, CountsRows) else None

    def _started(self, query: Query) -> QueryProcess:
        return self._start(query.sql, query.owner)

    def _start(self, sql: str, owner: str) -> QueryProcess:
        """A process for a query, which is killed if the client of the call leaves before the query has ended."""
        _check_size(sql)
        process = self._queries.start(owner, inside=_is_inside.get())
        current_request().when_ended(process.canceller())
        return process

    def _parse(self, process: QueryProcess, sql: str, prefix: str = "then") -> Parsed:
        return self._parsed.get((sql, prefix), lambda: process.parse(sql, prefix=prefix))

    def _resolved(
        self, process: QueryProcess, query: Query, *, plan: bool
    ) -> tuple[Parsed, list[Relation], list[StoredQuery]]:
        """The query with its tables and views. Only with `plan`, files are chosen."""
        parse = partial(self._parse, process)
        parsed = parse(query.sql)
        relations, views = resolved(parse, parsed, query.find, (query.catalog, query.schema), plan=plan)
        return parsed, relations, views

    def _run(
        self,
        process: QueryProcess,
        query: Query,
        parsed: Parsed,
        relations: Sequence[Relation],
        views: Sequence[StoredQuery],
        *,
        describe: bool = False,
        explain: bool = False,
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        before = _is_inside.set(True)  # for the scans, which the process starts
        try:
            return process.run(
                parsed.sql,
                relations,
                views=views,
                default=[query.catalog, *filter(None, [query.schema])],
                describe=describe,
                plain=query.plain,
                explain=explain,
            )
        finally:
            _is_inside.reset(before)
