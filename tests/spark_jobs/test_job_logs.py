"""The log of a job: what its threads log, and what Spark's Java process logs for it."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import Mock

import pytest

from metastore.resource_factory import ResourceFactory
from metastore.upstreams import SECRETS, connector
from skiway.errors import Cancelled, InvalidArgument, Unavailable
from skiway.metastore import connectors, jobs
from skiway.metastore.connectors.credentials import credentials
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.model import v1
from skiway.spark_jobs import interruption, java_output
from skiway.spark_jobs import worker as worker_module
from skiway.spark_jobs.interruption import interruptible, joined, session_of_job
from skiway.spark_jobs.java_output import GRACE_S, SparkUses, log_output
from skiway.spark_jobs.optimizer import SparkOptimizer
from skiway.spark_jobs.tasks import SparkDistribution
from skiway.spark_jobs.worker import Worker
from skiway.telemetry.logs import CollectedLog, collecting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Run = Callable[[v1.Job, Control], Outcome]

RULES = JobRules(max_attempts=2, base_backoff_s=0.0, max_backoff_s=0.0)
log = logging.getLogger("skiway.test")


def triggered(live_lake: ResourceFactory, name: str = "files", **more: object) -> str:
    made = connector(live_lake, "/nowhere", name=name, **more)
    return connectors.trigger(live_lake.home, v1.TriggerReconcileRequest(connector_id=made.resource_id)).job_id


def worked(live_lake: ResourceFactory, run: Run) -> None:
    """Run a job once."""
    assert Worker(JobQueue(live_lake.stores, rules=RULES), run, name="w").work_once()


def log_of(live_lake: ResourceFactory, job_id: str) -> str:
    return jobs.get_log(live_lake.home, v1.GetReconcileJobLogRequest(job_id=job_id)).text


def state_of(live_lake: ResourceFactory, job_id: str) -> str:
    job = jobs.get(live_lake.home, v1.GetReconcileJobRequest(job_id=job_id)).job
    return v1.JobState.Name(job.state).removeprefix("JS_").lower()


# --- workers ----------------------------------------------------------------------------------------------------------


def test_succeeded_job_has_its_log(live_lake: ResourceFactory) -> None:
    job_id = triggered(live_lake)

    def run(_job: v1.Job, _control: Control) -> Outcome:
        log.warning("half of it")
        return Outcome(scanned=3, changed=1, failures={"s.t": "it is corrupt" + "!" * 2000}, note="as planned")

    worked(live_lake, run)
    first, middle, *summary = log_of(live_lake, job_id).splitlines()
    assert first.startswith("--- attempt 1 on w, 20")
    assert middle.endswith("WARNING skiway.test  half of it")
    assert summary == ["ended: 3 scanned, 1 changed, 1 failed", "  as planned", "  s.t: it is corrupt" + "!" * 2000]


@pytest.mark.parametrize(
    ("error", "state", "text"),
    [
        (InvalidArgument("no such column"), "failed", "InvalidArgument: no such column"),
        (Unavailable("try again"), "queued", "Unavailable: try again"),
        (Cancelled("it stops", key="job.cancelled"), "cancelled", "stopped: it stops"),
        (Cancelled("it stops", key="job.stopping"), "queued", "stopped: it stops"),
        (ValueError("a bug"), "queued", "ValueError: a bug"),
    ],
)
def test_log_is_kept_however_the_attempt_ends(
    live_lake: ResourceFactory, error: Exception, state: str, text: str
) -> None:
    job_id = triggered(live_lake)

    def run(_job: v1.Job, _control: Control) -> Outcome:
        log.warning("begun")
        raise error

    worked(live_lake, run)
    assert state_of(live_lake, job_id) == state
    assert "begun" in log_of(live_lake, job_id)
    assert text in log_of(live_lake, job_id)


def test_cause_of_a_failure_is_in_the_log(live_lake: ResourceFactory) -> None:
    job_id = triggered(live_lake)

    def run(_job: v1.Job, _control: Control) -> Outcome:
        raise InvalidArgument("cannot be read") from OSError("disk full")

    worked(live_lake, run)
    assert "OSError: disk full" in log_of(live_lake, job_id)


def test_retried_job_has_the_logs_of_all_attempts(live_lake: ResourceFactory) -> None:
    job_id = triggered(live_lake)
    for _ in range(2):
        worked(live_lake, lambda *_: Outcome(1, 0, {"t": "busy"}, transient=True))
    found = log_of(live_lake, job_id)
    assert ("--- attempt 1 " in found, "--- attempt 2 " in found, found.count("  t: busy")) == (True, True, 2)


def test_credentials_of_the_connector_are_masked(live_lake: ResourceFactory) -> None:
    given = v1.ConnectorCredentials(
        client=v1.ClientCredentials(endpoint="https://sso.example.com", client_id="lake", client_secret="swordfish"),
        properties={"jdbc.password": "opensesame", "jdbc.user": "ada-l"},
        headers={"x-anything": "headervalue"},
    )
    job_id = triggered(live_lake, auth=v1.ConnectorAuthSpec(scheme="oauth2", credentials=given))

    def run(job: v1.Job, _control: Control) -> Outcome:
        (connector,) = connectors.list_(live_lake.home, v1.ListConnectorsRequest()).connectors
        assert credentials(live_lake.home, SECRETS, connector) == given
        log.warning("swordfish of lake and ada-l at https://sso.example.com")
        raise InvalidArgument("opensesame, headervalue")

    worked(live_lake, run)
    found = log_of(live_lake, job_id)
    for secret in ("swordfish", "opensesame", "headervalue"):
        assert secret not in found
    assert "**** of lake and ada-l at https://sso.example.com" in found


def test_token_of_an_optimization_is_masked() -> None:
    def broken() -> SparkSession:
        raise RuntimeError("refused: swordfish")

    optimizer = SparkOptimizer(broken, lambda: "http://127.0.0.1:1", token=lambda *_: "swordfish")
    table = cast(Any, SimpleNamespace(table=v1.Table(), id="t"))
    with collecting(CollectedLog()) as found:
        try:
            optimizer.optimize(table, ["lake", "s", "t"], cast(Any, None), job=cast(Any, None), control=Control())
        except RuntimeError:
            log.exception("it failed")
    assert "RuntimeError: refused: ****" in found.text
    assert "swordfish" not in found.text


def test_jobs_that_run_at_once_have_separate_logs(live_lake: ResourceFactory) -> None:
    ids = [triggered(live_lake, name) for name in ("one", "two")]
    together = threading.Barrier(2, timeout=200)

    def run(job: v1.Job, _control: Control) -> Outcome:
        together.wait()
        log.warning("this is %s", job.job_id)
        together.wait()
        return Outcome()

    threads = [threading.Thread(target=worked, args=(live_lake, run)) for _ in ids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for own, other in (ids, reversed(ids)):
        assert f"this is {own}" in log_of(live_lake, own)
        assert other not in log_of(live_lake, own)


def test_log_that_cannot_be_kept_does_not_fail_the_job(
    live_lake: ResourceFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise Unavailable("the store is full")

    monkeypatch.setattr(worker_module, "keep_log", broken)
    job_id = triggered(live_lake)
    worked(live_lake, lambda *_: Outcome())
    assert state_of(live_lake, job_id) == "succeeded"
    assert f"the log of job {job_id} was not kept: the store is full" in caplog.text


# --- Spark ------------------------------------------------------------------------------------------------------------


class Moments:
    """A clock that the test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_message_belongs_to_the_only_job_on_spark() -> None:
    uses, one = SparkUses(), CollectedLog("a1")
    assert uses.owner() is None
    uses.begin("one", one)
    uses.begin("one", one)
    assert uses.owner() is one
    uses.end("one")
    assert uses.owner() is None


