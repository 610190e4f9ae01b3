"""The Flight service of the lake: its catalogs over Airport, and queries over Flight SQL.

The queries are those of `skiway.query`, with the same rights, policies and limits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

import pyarrow as pa

from skiway.airport import AirportService, Limits, Schema, Table
from skiway.airport.server.call_handlers import Disclosure
from skiway.airport.server.tickets import TicketOffice
from skiway.airport.table_refs import TableRef
from skiway.airport.wire import protocol
from skiway.config import Settings
from skiway.errors import InvalidArgument, NotFound
from skiway.flightsql import BoundSql, FlightSql, Place, SqlEngine, SqlResult
from skiway.lake.callers import Callers
from skiway.lake.catalog import LakeCatalogs
from skiway.lake.context import MAX_LISTED_AT_ONCE, Context, SparkSql, StagedStatements, UsageLog, Versions
from skiway.lake.history import QueryLog
from skiway.lake.information_schema import INFORMATION_SCHEMA, information_table, table_type
from skiway.lake.reading.opened_tables import Handles
from skiway.lake.reading.scans import MAX_PARTS, PART_BYTES
from skiway.lake.transactions import LakeTransactions, TransactionLeases
from skiway.request_path import Access, Observers
from skiway.sandbox.queries import Queries
from skiway.sql import Query, QueryEngine
from skiway.sql.measures import current_measures

_PLAN: Final = pa.schema({"explain_key": pa.string(), "explain_value": pa.string()})
_EXPLAIN: Final = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*EXPLAIN\s+(?!\()(ANALYZE\b)?", re.IGNORECASE | re.DOTALL)

_NO_CATALOG: Final = "memory"
"""The default catalog of a query that has none: DuckDB's own, which is empty."""


def _explained(sql: str) -> tuple[str, str]:
    """The word EXPLAIN and the query after it; for other statements, an empty text and the statement."""
    found = _EXPLAIN.match(sql)
    if found is None:
        return "", sql
    if found[1]:
        raise InvalidArgument(
            "EXPLAIN ANALYZE cannot be used here: EXPLAIN shows the plan, without running it", key="sql.invalid"
        )
    return found[0], sql[found.end() :]


class LakeSql(SqlEngine):
    """Runs queries over the catalogs of the caller's account."""

    def __init__(self, catalogs: LakeCatalogs) -> None:
        self._catalogs, self._context = catalogs, catalogs.context

    def caller(self) -> str:
        """The account and the subject of the caller."""
        return json.dumps(self._context.callers.identity())

    def columns(self, sql: str, place: Place) -> pa.Schema:
        """The columns of a query, without running it."""
        explain, query = _explained(sql)
        current_measures().text = sql
        columns = self._context.queries.columns(self._query(query, place))
        return _PLAN if explain else columns

    @contextmanager
    def run(self, sql: str, place: Place) -> Iterator[SqlResult]:
        """Run a query within the block."""
        explain, query = _explained(sql)
        if explain:
            plan = self._context.queries.explain(self._query(query, place))
            yield SqlResult(_PLAN, iter([pa.record_batch([["physical_plan"], [plan]], schema=_PLAN)]))
            return
        current_measures().text = sql
        with self._context.queries.result(self._query(sql, place)) as (schema, batches):
            yield SqlResult(schema, batches)

    def parameters(self, sql: str, place: Place) -> Sequence[str]:
        """DuckDB's names of the types that a query expects of its parameters; empty for those that it does not tell."""
        return self._context.queries.parameters(self._query(_explained(sql)[1], place))

    def bind(self, sql: str, values: pa.Table | None, types: Sequence[str] = ()) -> BoundSql:
        """A query with the values of one row instead of its parameters; with NULL if there are no values.

        Values are cast to `types`, if there are any and that does not change the values.
        """
        self._context.callers.require("catalog.read")
        explain, query = _explained(sql)
        bound = self._context.queries.bound(query, values, types, owner=self._owner)
        return BoundSql(explain + bound.sql, bound.parameters)

    def table_type(self, schema: Schema, table: Table | TableRef) -> str:
        """Tables, views, and tables of the system schema."""
        return table_type(schema, table)

    @property
    def table_types(self) -> Sequence[str]:
        """All types of tables."""
        return ("SYSTEM TABLE", "TABLE", "VIEW")

    @property
    def _owner(self) -> str:
        return self._context.callers.authenticated.account_id

    def _query(self, sql: str, place: Place) -> Query:
        """The query. Names without a catalog are in the one that the client chose, or in the only one of the account."""
        found = self._catalogs.find(place.catalog)
        if found is not None:
            return Query(sql, found.find_table, found.name, place.schema, owner=self._owner, plain=True)
        if place.catalog:
            raise NotFound(
                f"catalog {place.catalog!r} does not exist: choose another one in {protocol.CATALOG}", key="catalog"
            )
        return Query(sql, self._find_with_catalog, catalog=_NO_CATALOG, owner=self._owner, plain=True)

    def _find_with_catalog(self, catalog: str, schema: str, name: str) -> Table | None:
        if schema.casefold() == INFORMATION_SCHEMA:
            return information_table(name, self._catalogs.all)
        owner = self._catalogs.find(catalog)
        if owner is not None:
            return owner.find_table(catalog, schema, name)
        if catalog == _NO_CATALOG:
            raise InvalidArgument(
                f"{schema}.{name} names no catalog, and there is no default: write catalog.{schema}.{name}, or name the "
                f"catalog in the header {protocol.CATALOG}",
                key="catalog.missing",
            )
        return None


