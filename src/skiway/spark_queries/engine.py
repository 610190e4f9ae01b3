"""Runs queries and Python functions of pipelines on Spark for a server, each in processes of its own.

At most a few queries run at a time, each for a limited time and number of rows.

The code of a function can do everything that its processes may do. They know no secrets but a token with which the tables of the
function can be read while the job runs. They send the rows of the result, and the worker writes and commits them.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import LimitExceeded, SkiwayError
from skiway.formats import TableName
from skiway.foundation.resources import schema_name
from skiway.metastore.ingest.rows import Target, Written, write_rows
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.models.statements import QueryResult
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.reconcile.outcomes import Control
from skiway.security import LeasedJob
from skiway.spark_queries.process import QueryProcess
from skiway.telemetry.logs import conceal, current_log

WAITING_S: Final = 60.0
"""How long a query whose columns are known waits for its client to read the rows."""

_WATCH_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class SparkLimits:
    """What queries may use: how many run at a time, and for each of them seconds, rows, and bytes of memory."""

    queries: int = 2
    seconds: float = 600.0
    rows: int = 10_000_000
    memory_bytes: int = 4_000_000_000


@dataclass(frozen=True, slots=True)
class SparkPlacement:
    """Where queries run: the master and the settings of Spark, and the command that starts the Python of their processes."""

    master: str = "local[2]"
    conf: Mapping[str, str] = field(default_factory=dict)
    command: Sequence[str] = ()
    confined: bool = True
    protected: bool = True

    def process(self, request: Mapping[str, Any], *, memory_bytes: int, seconds: float, **more: Any) -> QueryProcess:
        """Start the process of a query or function."""
        place = {
            "master": self.master,
            "conf": dict(self.conf),
            "confined": self.confined,
            "protected": self.protected,
        }
        return QueryProcess(
            {**request, **place}, command=self.command, memory_bytes=memory_bytes, seconds=seconds, **more
        )


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """A query: SQL over views, the options of the data source `airport` for each view, and the token that reads them."""

    account_id: str
    sql: str
    tables: Mapping[str, Mapping[str, str]]
    token: str = field(repr=False)


class SparkEngine:
    """Runs queries. Close it at the end, which ends them.

    A client asks for the columns of a query before it reads the rows. The process that has found the columns waits for that
    under a key, which the caller of these methods chooses.
    """

    def __init__(self, placement: SparkPlacement, limits: SparkLimits) -> None:
        self._placement, self._limits = placement, limits
        self._lock = threading.Lock()
        self._processes: dict[QueryProcess, str] = {}
        self._waiting: dict[Hashable, tuple[QueryProcess, float]] = {}
        self._watcher: threading.Thread | None = None

    def columns(self, key: Hashable, query: Callable[[], SparkQuery]) -> pa.Schema:
        """The columns of a query. Its process then waits for `result`."""
        with self._lock:
            waiting = self._waiting.get(key)
        if waiting is not None:
            return waiting[0].columns()
        process = self._start(query())
        try:
            found = process.columns()
        except BaseException:
            self._end(process)
            raise
        with self._lock:
            replaced = self._waiting.pop(key, None)
            self._waiting[key] = process, time.monotonic() + WAITING_S
        if replaced is not None:  # the same statement was planned twice at once
            self._end(replaced[0])
        return found

    @contextmanager
    def result(
        self, key: Hashable, query: Callable[[], SparkQuery], *, when_ended: Callable[[Callable[[], None]], None]
    ) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
        """The columns and rows of a query, within the block. `when_ended` is called with what cancels it."""
        with self._lock:
            waiting = self._waiting.pop(key, None)
        process = self._start(query()) if waiting is None else waiting[0]
        try:
            when_ended(process.cancel)
            columns = process.columns()
            yield columns, process.rows(self._limits.rows)
        finally:
            self._end(process)

    def close(self) -> None:
        """End all queries."""
        with self._lock:
            running = list(self._processes)
        for process in running:
            self._end(process)

    @property
    def running(self) -> int:
        """How many queries have processes."""
        with self._lock:
            return len(self._processes)

    def _start(self, query: SparkQuery) -> QueryProcess:
        """Start the process of a query. One that only waits makes room for it."""
        limits = self._limits
        with self._lock:
            accounts = self._processes.values()
            if len(accounts) >= limits.queries:
                may_go = list(self._waiting)
            elif sum(account == query.account_id for account in accounts) >= max(1, limits.queries - 1):
                may_go = [key for key, (each, _) in self._waiting.items() if self._processes[each] == query.account_id]
            else:
                may_go = []
            evicted = self._waiting.pop(may_go[0])[0] if may_go else None
        if evicted is not None:
            self._end(evicted)
        with self._lock:
            own = sum(account == query.account_id for account in self._processes.values())
            if len(self._processes) >= limits.queries or own >= max(1, limits.queries - 1):
                raise LimitExceeded(
                    f"{len(self._processes)} queries run on Spark, {own} of them of this account, and the server allows "
                    f"{limits.queries}, and {max(1, limits.queries - 1)} for an account: try again later",
                    key="spark.busy",
                )
            tables = {view: dict(options) for view, options in query.tables.items()}
            process = self._placement.process(
                {"sql": query.sql, "tables": tables, "token": query.token},
                memory_bytes=limits.memory_bytes,
                seconds=limits.seconds,
            )
            self._processes[process] = query.account_id
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="spark-queries", daemon=True)
                self._watcher.start()
        return process

    def _end(self, process: QueryProcess) -> None:
        process.close()
        with self._lock:
            self._processes.pop(process, None)

    def _watch(self) -> None:
        """End queries that take too long, or wait for a client that is gone; until there is none."""
        while True:
            time.sleep(_WATCH_S)
            now = time.monotonic()
            with self._lock:
                if not self._processes:
                    self._watcher = None
                    return
                late = [each for each in self._processes if now >= each.deadline]
                unread = [key for key, (_, until) in self._waiting.items() if now >= until]
                abandoned = [self._waiting.pop(key)[0] for key in unread]
            for process in late:
                process.cancel(late=True)
            for process in abandoned:
                self._end(process)


@dataclass(frozen=True, slots=True)
class SparkFunctions:
    """How functions run: where, within which limits, and how they reach the server.

    `token` returns one that reads tables, given the job and the ids of the tables.
    """

    placement: SparkPlacement
    location: Callable[[], str]
    token: Callable[[LeasedJob, Sequence[str]], str] = field(repr=False)
    seconds: float = 3600.0
    memory_bytes: int = 4_000_000_000
    root_certificates: str = ""

    def for_job(self, job: LeasedJob) -> FunctionsOfJob:
        """What runs the functions of a job."""
        return FunctionsOfJob(self, job)


@dataclass(frozen=True, slots=True)
class FunctionsOfJob:
    """Runs the functions of one job."""

    spark: SparkFunctions
    job: LeasedJob

    @contextmanager
    def result(
        self, function: PythonFunction, inputs: Mapping[TableName, Input], control: Control
    ) -> Iterator[QueryResult]:
        """The result of a function. Its processes end with the block, and when `control` says that the job must stop."""
        spark, log = self.spark, current_log()
        process = spark.placement.process(
            self._request(function, inputs),
            memory_bytes=spark.memory_bytes,
            seconds=spark.seconds,
            noun="function",
            section="pipelines.python",
            output="the log of the job",
            on_line=(lambda _: None) if log is None else log.write,
        )
        ended = threading.Event()
        watcher = threading.Thread(
            target=_watch_function, args=(process, control, ended), name="spark-function", daemon=True
        )
        watcher.start()
        try:
            yield FunctionResult(process)
        except SkiwayError:
            control.check()  # a process that was stopped for this reason has not failed
            raise
        finally:
            ended.set()
            watcher.join()
            process.close()

    def _request(self, function: PythonFunction, inputs: Mapping[TableName, Input]) -> dict[str, Any]:
        views = {name: f"input_{number}" for number, name in enumerate(inputs)}
        token = self.spark.token(self.job, [each.state.table for each in inputs.values()])
        conceal(token)
        return {
            "python": {
                "file": function.file,
                "source": function.source,
                "table": function.table,
                "reads": {written: views[name] for written, name in function.tables.items()},
            },
            "tables": {views[name]: self._options(read) for name, read in inputs.items() if read.snapshot is not None},
            "empty": {views[name]: _columns(read) for name, read in inputs.items() if read.snapshot is None},
            "token": token,
        }

    def _options(self, read: Input) -> dict[str, str]:
        """The options of the data source `airport` that read an input in the snapshot that the run has seen."""
        catalog, *path, table = read.path
        options = {
            "location": f"{self.spark.location().rstrip('/')}/{quote(catalog, safe='')}",
            "table": f"{identifier(schema_name(path))}.{identifier(table)}",
            "versionAsOf": str(read.state.snapshot),
        }
        certificates = self.spark.root_certificates
        return options | ({"rootCertificates": certificates} if certificates else {})


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """The rows of a function, which its process computes when they are read."""

    process: QueryProcess

    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        return pa.schema([pa.field(each.name, each.type) for each in self.process.columns()])

    def write(self, target: Target) -> Written:
        """Read the rows from the process, and write them."""
        return write_rows(target, self.process.rows())


def _columns(read: Input) -> str:
    """The columns of a table without rows, as text."""
    plain = pa.schema([pa.field(each.name, each.type) for each in read.columns])
    return base64.b64encode(plain.serialize()).decode()


def _watch_function(process: QueryProcess, control: Control, ended: threading.Event) -> None:
    """End the process when its time is over, or the job must stop."""
    while not ended.wait(_WATCH_S):
        if time.monotonic() >= process.deadline:
            process.cancel(late=True)
        elif control.must_stop():
            process.cancel()
