"""The Java process of Spark ends: jobs are retried, Spark starts again, and readiness shows it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from metastore.upstreams import parquet
from runtime.servers import environment, eventually, started
from skiway.client import Metastore
from skiway.doctor import Finding, ServerAddress, State, examine, server_checks
from skiway.errors import LimitExceeded, SkiwayError, Unavailable
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import Lease
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.model import v1
from skiway.spark_jobs import session as sessions
from skiway.spark_jobs.interruption import interruptible
from skiway.spark_jobs.java_output import SPARK_USES
from skiway.spark_jobs.worker import REVIVE_EVERY_S, RunningJob, Worker, jobs_of
from spark_jobs.conftest import QUICK
from spark_jobs.lakes import SPARK

PATIENCE_S = 300.0


def java_of(server: int) -> int | None:
    """The Java process below a server."""
    for place in Path("/proc").iterdir():
        try:
            parent = int(place.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            name = place.joinpath("comm").read_text().strip()
        except (OSError, ValueError):
            continue
        if parent == server and name == "java":
            return int(place.name)
    return None


class TestServer:
    pytestmark = SPARK

    def test_killed_java_is_replaced_and_the_server_is_ready_again(self, tmp_path: Path) -> None:
        """Jobs have two attempts, so the next job succeeds only if Spark was started again."""
        parquet(tmp_path / "data" / "people", "f", id=[1, 2, 3])
        with (
            started(tmp_path / "home", *QUICK, "--set", "profiles.in_process_bytes=0") as server,
            Metastore(server.address) as lake,
        ):
            lake.connectors.create("files", kind="parquet", uri=str(tmp_path / "data"), catalog="lake", namespace="raw")
            checks = server_checks(ServerAddress(server.address, server.addresses["http"]))

            def readiness() -> Finding:
                (finding,) = examine({"readiness": checks["readiness"]})
                return finding

            def synced(*, full: bool = False) -> Any:
                return lake.jobs.wait(
                    lake.connectors.sync("files", full_rescan=full), timeout_s=PATIENCE_S, every_s=0.1
                )

            assert synced().state == "succeeded"
            first = java_of(server.process.pid)
            assert first is not None
            os.kill(first, signal.SIGKILL)
            eventually(lambda: readiness().evidence.endswith("/readyz says: not ready: spark"), within_s=PATIENCE_S)
            eventually(lambda: readiness().state is State.ok, within_s=PATIENCE_S)
            assert java_of(server.process.pid) not in (None, first)
            assert synced(full=True).state == "succeeded"


JOBS = """
import os, signal, sys, threading
from contextlib import suppress
from skiway.errors import SkiwayError
from skiway.metastore.reconcile.outcomes import Control
from skiway.spark_jobs.interruption import interruptible
from skiway.spark_jobs.java_output import java_process
from skiway.spark_jobs.session import SparkPlace, has_spark_ended, spark_ui

place = SparkPlace("local[2]", conf={"spark.driver.memory": "600m"})
LATER = threading.Timer(3, lambda: os.kill(java_process()._process.pid, signal.SIGKILL))

def killed(spark):
    LATER.start()
    spark.range(10**13).selectExpr("sum(id % 7)").collect()

def greedy(spark):
    spark._jvm.java.nio.LongBuffer.allocate(2**30)

for name, work in {"killed": killed, "greedy": greedy}.items():
    try:
        with interruptible(name, Control()):
            with suppress(ValueError):
                work(place.session())
            raise AssertionError("the work succeeded")
    except SkiwayError as error:
        print(name, type(error).__name__, error.key, error.message, sep="|")
    print("after", has_spark_ended(), repr(spark_ui()), sep="|")
    with interruptible("next", Control()):
        spark = place.session()
        print("next", spark.range(5).count(), spark.range(4).mapInArrow(lambda b: b, "id long").toArrow().num_rows, sep="|")
