"""Queries of callers, which run in the sandbox."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import pyarrow as pa

from skiway.errors import InvalidArgument
from skiway.sandbox.queries import Queries, QueryProcess, TableName
from skiway.sql.relations import Find, names_in, resolved

__all__ = ["Query", "QueryEngine"]

MAX_SQL: Final = 1 << 20
"""The characters of a query."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a caller.

    `find` looks up a table or view by catalog, schema and name, with the caller's rights; None if there is none. Names
    without a catalog or a schema are completed with those of the query. `owner` shares the workers fairly with others.
    """

    sql: str
    find: Find
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

    def tables(self, query: Query) -> list[TableName]:
        """The names of the tables and views that a query names, without common table expressions."""
        process = self._started(query)
        try:
            return names_in(process.parse(query.sql), query.find, (query.catalog, query.schema))
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
        relations, views = resolved(process, parsed, query.find, (query.catalog, query.schema), plan=not describe)
        run = partial(process.run, parsed.sql, views=views, describe=describe)
        default = [query.catalog, *filter(None, [query.schema])]
        found = run(relations, default=default)
        if found is None:
            found = run([replace(each, files=()) for each in relations], default=default)
            assert found is not None
        return found