def test_message_belongs_to_no_job_while_several_use_spark() -> None:
    uses, one = SparkUses(), CollectedLog("a1")
    uses.begin("one", one)
    uses.begin("two", CollectedLog("a1"))
    assert uses.owner() is None
    uses.end("two")
    assert uses.owner() is one


def test_message_belongs_to_no_job_shortly_after_another_account_used_spark() -> None:
    clock = Moments()
    uses, one = SparkUses(clock), CollectedLog("a1")
    uses.begin("two", CollectedLog("a2"))
    uses.begin("one", one)
    uses.end("two")
    clock.now += GRACE_S - 1
    assert uses.owner() is None
    clock.now += 2
    assert uses.owner() is one


def test_message_belongs_to_no_job_if_something_else_uses_spark() -> None:
    uses = SparkUses()
    uses.begin(None, None)
    uses.begin("one", CollectedLog("a1"))
    assert uses.owner() is None


def test_use_of_spark_outside_of_jobs_has_no_known_end(uses: SparkUses) -> None:
    uses.begin("one", CollectedLog("a1"))
    session = Mock()
    session._jsparkSession._gateway_client = session._jvm._gateway_client  # its Java runs
    session_of_job(lambda: session)
    assert uses.owner() is None


@pytest.fixture
def uses(monkeypatch: pytest.MonkeyPatch) -> SparkUses:
    """As in a process in which nothing has used Spark yet."""
    fresh = SparkUses()
    monkeypatch.setattr(java_output, "SPARK_USES", fresh)
    monkeypatch.setattr(interruption, "SPARK_USES", fresh)
    return fresh


def test_output_of_java_is_in_the_log_of_its_job(uses: SparkUses) -> None:
    source, sink = os.pipe()
    os.write(
        sink, b"26/01/02 03:04:05 ERROR Executor: Exception in task\njava.io.IOException: password=hunter2\n\tat x\n"
    )
    os.close(sink)
    with collecting(CollectedLog("a1")) as found:
        uses.begin("one", found)
        reader = threading.Thread(target=log_output, args=(source,))
        reader.start()
        reader.join()
    assert "ERROR   spark.Executor  Exception in task" in found.text
    assert "java.io.IOException: password=****" in found.text
    assert "\tat x" in found.text


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_job_has_the_messages_of_its_tasks_on_spark(
    spark: SparkSession, live_lake: ResourceFactory, uses: SparkUses
) -> None:
    job_id = triggered(live_lake)

    def fail(_item: object) -> None:
        raise ValueError("the planted failure")

    def run(job: v1.Job, control: Control) -> Outcome:
        with interruptible(job.job_id, control):
            try:
                SparkDistribution(lambda: joined(spark))(fail, [1])
            finally:
                spark.sparkContext._jvm.java.lang.System.err.println("26/01/02 03:04:05 ERROR Test: the last words")
        raise AssertionError("the task did not fail")

    worked(live_lake, run)
    found = log_of(live_lake, job_id)
    spark_lines = [line for line in found.splitlines() if " spark." in line]
    assert any("ERROR   spark.Executor" in line for line in spark_lines), found
    assert "the planted failure" in found
    assert "spark.Test  the last words" in spark_lines[-1]
    assert "skiway-mark" not in found
    assert uses.owner() is None
