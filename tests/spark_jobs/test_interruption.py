"""Cancelled jobs stop their tasks on Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from metastore.managed_table_factory import ManagedTableFactory
from metastore.upstreams import SECRETS, connector, parquet
from skiway.errors import Cancelled, Unavailable
from skiway.metastore import connectors, jobs
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.metastore.reconcile.outcomes import Control
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.spark_jobs.interruption import interruptible, joined
from skiway.spark_jobs.profile import scans
from skiway.spark_jobs.profile.layouts import Layout
from skiway.spark_jobs.profile.scans import Scan, scan_in_tasks
from skiway.spark_jobs.tasks import SparkDistribution
from skiway.spark_jobs.worker import Worker, jobs_of
from spark_jobs.lakes import SPARK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

LONG_S = 60.0
"""How long tasks take that are not interrupted."""
SOON_S = 30.0


@dataclass
class Switch(Control):
    """Stops a run when it is turned."""

    turned: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        if self.turned.is_set():
            raise Cancelled("the job was cancelled", key="job.cancelled")


@pytest.fixture
def control() -> Switch:
    return Switch()


def active_jobs(spark: SparkSession) -> list[int]:
    return list(spark.sparkContext.statusTracker().getActiveJobsIds())


def when_running(spark: SparkSession, act: Callable[[], object]) -> threading.Thread:
    """Act as soon as Spark runs something."""

    def wait() -> None:
        while not active_jobs(spark):
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def sleep_long(_item: object) -> None:
    time.sleep(LONG_S)


def test_cancelled_job_ends_soon_and_its_tasks_stop(spark: SparkSession, control: Switch) -> None:
    waiting = when_running(spark, control.turned.set)
    started = time.monotonic()
    with pytest.raises(Cancelled), interruptible("one", control):
        SparkDistribution(lambda: joined(spark))(sleep_long, [1, 2])
    waiting.join()
    assert time.monotonic() - started < SOON_S
    assert active_jobs(spark) == []


def test_other_jobs_continue_and_the_thread_can_be_used_again(spark: SparkSession, control: Switch) -> None:
    results: list[object] = []

    def other() -> None:
        with interruptible("other", Control()):
            results.append(SparkDistribution(lambda: joined(spark))(lambda item: time.sleep(3) or item, [7]))

    thread = threading.Thread(target=other)
    thread.start()
    waiting = when_running(spark, control.turned.set)
    with pytest.raises(Cancelled), interruptible("two", control):
        SparkDistribution(lambda: joined(spark))(sleep_long, [1])
    waiting.join()
    thread.join()
    assert results == [[7]]
    assert SparkDistribution(lambda: spark)(lambda item: item, [1, 2]) == [1, 2]
    assert not spark.sparkContext.getJobTags()


def test_failure_without_a_cancellation_stays_a_failure(spark: SparkSession) -> None:
    def fail(_item: object) -> None:
        raise ValueError("broken")

    with pytest.raises(Unavailable), interruptible("three", Control()):
        SparkDistribution(lambda: joined(spark))(fail, [1])


def never_summarized(*_: object, **__: object) -> pa.RecordBatch:
    time.sleep(LONG_S)
    raise AssertionError("the file was summarized")


def test_interrupted_profile_does_not_count_files_as_unreadable(
    spark: SparkSession, control: Switch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scans, "_check_alive", lambda _spark: None)  # it would be interrupted, too, or not
    monkeypatch.setattr(scans, "summarized", never_summarized)
    files = pa.table({"path": ["/a", "/b"], "size_bytes": [1, 1], "row_count": [1, 1]})
    waiting = when_running(spark, control.turned.set)
    raised: list[Exception] = []

    def scan() -> None:
        try:
            scan_in_tasks(joined(spark), Scan(Layout((), ()), ()), files)
        except Exception as error:
            raised.append(error)
            raise

    with pytest.raises(Cancelled), interruptible("four", control):
        scan()
    waiting.join()
    assert [type(each) for each in raised] == [Cancelled]


# --- as a job of a worker ---------------------------------------------------------------------------------------------


@dataclass
class SlowCopies:
    """Copies whose tasks take long."""

    spark: Callable[[], SparkSession]
    step_bytes: int = 1 << 30

    @property
    def distribute(self) -> Callable[..., list[object]]:
        return lambda _function, items: SparkDistribution(self.spark)(sleep_long, items)


def test_copy_that_is_cancelled_stops_in_all_of_its_threads(
    spark: SparkSession, managed_lake: ManagedTableFactory, tmp_path: Path
) -> None:
    factory = managed_lake.factory
    for name in ("a", "b", "c"):
        parquet(tmp_path / "files" / name, "f", id=[1, 2])
    made = connector(
        factory,
        str(tmp_path / "files"),
        copy=v1.CopySettings(mode=v1.COM_APPEND),
        policy=v1.ConnectorPolicy(max_parallel=2),
    )
    job_id = connectors.trigger(factory.home, v1.TriggerReconcileRequest(connector_id=made.resource_id)).job_id
    reconciler = Reconciler(SECRETS, warehouse=managed_lake.warehouse, copies=SlowCopies(lambda: joined(spark)))
    queue = JobQueue(factory.stores, rules=JobRules(lease_s=3.0))
    worker = Worker(queue, jobs_of(lambda _account: factory.home, reconciler), name="w")

    def cancel() -> None:
        while len(active_jobs(spark)) < 2:  # one for each thread
            time.sleep(0.05)
        jobs.cancel(factory.home, v1.CancelReconcileJobRequest(job_id=job_id))

    waiting = when_running(spark, cancel)
    started = time.monotonic()
    assert worker.work_once()
    waiting.join()
    assert time.monotonic() - started < SOON_S
    assert jobs.get(factory.home, v1.GetReconcileJobRequest(job_id=job_id)).job.state == v1.JS_CANCELLED
    assert active_jobs(spark) == []
