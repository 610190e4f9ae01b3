"""The services of the gRPC port: the metastore, Airport, and health; and the processes that serve them.

Python runs on one core per process. With `server.processes`, the first process starts others that listen on the same port;
the operating system distributes connections among them. They share the stores and serve calls only: HTTP, jobs, garbage
collection and webhooks stay in the first process, which starts a new one if one of them ends, and stops them all when it
stops. If it is killed, the others notice that and stop by themselves.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

from skiway.airport import AirportService
from skiway.config import Settings
from skiway.config.metastore import Query, System
from skiway.errors import Unavailable
from skiway.lake.policies import PolicyChecks
from skiway.metastore import managed
from skiway.metastore.planning.planner import Planner
from skiway.metastore.queries.leases import QueryRules
from skiway.metastore.search import SearchIndexes
from skiway.metastore.system.objects import EngineCatalogs, SystemFiles
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.table_maintenance.api import SourceTables
from skiway.rpc import Door as RpcDoor
from skiway.rpc.services import all_services
from skiway.runtime.authentication import current_roles
from skiway.runtime.grpc.door import CANCEL_S, GrpcDoor, Health
from skiway.runtime.lake import lake_over_airport, queries_of, spark_queries_of, staging_area
from skiway.runtime.lifecycle import Readiness, checks_of, opened
from skiway.runtime.parts import Parts, opened_parts
from skiway.sandbox.queries import Queries
from skiway.spark_jobs.worker import Worker
from skiway.sql import QueryEngine
from skiway.telemetry.definitions import Family
from skiway.telemetry.metrics import observe_caches


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
            transport=parts.settings.server.transport,
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


START_S: Final = 60.0
ANSWER_S: Final = 2.0
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 30.0

METRICS: Final = "metrics"
STOP: Final = "stop"

log = logging.getLogger("skiway.runtime")

Serving = Callable[[Settings, Path], AbstractContextManager[Callable[[], Sequence[Family]]]]
"""Serves calls for the duration of the block, and yields a function that collects the metrics of the process."""


def run_process(serving: Serving, settings: Settings, home: Path, control: Connection) -> None:
    """The main function of an additional process: serve calls until the first process says so, or has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the first one decides
    signal.signal(signal.SIGTERM, _stop)
    # An EOFError or BrokenPipeError means that the first process has ended.
    with suppress(_Stopped, EOFError, BrokenPipeError), serving(settings, home) as collect:
        control.send(True)
        while control.recv() == METRICS:
            control.send(collect())


class _Stopped(Exception):
    """Somebody has stopped this process."""


def _stop(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


@dataclass(slots=True)
class _Member:
    """An additional process."""

    number: int
    process: SpawnProcess
    control: Connection
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held by the thread that waits for an answer."""

    def tell(self, message: str) -> None:
        with self.lock, suppress(OSError):  # it has ended
            self.control.send(message)

    def metrics(self) -> Sequence[Family]:
        with self.lock, suppress(OSError, EOFError):
            while self.control.poll():  # an answer that came too late
                self.control.recv()
            self.control.send(METRICS)
            if self.control.poll(ANSWER_S):
                families: Sequence[Family] = self.control.recv()
                return families
        return ()


class CallProcesses:
    """The additional processes of a server, as one of its doors; `first` is its gRPC server, which must start before."""

    def __init__(self, serving: Serving, settings: Settings, home: Path, first: GrpcDoor) -> None:
        self._serving, self._settings, self._home, self._first = serving, settings, home, first
        self._spawning = multiprocessing.get_context("spawn")
        self._members: list[_Member] = []
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="call-processes", daemon=True)

    def start(self) -> Mapping[str, str]:
        """Start all processes, and wait until they accept calls. They have no addresses of their own."""
        numbers = range(1, self._settings.server.processes)
        self._members = [self._started(number) for number in numbers]
        try:
            for member in self._members:
                self._wait_until_ready(member)
        except BaseException:
            self._end(0)
            raise
        if self._members:
            self._watching.start()
        return {}

    def drain(self) -> None:
        """Tell all processes to stop accepting calls; returns immediately."""
        self._stopping.set()
        with self._lock:
            for member in self._members:
                member.tell(STOP)

    def close(self) -> None:
        """Wait for the running calls of all processes, and kill those that exceed the drain period."""
        self._end(self._settings.server.grpc.drain_seconds + 2 * CANCEL_S)

    def metrics(self) -> Mapping[str, Sequence[Family]]:
        """The metrics of each process, by its number. A process that does not answer in time is missing."""
        with self._lock:
            members = list(self._members)
        return {str(member.number): found for member in members if (found := member.metrics())}

    def _started(self, number: int) -> _Member:
        ours, theirs = self._spawning.Pipe()
        grpc = replace(self._settings.server.grpc, address=self._first.address, share_port=True)
        settings = replace(self._settings, server=replace(self._settings.server, grpc=grpc))
        process = self._spawning.Process(
            target=run_process, args=(self._serving, settings, self._home, theirs), name=f"calls-{number}"
        )
        process.start()
        theirs.close()
        return _Member(number, process, ours)

    def _wait_until_ready(self, member: _Member) -> None:
        found = wait([member.control, member.process.sentinel], START_S)
        try:
            if member.control in found and member.control.recv():
                return
        except EOFError:
            pass
        raise Unavailable(f"process {member.number} of server.processes did not start: see the log")

    def _watch(self) -> None:
        """Start a new process in place of one that has ended: after a pause, which grows with every failure."""
        pause_s = FIRST_PAUSE_S
        while not self._stopping.is_set():
            with self._lock:
                ended = [member for member in self._members if not member.process.is_alive()]
            if not ended:
                pause_s = FIRST_PAUSE_S
                wait([member.process.sentinel for member in self._members], 0.5)
                continue
            for member in ended:
                code = member.process.exitcode
                log.error("process %d ended with code %s: starting a new one", member.number, code)
            if self._stopping.wait(pause_s):
                return
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
            for member in ended:
                self._replace(member)

    def _replace(self, member: _Member) -> None:
        new = self._started(member.number)
        try:
            self._wait_until_ready(new)
        except Unavailable as error:
            log.error("%s", error)
            _kill([new])
            return
        member.control.close()
        with self._lock:
            self._members[self._members.index(member)] = new
            if self._stopping.is_set():
                new.tell(STOP)

    def _end(self, within_s: float) -> None:
        if self._watching.is_alive():
            self._watching.join(START_S)
        with self._lock:
            members = list(self._members)
        for member in members:
            member.process.join(within_s)
        slow = [member for member in members if member.process.is_alive()]
        if slow and within_s:
            log.warning("%d processes did not end in time; killing them", len(slow))
        _kill(slow)


def _kill(members: Iterable[_Member]) -> None:
    for member in members:
        member.process.kill()
        member.process.join()
        member.control.close()
