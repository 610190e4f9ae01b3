"""Runs the Python functions of pipelines, each in processes of its own.

The code of a function can do everything that its processes may do. They know no secrets but a token with which the tables of the
function can be read while the job runs. They send the rows of the result, and the worker writes and commits them.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import SkiwayError
from skiway.formats import TableName
from skiway.metastore.ingest.rows import Target, Written, write_rows
from skiway.metastore.pipelines.inputs import Input
from skiway.metastore.pipelines.python_files import PythonFunction
from skiway.metastore.pipelines.refreshing import QueryResult
from skiway.metastore.reconcile.outcomes import Control
from skiway.schema_names import schema_name
from skiway.security import LeasedJob
from skiway.spark_queries.engine import SparkPlacement
from skiway.spark_queries.process import QueryProcess
from skiway.telemetry.job_logs import conceal, current_log

__all__ = ["FunctionsOfJob", "SparkFunctions"]

_WATCH_S: Final = 0.25


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
        process = QueryProcess(
            self._request(function, inputs),
            command=spark.placement.command,
            memory_bytes=spark.memory_bytes,
            seconds=spark.seconds,
            noun="function",
            section="pipelines.python",
            output="the log of the job",
            on_line=(lambda _: None) if log is None else log.write,
        )
        ended = threading.Event()
        watcher = threading.Thread(target=_watch, args=(process, control, ended), name="spark-function", daemon=True)
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
        placement = self.spark.placement
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
            "master": placement.master,
            "conf": dict(placement.conf),
            "confined": placement.confined,
            "protected": placement.protected,
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


def _watch(process: QueryProcess, control: Control, ended: threading.Event) -> None:
    """End the process when its time is over, or the job must stop."""
    while not ended.wait(_WATCH_S):
        if time.monotonic() >= process.deadline:
            process.cancel(late=True)
        elif control.must_stop():
            process.cancel()
