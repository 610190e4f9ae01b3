"""The services of the gRPC port: the metastore, Airport, and health. Each process of a server that takes calls has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from skiway.airport import AirportService
from skiway.config import Settings
from skiway.config.metastore import Query, System
from skiway.lake.policy_checks import PolicyChecks
from skiway.metastore import managed
from skiway.metastore.planning.planner import Planner
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.search import SearchIndexes
from skiway.metastore.system.objects import EngineCatalogs, SystemFiles
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.table_maintenance.sources import SourceTables
from skiway.pipeline.worker import Worker
from skiway.rpc import Door as RpcDoor
from skiway.rpc.services import all_services
from skiway.runtime.authentication import current_roles
from skiway.runtime.grpc_door import GrpcDoor, Health
from skiway.runtime.lake import lake_over_airport, queries_of, spark_queries_of, staging_area
from skiway.runtime.lifecycle import opened
from skiway.runtime.parts import Parts, opened_parts
from skiway.runtime.readiness import Readiness, checks_of
from skiway.sandbox.queries import Queries
from skiway.sql import QueryEngine
from skiway.telemetry.metrics import observe_caches
from skiway.telemetry.series import Family

__all__ = ["GrpcServices", "grpc_services", "serving_calls"]


@dataclass(frozen=True, slots=True)
class GrpcServices:
    """The gRPC services of a process."""

    metastore: RpcDoor
    airport: AirportService
    health: Health

    def door(self, parts: Parts, *, socket_file: Path | None = None, leads: bool = False) -> GrpcDoor:
        """The gRPC server. Clients address the metastore as `host:port` and Airport with a URL."""
        settings = parts.settings.server.grpc
        return GrpcDoor(
            {"rpc": "", "airport": "grpc+tls://" if settings.tls.cert else "grpc://"},
            (self.metastore, self.airport, self.health),
            settings,
            operators=parts.operators,
            socket_file=socket_file,
            leads=leads,
        )


@contextmanager
def grpc_services(parts: Parts, worker: Worker | None = None) -> Iterator[GrpcServices]:
    """The services of a process, which end with the block. With a `worker`, the process is ready while the worker runs."""
    settings, access, observers = parts.settings, parts.access, parts.observers
    with ExitStack() as ends:
        queries = queries_of(settings.sql)
        ends.callback(queries.close)
        indexes = SearchIndexes()
        ends.callback(indexes.close)
        metastore = _metastore(parts, queries, indexes)
        ends.callback(metastore.close)
        spark = spark_queries_of(settings.sql.spark)
        if spark is not None:
            ends.callback(spark.close)
        airport = lake_over_airport(
            access,
            observers,
            parts.stores,
            parts.handles,
            parts.secrets,
            queries,
            settings,
            spark,
            lambda: parts.addresses["airport"],
        )
        ends.callback(airport.close)
        readiness = Readiness(checks_of(parts.stores, worker, parts.folders))
        ends.callback(readiness.close)
        health = Health((*metastore.service_names, *airport.service_names), failed=readiness.failed)
        ends.callback(health.close)
        yield GrpcServices(metastore, airport, health)


@contextmanager
def serving_calls(settings: Settings, home: Path) -> Iterator[Callable[[], Sequence[Family]]]:
    """Serve gRPC calls for the duration of the block, on a port that another process leads; yields its metrics."""
    with (
        opened_parts(settings, home) as parts,
        grpc_services(parts) as services,
        opened([services.door(parts)]) as addresses,
    ):
        parts.addresses.update(addresses)
        with services.health.serving():
            yield parts.observers.metrics.collect


def _metastore(parts: Parts, queries: Queries, indexes: SearchIndexes) -> RpcDoor:
    settings, warehouse = parts.settings, parts.warehouse
    planner = Planner(settings.metadata.hint.cache_max_weight)
    observe_caches(parts.observers.metrics, {"metadata.hint": planner.cache_stats})
    return RpcDoor(
        parts.access,
        parts.observers,
        services=all_services(
            _engine_catalogs(settings.system),
            query_rules=_query_rules(settings.query),
            reconciler=parts.reconciler,
            planner=planner,
            create_table=partial(managed.create_requested, warehouse=warehouse),
            policy_expressions=PolicyChecks(QueryEngine(queries)),
            staging=staging_area(warehouse, settings.server.grpc),
            maintenance=MaintenanceArea.of(warehouse, settings.gc.warehouse.min_age_ms, SourceTables(parts.reconciler)),
            current_roles=current_roles(settings),
            allows_python=settings.pipelines.python.enabled,
            search_indexes=indexes,
        ),
        disclosure=settings.errors,
        workers=settings.server.grpc.workers,
        opening_s=settings.server.grpc.opening_seconds,
        idle_s=settings.server.grpc.idle_seconds,
    )


def _query_rules(settings: Query) -> QueryRules:
    """The limits of queries."""
    return QueryRules(
        default_ttl_s=settings.default_ttl_ms / 1000,
        grace_s=settings.ended_grace_ms / 1000,
        max_leases=settings.max_size,
    )


def _engine_catalogs(settings: System) -> EngineCatalogs:
    """The system objects of engines, from the configured directory or the ones included in Skiway.

    Configured files are read at once, so that a broken one stops the start and not the first request for it.
    """
    files = SystemFiles(settings.objects_directory) if settings.objects_directory else SystemFiles()
    if settings.objects_directory:
        for kind in files.kinds():
            files.load(kind)
    return EngineCatalogs(files, max_kept=settings.graph.snapshot_cache_size)
