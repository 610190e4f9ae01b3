"""One process: its parts made from the settings, started in order, and ended in the opposite order.

    observing      log, metrics, traces, audit
    stores         pointers and blobs; what a new store begins with
    collecting     gc, on a thread of its own
    working        jobs, on another, unless workers of their own do them
    doors          the ports; when told to stop, they let running calls finish
    health         SERVING while all doors are open
    ready file     there while all of that is true

What is started last ends first: first nobody is told to come any more, last the stores are closed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from starlette.types import ASGIApp

from skiway.config import Settings
from skiway.config.metastore import Query, System
from skiway.config.server import Grpc, Server
from skiway.config.server import Tls as TlsFiles
from skiway.metastore import Realm
from skiway.metastore.planning.planner import Planner
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.seeding.catalog import seed_demo, seed_home
from skiway.metastore.seeding.iceberg import seed_iceberg
from skiway.metastore.system.files import SystemFiles
from skiway.metastore.system.objects import EngineCatalogs
from skiway.pipeline.worker import SparkProfile
from skiway.requests import Access, Observers
from skiway.rpc import Disclosure
from skiway.rpc import Door as RpcDoor
from skiway.rpc.services import all_services
from skiway.runtime.authentication import AccountDirectory, authenticator, credential_headers, roles
from skiway.runtime.gc import sweeps as gc_sweeps
from skiway.runtime.gc.schedule import Schedule, Sweep
from skiway.runtime.grpc_door import GrpcDoor, GrpcOptions, GrpcService, Health, Tls
from skiway.runtime.http_door import HttpDoor, HttpOptions, web_app
from skiway.runtime.lake import handles_of, iceberg_rest, lake_over_airport, warehouse_of
from skiway.runtime.lifecycle import Door, StopSignals, announced, opened
from skiway.runtime.stores import secrets_of, stores_of
from skiway.runtime.telemetry import GcMetrics, measure_usage, observing
from skiway.runtime.workers import working
from skiway.security import PermissionAuthorizer, Principal, SecretsStore
from skiway.storage import PointerStore, Stores
from skiway.telemetry.metrics import store_calls

__all__ = ["Process", "running", "serve"]

GC_PATIENCE_S: Final = 30.0

log = logging.getLogger("skiway.runtime")


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs: where its doors are, by what is served there, and what it works with."""

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
    """Run until SIGTERM or SIGINT, then end in good order; a second signal ends at once. Main thread only."""
    with StopSignals() as signals, running(settings, home, ready_file=ready_file) as process:
        on_ready(process.addresses)
        log.info("told to stop by %s: running calls may finish", signals.wait().name)


@contextmanager
def running(settings: Settings, home: Path, *, ready_file: Path | None = None) -> Iterator[Process]:
    """All of it, running while inside."""
    with ExitStack() as parts:
        observers = parts.enter_context(observing(settings))
        stores = parts.enter_context(stores_of(settings, home, on_call=store_calls(observers.metrics)))
        secrets = secrets_of(settings)
        sow(stores, settings)
        measure_usage(observers.metrics, stores, settings.metrics.storage)
        sweeps = gc_sweeps.sweeps(stores, secrets, settings.gc, warehouse=warehouse_of(settings))
        parts.enter_context(collecting(stores.pointers, sweeps, GcMetrics(observers.metrics)))
        access, handles = access_of(settings, stores), handles_of(secrets, warehouse_of(settings))
        reconciler = Reconciler(secrets, SparkProfile(), warehouse=handles.warehouse)
        parts.enter_context(working(settings.reconciler, stores, reconciler))
        services = rpc_door(settings, access, reconciler, observers)
        airport = lake_over_airport(access, observers, stores, handles)
        parts.callback(airport.close)
        rest = iceberg_rest(access, observers, handles)
        parts.callback(rest.close)
        health = Health((*services.service_names, *airport.service_names))
        web = web_app(iceberg=rest, metrics=observers.metrics.prometheus_text, is_ready=lambda: health.is_serving)
        doors: list[Door] = [
            grpc_door(settings.server.grpc, services, airport, health),
            http_door(settings.server, web),
        ]
        addresses = parts.enter_context(opened(doors))
        parts.enter_context(health.serving())
        parts.enter_context(announced(ready_file, addresses))
        log.info("ready: %s", ", ".join(f"{name} at {address}" for name, address in addresses.items()))
        yield Process(addresses, stores, secrets, observers)


