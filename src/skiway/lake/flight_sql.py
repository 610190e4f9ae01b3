"""Flight SQL over the lake: the queries of `skiway.query`, with the same rights, policies and limits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import pyarrow as pa

from skiway.airport import Schema, Table
from skiway.airport.table_refs import TableRef
from skiway.airport.wire import headers
from skiway.errors import InvalidArgument, NotFound
from skiway.flightsql import BoundSql, SqlEngine, SqlResult
from skiway.lake.catalog import LakeCatalogs
from skiway.lake.schema import SYSTEM_SCHEMA
from skiway.lake.view_tables import ViewTable
from skiway.sql import Query

__all__ = ["LakeSql"]

_NO_CATALOG: Final = "memory"
"""The default catalog of a query that has none: DuckDB's own, which is empty."""


class LakeSql(SqlEngine):
    """Runs queries over the catalogs of the caller's account."""

    def __init__(self, catalogs: LakeCatalogs) -> None:
        self._catalogs, self._context = catalogs, catalogs.context

    def caller(self) -> str:
        """The account and the subject of the caller."""
        caller = self._context.callers.authenticated
        return json.dumps([caller.account_id, caller.subject])

    def columns(self, sql: str, catalog: str) -> pa.Schema:
        """The columns of a query, without running it."""
        return self._context.queries.columns(self._query(sql, catalog))

    @contextmanager
    def run(self, sql: str, catalog: str) -> Iterator[SqlResult]:
        """Run a query within the block."""
        with self._context.queries.result(self._query(sql, catalog)) as (schema, batches):
            yield SqlResult(schema, batches)

    def bind(self, sql: str, values: pa.Table | None) -> BoundSql:
        """A query with the values of one row instead of its parameters; with NULL if there are no values."""
        self._context.callers.require("catalog.read")
        bound = self._context.queries.bound(sql, values, owner=self._owner)
        return BoundSql(bound.sql, bound.parameters)

    def table_type(self, schema: Schema, table: Table | TableRef) -> str:
        """Tables, views, and tables of the system schema."""
        if schema.name == SYSTEM_SCHEMA:
            return "SYSTEM TABLE"
        return "VIEW" if isinstance(table, ViewTable) else "TABLE"

    @property
    def table_types(self) -> Sequence[str]:
        """All types of tables."""
        return ("SYSTEM TABLE", "TABLE", "VIEW")

    @property
    def _owner(self) -> str:
        return self._context.callers.authenticated.account_id

    def _query(self, sql: str, catalog: str) -> Query:
        """The query. Names without a catalog are in the one that the client chose, or in the only one of the account."""
        found = self._catalogs.find(catalog)
        if found is not None:
            return Query(sql, found.find_table, catalog=found.name, owner=self._owner, plain=True)
        if catalog:
            raise NotFound(
                f"catalog {catalog!r} does not exist: choose another one in {headers.CATALOG}", key="catalog"
            )
        return Query(sql, self._find_with_catalog, catalog=_NO_CATALOG, owner=self._owner, plain=True)

    def _find_with_catalog(self, catalog: str, schema: str, name: str) -> Table | None:
        owner = self._catalogs.find(catalog)
        if owner is not None:
            return owner.find_table(catalog, schema, name)
        if catalog == _NO_CATALOG:
            raise InvalidArgument(
                f"{schema}.{name} names no catalog, and there is no default: write catalog.{schema}.{name}, or name the "
                f"catalog in the header {headers.CATALOG}",
                key="catalog.missing",
            )
        return None