def airport_service(
    access: Access,
    observers: Observers | None = None,
    *,
    handles: Handles,
    key: bytes,
    transaction_ttl: timedelta = timedelta(hours=1),
    part_bytes: int = PART_BYTES,
    max_parts: int = MAX_PARTS,
    max_listed_at_once: int = MAX_LISTED_AT_ONCE,
    limits: Limits | None = None,
    queries: QueryEngine | None = None,
    settings: Settings | None = None,
    spark: SparkSql | None = None,
) -> AirportService:
    """The catalogs of the metastore as a service that can be added to a gRPC server.

    `handles` opens tables and may be shared. `key` signs tickets and transaction ids; all servers of a store need the
    same key. Large scans are split into up to `max_parts` parts of about `part_bytes`.
    If an account has more than `max_listed_at_once` tables and views, its schemas are lazy.
    `queries` runs the SQL of `skiway.query`, `spark` runs it on Spark, and `settings` are shown in `skiway.settings`.
    """
    kept = (settings or Settings()).query.history
    history = QueryLog(keep=kept.keep, most=kept.max_queries)
    callers, versions, usage = Callers(access, observers, history), Versions(), UsageLog()
    context = Context(
        callers,
        handles,
        LakeTransactions(
            key,
            caller=callers.identity,
            ttl=transaction_ttl,
            staged=StagedStatements(callers, handles.warehouse, versions, usage),
            leases=TransactionLeases(callers.own_realm),
        ),
        queries=queries or QueryEngine(Queries()),
        versions=versions,
        usage=usage,
        part_bytes=part_bytes,
        max_parts=max_parts,
        max_listed_at_once=max_listed_at_once,
        key=key,
        settings=settings or Settings(),
        spark=spark,
    )
    catalogs = LakeCatalogs(context)
    return _LakeService(
        catalogs,
        on_close=(usage.close, history.close),
        auth=callers,
        tickets=TicketOffice(key),
        limits=limits,
        observers=[callers.observe],
        lane_of=access.lanes.of,
        lane_headers=access.lanes.credentials,
        disclosure=Disclosure(internal=False),
        log_failures=False,  # the pipeline logs them, with the caller
        protocols=[FlightSql(LakeSql(catalogs), key=key)],
    )


class _LakeService(AirportService):
    """A service that stores what it knows when it closes."""

    def __init__(self, *arguments: Any, on_close: Sequence[Callable[[], None]], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._on_close = on_close

    def close(self) -> None:
        """End the threads, once no calls run."""
        super().close()
        for end in self._on_close:
            end()