"""


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(600)
def test_job_that_java_leaves_fails_by_its_end_and_the_next_one_has_a_new_spark() -> None:
    """A killed Java is worth a retry. A job that needs too much memory by itself is not."""
    done = subprocess.run(
        [sys.executable, "-c", JOBS], env=environment(), capture_output=True, text=True, timeout=500, check=False
    )
    assert done.stdout.splitlines() == [
        "killed|Unavailable|spark.ended|the Java process of Spark was killed by signal 9 (SIGKILL); it starts again",
        "after|True|''",
        "next|5|4",
        "greedy|LimitExceeded|memory.exceeded|the Java process of Spark ran out of memory (exit code 3): "
        "give it more with spark.driver.memory in reconciler.spark.conf",
        "after|True|''",
        "next|5|4",
    ], done.stderr[-3000:]


def test_progress_report_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise ConnectionRefusedError("py4j")

    monkeypatch.setattr(sessions, "_running_session", refuse)
    monkeypatch.setitem(sys.modules, "pyspark.sql", SimpleNamespace())
    queue: Any = SimpleNamespace(clock=None, rules=None)
    RunningJob(queue, Lease(v1.Job()), threading.Event()).report(Progress())


def test_heartbeat_goes_on_after_an_unexpected_error() -> None:
    def fail(*_: Any) -> Any:
        raise ValueError("unexpected")

    queue: Any = SimpleNamespace(renew=fail, progress=fail)
    running = RunningJob(queue, Lease(v1.Job(job_id="j")), threading.Event())
    running._renew(None)
    running._renew(Progress())
    assert not running._lost


def test_spark_that_does_not_start_is_not_tried_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[float] = []
    now = 1000.0
    monkeypatch.setattr("skiway.spark_jobs.worker.time", SimpleNamespace(monotonic=lambda: now))

    def revive() -> bool:
        tried.append(now)
        return len(tried) > 2

    queue: Any = SimpleNamespace()
    worker = Worker(queue, lambda *_: None, "w", revive=revive)  # type: ignore[arg-type,return-value]
    for _ in range(4):
        worker._revive()
        now += REVIVE_EVERY_S / 2
    assert tried == [1000.0, 1000.0 + REVIVE_EVERY_S]


def test_place_says_whether_spark_was_revived(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise Unavailable("no memory")

    monkeypatch.setattr(sessions, "session", fail)
    monkeypatch.setattr(sessions, "has_spark_ended", lambda: True)
    assert not sessions.SparkPlace("local[2]", fetch_jars=False).revive()
    assert sessions.SparkPlace(remote="sc://127.0.0.1:1").revive()
    monkeypatch.setattr(sessions, "has_spark_ended", lambda: False)
    assert sessions.SparkPlace("local[2]", fetch_jars=False).revive()


@pytest.mark.parametrize(
    ("users", "kind"),
    [pytest.param(1, LimitExceeded, id="alone"), pytest.param(2, Unavailable, id="another job may be the cause")],
)
def test_tasks_without_memory_are_not_errors_of_what_was_asked_for(
    users: int, kind: type[SkiwayError], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SPARK_USES, "count", lambda: users)

    def run(error: Exception) -> None:
        with interruptible("j", Control()):
            raise error

    for text in ("java.lang.OutOfMemoryError: Java heap space", "[UNABLE_TO_ACQUIRE_MEMORY] Unable to acquire 9 bytes"):
        with pytest.raises(kind) as raised:
            run(RuntimeError(text))
        assert raised.value.key == "memory.exceeded"
    with pytest.raises(RuntimeError, match="another error"):
        run(RuntimeError("another error"))


def test_job_with_failures_is_retried_if_spark_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures of single tables may have any text, so the end of Spark decides."""
    ends: list[SkiwayError | None] = [None, Unavailable("ended", key="spark.ended"), LimitExceeded("too little memory")]
    found = []
    for end in ends:
        monkeypatch.setattr("skiway.spark_jobs.worker.end_of_spark", lambda end=end: end)
        reconciler: Any = SimpleNamespace(job=lambda *_: Outcome(scanned=1, failures={"t": "internal error"}))
        run = jobs_of(lambda _: None, reconciler)  # type: ignore[arg-type,return-value]
        found.append(run(v1.Job(job_id="j"), Control()).transient)
    assert found == [False, True, False]
