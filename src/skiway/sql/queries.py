"""Queries: which tables they read, what of these tables, and how."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from skiway.airport import ScanOptions, Table, TimePoint
from skiway.airport.results import record_batches
from skiway.airport.scan import find_rowid_column
from skiway.airport.server.lookup import table_at
from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.client.airport.filters import filter_json
from skiway.errors import InvalidArgument, NotFound
from skiway.sandbox.queries import FileColumn, NamedTable, Parsed, Queries, QueryProcess, Relation
from skiway.sql.pushdown import pushdown_filter

__all__ = ["DirectFiles", "Files", "Query", "QueryEngine"]

MAX_SQL: Final = 1 << 20
"""The characters of a query."""

_MAX_PARSED: Final = 20_000
"""The characters of a query in which filters for its tables are searched, which takes time in this process."""

_DIRECT_TYPES: Final = frozenset(
    {
        *("BOOLEAN", "INTEGER", "BIGINT", "FLOAT", "DOUBLE", "VARCHAR", "BLOB"),
        *("DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"),
    }
)
"""The types that DuckDB reads from Parquet files exactly as the readers of table formats do."""


@dataclass(frozen=True, slots=True)
class Files:
    """Local Parquet files, and the ids of the fields that are the columns of their table."""

    paths: Sequence[str]
    ids: Mapping[str, int]


class DirectFiles(ABC):
    """A table of which DuckDB may read the files itself."""

    @abstractmethod
    def direct_files(self, options: ScanOptions) -> Files | None:
        """Files with exactly the rows of the table, except those that the filter excludes; None if it has to be scanned."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a caller.

    `find` looks up a table by catalog, schema and name, with the caller's rights; None if there is none. Names without
    a catalog or a schema are completed with those of the query. `owner` shares the workers fairly with others.
    """

    sql: str
    find: Callable[[str, str, str], Table | None]
    catalog: str
    schema: str = ""
    owner: str = ""


class QueryEngine:
    """Runs queries in the sandbox."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    def columns(self, query: Query) -> pa.Schema:
        """The columns of a query, without running it."""
        process = self._started(query)
        try:
            schema, rows = self._run(process, query, describe=True)
            for _ in rows:
                pass
            return schema
        finally:
            process.close()

    def rows(self, query: Query) -> Iterator[pa.RecordBatch]:
        """Run a query. It is cancelled when the iterator is closed."""
        process = self._started(query)
        try:
            yield from self._run(process, query)[1]
        finally:
            process.close()

    def _started(self, query: Query) -> QueryProcess:
        if len(query.sql) > MAX_SQL:
            raise InvalidArgument(f"the query has {len(query.sql)} characters: at most {MAX_SQL} are accepted")
        return self._queries.start(query.owner)

    def _run(
        self, process: QueryProcess, query: Query, *, describe: bool = False
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        parsed = process.parse(query.sql)
        relations = _relations(query, parsed, plan=not describe)
        default = [query.catalog, *filter(None, [query.schema])]
        found = process.run(parsed.sql, relations, default=default, describe=describe)
        if found is None:
            scans = [replace(each, files=()) for each in relations]
            found = process.run(parsed.sql, scans, default=default, describe=describe)
            assert found is not None
        return found


def _relations(query: Query, parsed: Parsed, *, plan: bool) -> list[Relation]:
    """The tables that the query names. A name without a schema may be that of a common table expression."""
    found: dict[tuple[str, ...], Relation] = {}
    conditions = _Filters(parsed) if plan else None
    for named in parsed.tables:
        catalog, schema, name = named.name
        key = (named.alias,) if named.alias else tuple(part.casefold() for part in named.name)
        if key in found or (not schema and not query.schema):
            continue
        full = (catalog or query.catalog, schema or query.schema, name)
        table = query.find(*full)
        if table is None:
            if schema:
                raise NotFound(f"table {'.'.join(full)} does not exist", key="table", table=".".join(full))
            continue
        past = table_at(table, TimePoint.parse(named.unit, named.value))
        assert isinstance(past, Table)  # a table has no references in its past
        at = ("memory", "main", named.alias) if named.alias else full
        json_filters = "" if conditions is None else conditions.of(named, _visible(table))
        found[key] = _relation(at, past, json_filters, plan=plan)
    return list(found.values())


def _visible(table: Table) -> pa.Schema:
    rowid = find_rowid_column(table.schema)
    return pa.schema([field for index, field in enumerate(table.schema) if index != rowid])


def _relation(name: tuple[str, str, str], table: Table, json_filters: str, *, plan: bool) -> Relation:
    visible = _visible(table)

    def scan(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        # A scan without columns still has to count the rows.
        wanted = list(columns) or visible.names[:1]
        options = ScanOptions(columns=wanted, json_filters=json_filters)
        schema = pa.schema([visible.field(column) for column in wanted])
        for batch in record_batches(table.scan(options), schema):
            yield batch.select(list(columns))

    if plan and isinstance(table, DirectFiles) and all(duckdb_type(field) in _DIRECT_TYPES for field in visible):
        files = table.direct_files(ScanOptions(json_filters=json_filters))
        if files is not None:
            columns = [FileColumn(files.ids[each.name], each.name, duckdb_type(each)) for each in visible]
            return Relation(name, visible, scan, files.paths, columns)
    return Relation(name, visible, scan)


class _Filters:
    """The conditions of a query that hold for all rows of a table that it reads. They decide which files are read."""

    def __init__(self, parsed: Parsed) -> None:
        self._names = [named.name for named in parsed.tables]
        self._statement: exp.Expr | None = None
        if len(parsed.sql) <= _MAX_PARSED:
            with contextlib.suppress(SqlglotError, RecursionError):
                self._statement = parse_one(parsed.sql, dialect="duckdb")

    def of(self, named: NamedTable, columns: pa.Schema) -> str:
        """The conditions for a table with these columns as JSON; empty if there are none."""
        if self._statement is None or named.alias or self._names.count(named.name) != 1:
            return ""
        nodes = [
            each for each in self._statement.find_all(exp.Table) if (each.catalog, each.db, each.name) == named.name
        ]
        predicate = pushdown_filter(self._statement, nodes[0], columns) if len(nodes) == 1 else None
        if predicate is None:
            return ""
        names = list(dict.fromkeys(predicate.columns()))
        return filter_json(predicate, names, {name: columns.field(name) for name in names})
