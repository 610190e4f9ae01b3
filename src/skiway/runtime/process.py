"""A server process: its parts are built from the settings, started in this order, and stopped in reverse order.

    observing      logs, metrics, traces, audit
    stores         pointers and blobs, with the initial content of a new store, and a watch of their format
    collecting     garbage collection, on a thread of its own
    working        reconcile jobs, on another thread, unless separate workers run them
    delivering     webhooks, on threads of their own
    doors          the gRPC and HTTP servers; at shutdown they let running calls finish
    health         SERVING while both servers accept calls
    ready file     exists while all of that is running
    explorer       its pages, which are imported last; the first page may wait for them

At shutdown, clients are turned away first, and the stores are closed last.
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
from skiway.errors import InvalidArgument, Unavailable
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.platform import EndedSessions
from skiway.request_path import Observers
from skiway.rest import RestApp, RestOptions
from skiway.runtime.authentication import issuer
from skiway.runtime.gc.schedule import Schedule, Sweep
from skiway.runtime.gc.sweeps import sweeps
from skiway.runtime.grpc.services import CallProcesses, grpc_services, serving_calls
from skiway.runtime.http.door import HttpDoor, LocalOnly, explorer_of, health_door, socket_file, web_app
from skiway.runtime.lake import functions_of, optimizer_of, vending_of
from skiway.runtime.lifecycle import Door, StopSignals, announced, end_soon, opened
from skiway.runtime.parts import Parts, opened_parts
from skiway.runtime.stores import stores_in_memory
from skiway.runtime.telemetry import GcMetrics, measure_queue, measure_usage
from skiway.runtime.workers import at_work, delivering
from skiway.security import SecretsStore
from skiway.spark_jobs.worker import Worker
from skiway.storage import PointerStore, Stores

GC_STOP_S: Final = 30.0

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
    end_soon()


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
    with ExitStack() as ends:
        parts = ends.enter_context(opened_parts(settings, home, seeded=True))
        stores, metrics = parts.stores, parts.observers.metrics
        measure_usage(metrics, stores, settings.metrics.storage)
        scheduled = sweeps(settings, stores, parts.secrets, warehouse=parts.warehouse)
        ends.enter_context(collecting(stores.pointers, scheduled, GcMetrics(metrics)))
        large = optimizer_of(settings, stores, parts.secrets, lambda: rest_address(parts.addresses))
        functions = functions_of(settings, stores, parts.secrets, lambda: airport_address(parts.addresses))
        worker: Worker | None = None
        if settings.reconciler.backend == "local":
            worker = ends.enter_context(at_work(settings, stores, parts.reconciler, metrics, large, functions))
        ends.enter_context(delivering(settings, stores, parts.secrets, parts.sources, metrics))
        measure_queue(metrics, JobQueue(stores))
        services = ends.enter_context(grpc_services(parts, worker))
        socket = ends.enter_context(socket_file())
        first = services.door(parts, socket_file=socket, leads=settings.server.processes > 1)
        others = CallProcesses(serving_calls, settings, home, first)
        rest = rest_of(parts)
        ends.callback(rest.close)
        explorer = explorer_of(
            settings,
            socket,
            location=lambda: parts.addresses["airport"],
            key=parts.signing_key,
            ended=EndedSessions(stores),
        )
        web = web_app(
            iceberg=rest,
            explorer=explorer,
            metrics=lambda: metrics.prometheus_text(others.metrics()),
            not_ready=services.health.not_ready,
            operators=parts.operators,
        )
        http = HttpDoor(guarded(web, settings), settings.server.http, drain_s=settings.server.grpc.drain_seconds)
        doors: list[Door] = [first, others, http]
        if settings.server.http.health_address is not None:
            doors.insert(0, health_door(settings.server.http, services.health.not_ready))
        parts.addresses.update(ends.enter_context(opened(doors)))
        ends.enter_context(services.health.serving())
        ends.enter_context(announced(ready_file, parts.addresses))
        ends.enter_context(explorer.making())
        log.info("ready: %s", ", ".join(f"{name} at {address}" for name, address in parts.addresses.items()))
        yield Process(parts.addresses, stores, parts.secrets, parts.observers)


def rest_of(parts: Parts) -> RestApp:
    """The Iceberg REST door."""
    settings, access = parts.settings, parts.access
    return RestApp(
        access,
        parts.observers,
        warehouse=parts.handles.warehouse,
        mirrors=lambda realm, table: parts.handles.open(realm, table, relist=True),
        vending=vending_of(settings, parts.signing_key, parts.warehouse.properties),
        tokens=issuer(settings, access.authenticator),
        options=RestOptions(body_s=settings.server.http.body_seconds),
    )


def rest_address(addresses: Mapping[str, str]) -> str:
    """The address of the Iceberg REST door. Raise `Unavailable` if it is not open yet."""
    if "http" not in addresses:
        raise Unavailable("the HTTP door is not open yet: try again", key="server.starting")
    return f"{addresses['http']}/iceberg"


def airport_address(addresses: Mapping[str, str]) -> str:
    """The address of Airport. Raise `Unavailable` if it is not open yet."""
    if "airport" not in addresses:
        raise Unavailable("the gRPC door is not open yet: try again", key="server.starting")
    return addresses["airport"]


def guarded(web: ASGIApp, settings: Settings) -> ASGIApp:
    """The web application; without authentication, closed to web pages of other sites."""
    if settings.auth.mode != "dev":
        return web
    return LocalOnly(web, allowed_hosts=settings.server.http.allowed_hosts)


@contextmanager
def collecting(pointers: PointerStore, scheduled: list[Sweep], metrics: GcMetrics) -> Iterator[None]:
    """Run garbage collection for the duration of the block; at its end, wait for the current page."""
    metrics.scheduled(scheduled)
    schedule, stop = Schedule(pointers, scheduled, observer=metrics), threading.Event()
    thread = threading.Thread(target=schedule.run, args=(stop,), name="gc", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(GC_STOP_S)
        if thread.is_alive():
            log.warning("garbage collection did not finish its page within %.0f s; abandoning it", GC_STOP_S)
