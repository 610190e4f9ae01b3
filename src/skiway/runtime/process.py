"""A server process: its parts are built from the settings, started in this order, and stopped in reverse order.

    observing      logs, metrics, traces, audit
    stores         pointers and blobs, with the initial content of a new store, and a watch of their format
    collecting     garbage collection, on a thread of its own
    working        reconcile jobs, on another thread, unless separate workers run them
    delivering     webhooks, on threads of their own
    doors          the gRPC and HTTP servers; at shutdown they let running calls finish
    health         SERVING while both servers accept calls
    ready file     exists while all of that is running

At shutdown, clients are turned away first, and the stores are closed last.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp

from skiway.airport import AirportService
from skiway.config import Settings
from skiway.config.metastore import Query, System
from skiway.config.server import Grpc, Server
from skiway.errors import InvalidArgument, Unavailable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.lake.opened_tables import Handles
from skiway.lake.policy_checks import PolicyChecks
from skiway.memory_budget import MemoryBudget, available_bytes
from skiway.metastore import Realm, managed
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.migrations import watching_format
from skiway.metastore.planning.planner import Planner
from skiway.metastore.platform import AccountDirectory, EndedSessions, TokenUses, account_quotas, signing_key
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.seeding.catalog import seed_demo, seed_home
from skiway.metastore.seeding.iceberg import seed_iceberg
from skiway.metastore.seeding.mirror import seed_mirror
from skiway.metastore.system.objects import EngineCatalogs, SystemFiles
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.table_maintenance.sources import SourceTables
from skiway.requests import Access, Lanes, Observers, Quotas
from skiway.rpc import Door as RpcDoor
from skiway.rpc.services import all_services
from skiway.runtime.authentication import (
    authenticator,
    authorizer,
    credential_headers,
    current_roles,
    issuer,
    with_jobs,
)
from skiway.runtime.automatic_profiles import profile_sweep
from skiway.runtime.browsers import LocalOnly
from skiway.runtime.call_processes import CallProcesses
from skiway.runtime.explorer import explorer_of, socket_file
from skiway.runtime.gc import sweeps as gc_sweeps
from skiway.runtime.gc.schedule import Schedule, Sweep
from skiway.runtime.grpc_door import GrpcDoor, GrpcService, Health
from skiway.runtime.http_door import HttpDoor, web_app
from skiway.runtime.lake import (
    handles_of,
    iceberg_rest,
    lake_over_airport,
    queries_of,
    spark_queries_of,
    staging_area,
    warehouse_of,
)
from skiway.runtime.lifecycle import Door, StopSignals, announced, opened
from skiway.runtime.operators import Operators
from skiway.runtime.quality import quality_sweep
from skiway.runtime.readiness import Readiness, checks_of
from skiway.runtime.source_access import source_access_of
from skiway.runtime.spark import job_tokens, optimizer_of
from skiway.runtime.stores import secrets_of, stores_in_memory, stores_of
from skiway.runtime.table_maintenance import maintenance_sweep
from skiway.runtime.telemetry import GcMetrics, measure_queue, measure_usage, observing
from skiway.runtime.vending import vending_of
from skiway.runtime.webhooks import delivering
from skiway.runtime.workers import reconciler_of, working
from skiway.sandbox.queries import Queries
from skiway.security import SecretsStore
from skiway.sql import QueryEngine
from skiway.storage import PointerStore, Stores
from skiway.telemetry.metrics import observe_caches
from skiway.telemetry.series import Family

__all__ = ["REFUSAL_S", "Process", "running", "serve", "serving_calls"]

GC_STOP_S: Final = 30.0
REALMS: Final = 1000
REFUSAL_S: Final = 0.25
"""How long a call beyond a quota waits before it is rejected."""

log = logging.getLogger("skiway.runtime")


@dataclass(frozen=True, slots=True)
class Process:
    """A running process: its addresses by service, and its main parts."""

    addresses: Mapping[str, str]
    stores: Stores
    secrets: SecretsStore
    observers: Observers


def serve(
    settings: Settings,
    home: Path,
    *,
    ready_file: Path | None = None,
    on_ready: Callable[[Mapping[str, str]], None] = lambda _: None,
) -> None:
    """Run until SIGTERM or SIGINT, then shut down gracefully. A second signal ends the process at once. Main thread only."""
    with StopSignals() as signals, running(settings, home, ready_file=ready_file) as process:
        on_ready(process.addresses)
        log.info("received %s: shutting down after running calls finish", signals.wait().name)


@contextmanager
def running(settings: Settings, home: Path, *, ready_file: Path | None = None) -> Iterator[Process]:
    """Run the whole process, and others if it has any, for the duration of the block."""
    if settings.server.processes > 1:
        for name in stores_in_memory(settings, home):
            raise InvalidArgument(
                f"server.processes is {settings.server.processes}, but {name} is in memory, which processes cannot share: "
                "use a store on disk, or one process",
                key="processes.store.memory",
            )
    with ExitStack() as parts:
        observers = parts.enter_context(observing(settings))
        stores = parts.enter_context(stores_of(settings, home, metrics=observers.metrics))
        parts.enter_context(watching_format(stores))
        secrets = secrets_of(settings)
        seed(stores, settings, secrets, home)
        measure_usage(observers.metrics, stores, settings.metrics.storage)
        warehouse = warehouse_of(settings)
        observe_caches(observers.metrics, {"metadata.files": warehouse.cache.stats})
        sweeps = gc_sweeps.sweeps(stores, secrets, settings.gc, warehouse=warehouse)
        sweeps.append(maintenance_sweep(settings, stores, warehouse))
        sweeps.append(quality_sweep(settings, stores))
        sweeps.append(profile_sweep(settings, stores, warehouse))
        parts.enter_context(collecting(stores.pointers, sweeps, GcMetrics(observers.metrics)))
        sources = source_access_of(settings, home)
        access, handles = access_of(settings, stores, secrets), handles_of(secrets, warehouse, sources)
        reconciler = reconciler_of(settings, secrets, warehouse, sources)
        addresses: dict[str, str] = {}
        large = optimizer_of(settings, stores, secrets, lambda: rest_address(addresses))
        worker = parts.enter_context(working(settings, stores, reconciler, observers.metrics, large))
        parts.enter_context(delivering(settings, stores, secrets, sources, observers.metrics))
        measure_queue(observers.metrics, JobQueue(stores))
        services, airport = call_services(
            parts, settings, access, observers, stores, secrets, warehouse, handles, reconciler, addresses
        )
        vending = vending_of(settings, lambda: signing_key(stores, secrets), warehouse.properties)
        rest = iceberg_rest(
            access,
            observers,
            handles,
            settings.server.http,
            vending=vending,
            tokens=issuer(settings, access.authenticator),
        )
        parts.callback(rest.close)
        readiness = Readiness(checks_of(stores, worker))
        parts.callback(readiness.close)
        health = Health((*services.service_names, *airport.service_names), failed=readiness.failed)
        parts.callback(health.close)
        operators = Operators.of(access, settings.server.operator_networks)
        socket = parts.enter_context(socket_file())
        explorer = explorer_of(
            settings,
            socket,
            location=lambda: addresses["airport"],
            key=lambda: signing_key(stores, secrets),
            ended=EndedSessions(stores),
        )
        first = grpc_door(
            settings.server.grpc,
            services,
            airport,
            health,
            operators=operators,
            socket=socket,
            leads=settings.server.processes > 1,
        )
        others = CallProcesses(serving_calls, settings, home, first)
        web = web_app(
            iceberg=rest,
            explorer=explorer,
            metrics=lambda: observers.metrics.prometheus_text(others.metrics()),
            not_ready=health.not_ready,
            operators=operators,
        )
        http = HttpDoor(guarded(web, settings), settings.server.http, drain_s=settings.server.grpc.drain_seconds)
        doors: list[Door] = [first, others, http]
        addresses.update(parts.enter_context(opened(doors)))
        parts.enter_context(health.serving())
        parts.enter_context(announced(ready_file, addresses))
        log.info("ready: %s", ", ".join(f"{name} at {address}" for name, address in addresses.items()))
        yield Process(addresses, stores, secrets, observers)


@contextmanager
def serving_calls(settings: Settings, home: Path) -> Iterator[Callable[[], Sequence[Family]]]:
    """Serve gRPC calls for the duration of the block, on a port that another process leads; yields its metrics."""
    with ExitStack() as parts:
        observers = parts.enter_context(observing(settings))
        stores = parts.enter_context(stores_of(settings, home, metrics=observers.metrics))
        parts.enter_context(watching_format(stores))
        secrets = secrets_of(settings)
        warehouse = warehouse_of(settings)
        observe_caches(observers.metrics, {"metadata.files": warehouse.cache.stats})
        sources = source_access_of(settings, home)
        access, handles = access_of(settings, stores, secrets), handles_of(secrets, warehouse, sources)
        reconciler = reconciler_of(settings, secrets, warehouse, sources)
        addresses: dict[str, str] = {}
        services, airport = call_services(
            parts, settings, access, observers, stores, secrets, warehouse, handles, reconciler, addresses
        )
        readiness = Readiness(checks_of(stores, None))
        parts.callback(readiness.close)
        health = Health((*services.service_names, *airport.service_names), failed=readiness.failed)
        parts.callback(health.close)
        operators = Operators.of(access, settings.server.operator_networks)
        door = grpc_door(settings.server.grpc, services, airport, health, operators=operators)
        addresses.update(parts.enter_context(opened([door])))
        parts.enter_context(health.serving())
        yield observers.metrics.collect


def call_services(
    parts: ExitStack,
    settings: Settings,
    access: Access,
    observers: Observers,
    stores: Stores,
    secrets: SecretsStore,
    warehouse: Warehouse,
    handles: Handles,
    reconciler: Reconciler,
    addresses: Mapping[str, str],
) -> tuple[RpcDoor, AirportService]:
    """The services of the gRPC port: those of the metastore, and Airport. They end with `parts`.

    `addresses` has the address of Airport once the port is open.
    """
    queries = queries_of(settings.sql)
    parts.callback(queries.close)
    services = rpc_door(settings, access, reconciler, observers, warehouse, queries)
    parts.callback(services.close)
    spark = spark_queries_of(settings.sql.spark)
    if spark is not None:
        parts.callback(spark.close)
    airport = lake_over_airport(
        access, observers, stores, handles, secrets, queries, settings, spark, lambda: addresses["airport"]
    )
    parts.callback(airport.close)
    return services, airport


def rest_address(addresses: Mapping[str, str]) -> str:
    """The address of the Iceberg REST door. Raise `Unavailable` if it is not open yet."""
    if "http" not in addresses:
        raise Unavailable("the HTTP door is not open yet: try again", key="server.starting")
    return f"{addresses['http']}/iceberg"


def seed(stores: Stores, settings: Settings, secrets: SecretsStore, home: Path) -> None:
    """Create the initial content of a new store, and the demo data if configured."""
    seed_home(stores)
    if not settings.seed.enabled:
        return
    if settings.seed.mode == "iceberg":
        seed_iceberg(stores, warehouse_of(settings))
        seed_mirror(stores, home.resolve() / "examples", secrets=secrets, sync=settings.seed.sync.enabled)
    else:
        seed_demo(stores)


def access_of(settings: Settings, stores: Stores, secrets: SecretsStore | None = None) -> Access:
    """Authentication and authorization, the same for all servers. Without `secrets`, no access tokens are issued."""

    @lru_cache(REALMS)
    def realm_of(account_id: str) -> Realm:
        return Realm(
            stores,
            account_id,
            idempotency_ttl_s=settings.idempotency.ttl_seconds,
            events_s=settings.events.retention.total_seconds(),
        )

    made = authenticator(
        settings,
        AccountDirectory(stores),
        note_use=TokenUses(stores).note,
        key=None if secrets is None else partial(signing_key, stores, secrets),
    )
    return Access(
        lambda principal: realm_of(principal.account_id),
        made if secrets is None else with_jobs(settings, made, job_tokens(stores, secrets)),
        authorizer(settings),
        credential_headers(settings),
        Quotas(settings.quotas.caller, settings.quotas.account, pause_s=REFUSAL_S, own=partial(account_quotas, stores)),
        Lanes(credential_headers(settings)),
        MemoryBudget(memory_budget(settings.server)),
    )


def memory_budget(settings: Server) -> int:
    """The memory budget of the process in bytes; 0 is no limit."""
    if settings.memory_budget_bytes is not None:
        return settings.memory_budget_bytes
    return available_bytes() * 3 // 4 // settings.processes


def rpc_door(
    settings: Settings,
    access: Access,
    reconciler: Reconciler,
    observers: Observers,
    warehouse: Warehouse,
    queries: Queries,
) -> RpcDoor:
    """The metastore services."""
    planner = Planner(settings.metadata.hint.cache_max_weight)
    observe_caches(observers.metrics, {"metadata.hint": planner.cache_stats})
    return RpcDoor(
        access,
        observers,
        services=all_services(
            engine_catalogs(settings.system),
            query_rules=query_rules(settings.query),
            reconciler=reconciler,
            planner=planner,
            create_table=partial(managed.create_requested, warehouse=warehouse),
            policy_expressions=PolicyChecks(QueryEngine(queries)),
            staging=staging_area(warehouse, settings.server.grpc),
            maintenance=MaintenanceArea.of(warehouse, settings.gc.warehouse.min_age_ms, SourceTables(reconciler)),
            current_roles=current_roles(settings),
        ),
        disclosure=settings.errors,
        workers=settings.server.grpc.workers,
        opening_s=settings.server.grpc.opening_seconds,
        idle_s=settings.server.grpc.idle_seconds,
    )


def query_rules(settings: Query) -> QueryRules:
    """The limits of queries."""
    return QueryRules(
        default_ttl_s=settings.default_ttl_ms / 1000,
        grace_s=settings.ended_grace_ms / 1000,
        max_leases=settings.max_size,
    )


def engine_catalogs(settings: System) -> EngineCatalogs:
    """The system objects of engines, from the configured directory or the ones included in Skiway.

    Configured files are read at once, so that a broken one stops the start and not the first request for it.
    """
    files = SystemFiles(settings.objects_directory) if settings.objects_directory else SystemFiles()
    if settings.objects_directory:
        for kind in files.kinds():
            files.load(kind)
    return EngineCatalogs(files, max_kept=settings.graph.snapshot_cache_size)


def guarded(web: ASGIApp, settings: Settings) -> ASGIApp:
    """The web application; without authentication, closed to web pages of other sites."""
    if settings.auth.mode != "dev":
        return web
    return LocalOnly(web, allowed_hosts=settings.server.http.allowed_hosts)


def grpc_door(
    settings: Grpc,
    *services: GrpcService,
    operators: Operators | None = None,
    socket: Path | None = None,
    leads: bool = False,
) -> GrpcDoor:
    """The gRPC server. Clients address the metastore as `host:port` and Airport with a URL."""
    schemes = {"rpc": "", "airport": "grpc+tls://" if settings.tls.cert else "grpc://"}
    return GrpcDoor(schemes, services, settings, operators=operators, socket_file=socket, leads=leads)


@contextmanager
def collecting(pointers: PointerStore, sweeps: list[Sweep], metrics: GcMetrics) -> Iterator[None]:
    """Run garbage collection for the duration of the block; at its end, wait for the current page."""
    metrics.scheduled(sweeps)
    schedule, stop = Schedule(pointers, sweeps, observer=metrics), threading.Event()
    thread = threading.Thread(target=schedule.run, args=(stop,), name="gc", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(GC_STOP_S)
        if thread.is_alive():
            log.warning("garbage collection did not finish its page within %.0f s; abandoning it", GC_STOP_S)