def sow(stores: Stores, settings: Settings) -> None:
    """What a new store begins with, and the demo where it is asked for."""
    seed_home(stores)
    if not settings.seed.enabled:
        return
    if settings.seed.mode == "iceberg":
        seed_iceberg(stores, warehouse_of(settings))
    else:
        seed_demo(stores)


def access_of(settings: Settings, stores: Stores) -> Access:
    """Who may enter, by whichever door."""

    def realm_of(principal: Principal) -> Realm:
        return Realm(stores, principal.account_id, idempotency_ttl_s=settings.idempotency.ttl_seconds)

    return Access(
        realm_of,
        authenticator(settings, AccountDirectory(stores.pointers)),
        PermissionAuthorizer(roles(settings)),
        credential_headers(settings),
    )


def rpc_door(settings: Settings, access: Access, reconciler: Reconciler, observers: Observers) -> RpcDoor:
    """The metastore's services."""
    return RpcDoor(
        access,
        observers,
        services=all_services(
            engine_catalogs(settings.system),
            query_rules=query_rules(settings.query),
            reconciler=reconciler,
            planner=Planner(settings.metadata.hint.cache_max_weight),
        ),
        disclosure=Disclosure(settings.errors.max_detail_chars, settings.errors.debug_details),
    )


def query_rules(settings: Query) -> QueryRules:
    """How long queries live, and how many there may be."""
    return QueryRules(
        default_ttl_s=settings.default_ttl_ms / 1000,
        grace_s=settings.ended_grace_ms / 1000,
        max_leases=settings.max_size,
    )


def engine_catalogs(settings: System) -> EngineCatalogs:
    """What engines bring along: as it comes with Skiway, or as described in a directory."""
    files = SystemFiles(settings.objects_directory) if settings.objects_directory else SystemFiles()
    return EngineCatalogs(files, max_kept=settings.graph.snapshot_cache_size)


def http_door(settings: Server, app: ASGIApp) -> HttpDoor:
    """The port of all that is served by HTTP."""
    options = HttpOptions(drain_s=settings.grpc.drain_seconds, tls=_tls(settings.http.tls))
    return HttpDoor(app, settings.http.address, options)


def _tls(settings: TlsFiles) -> Tls | None:
    return Tls(settings.cert, settings.key) if settings.cert and settings.key else None


def grpc_door(settings: Grpc, *services: GrpcService) -> GrpcDoor:
    """The port of all gRPC services."""
    tls = _tls(settings.tls)
    options = GrpcOptions(
        workers=settings.workers,
        share_port=settings.share_port,
        max_message_bytes=settings.max_message_bytes,
        reflection=settings.reflection,
        drain_s=settings.drain_seconds,
        tls=tls,
    )
    names = {"rpc": "", "airport": "grpc+tls://" if tls else "grpc://"}
    return GrpcDoor(names, services, settings.address, options)


@contextmanager
def collecting(pointers: PointerStore, sweeps: list[Sweep], metrics: GcMetrics) -> Iterator[None]:
    """Gc runs while inside; leaving waits for the page it is at."""
    metrics.scheduled(sweeps)
    schedule, stop = Schedule(pointers, sweeps, observer=metrics), threading.Event()
    thread = threading.Thread(target=schedule.run, args=(stop,), name="gc", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(GC_PATIENCE_S)
        if thread.is_alive():
            log.warning("gc has not come to the end of its page in %.0f s; leaving it behind", GC_PATIENCE_S)
