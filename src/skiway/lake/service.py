"""The Flight service of the lake: its catalogs over Airport, and queries over Flight SQL."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from skiway.airport import AirportService, Limits
from skiway.airport.server.status import Disclosure
from skiway.airport.server.tickets import TicketOffice
from skiway.config import Settings
from skiway.flightsql import FlightSql
from skiway.lake.callers import Callers
from skiway.lake.catalog import LakeCatalogs
from skiway.lake.context import MAX_LISTED_AT_ONCE, Context, Versions
from skiway.lake.flight_sql import LakeSql
from skiway.lake.leases import TransactionLeases
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES
from skiway.lake.spark_sql import SparkSql
from skiway.lake.staging import StagedStatements
from skiway.lake.transactions import LakeTransactions
from skiway.lake.usage import UsageLog
from skiway.metastore import Realm, platform
from skiway.requests import Access, Observers
from skiway.sandbox.queries import Queries
from skiway.security import SecretsStore
from skiway.sql import QueryEngine

__all__ = ["airport_service", "signing_key"]


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
    same key (see `signing_key`). Large scans are split into up to `max_parts` parts of about `part_bytes`.
    If an account has more than `max_listed_at_once` tables and views, its schemas are lazy.
    `queries` runs the SQL of `skiway.query`, `spark` runs it on Spark, and `settings` are shown in `skiway.settings`.
    """
    callers, versions, usage = Callers(access, observers), Versions(), UsageLog()
    context = Context(
        callers,
        handles,
        LakeTransactions(
            key,
            caller=lambda: (callers.authenticated.account_id, callers.authenticated.subject),
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
        on_close=context.usage.close,
        auth=callers,
        tickets=TicketOffice(key),
        limits=limits,
        observers=[callers.observe],
        lane_of=access.lanes.of,
        disclosure=Disclosure(internal=False),
        log_failures=False,  # the pipeline logs them, with the caller
        protocols=[FlightSql(LakeSql(catalogs), key=key)],
    )


class _LakeService(AirportService):
    """A service that stores what it knows when it closes."""

    def __init__(self, *arguments: Any, on_close: Callable[[], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._on_close = on_close

    def close(self) -> None:
        """End the threads, once no calls run."""
        super().close()
        self._on_close()


def signing_key(realm: Realm, secrets: SecretsStore) -> bytes:
    """The key that signs tickets and transaction ids, shared by all servers of the realm's stores and these secrets."""
    return platform.signing_key(realm.stores, secrets)
