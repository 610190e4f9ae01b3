"""Workers: leases renewed during work, reported outcomes, and jobs taken over by other workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from metastore.resource_factory import ResourceFactory, behavior
from metastore.upstreams import SECRETS, connector, mirrored, parquet, snapshots_of
from skiway.errors import Cancelled, InvalidArgument, Unavailable
from skiway.metastore import connectors, jobs, statistics
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import JobQueue, JobRules
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.spark_jobs import worker as worker_module
from skiway.spark_jobs.worker import RunningJob, Worker, jobs_of
from skiway.storage import open_stores, utc_now

RULES = JobRules(max_attempts=3, base_backoff_s=0.01, max_backoff_s=0.02, lease_s=30.0)


def triggered(live_lake: ResourceFactory, uri: str = "/nowhere") -> str:
    made = connector(live_lake, uri)
    return connectors.trigger(live_lake.home, v1.TriggerReconcileRequest(connector_id=made.resource_id)).job_id


def job(live_lake: ResourceFactory, job_id: str) -> v1.Job:
    return jobs.get(live_lake.home, v1.GetReconcileJobRequest(job_id=job_id)).job


def worker(live_lake: ResourceFactory, run: Callable[[v1.Job, Control], Outcome], rules: JobRules = RULES) -> Worker:
    return Worker(JobQueue(live_lake.stores, rules=rules), run, name="w", poll_s=0.01)


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"
        time.sleep(0.005)


def raising(error: Exception) -> Callable[[v1.Job, Control], Outcome]:
    def run(job: v1.Job, control: Control) -> Outcome:
        raise error

    return run


def test_completed_job_has_succeeded(live_lake: ResourceFactory):
    job_id = triggered(live_lake)
    assert worker(live_lake, lambda *_: Outcome(3, 2)).work_once()
    done = job(live_lake, job_id)
    assert (done.state, done.tables_scanned, done.tables_changed, done.message) == (v1.JS_SUCCEEDED, 3, 2, "")
    assert not worker(live_lake, lambda *_: Outcome()).work_once()


@pytest.mark.parametrize(
    ("outcome", "state", "errors"),
    [
        (Outcome(3, 2, {"a": "broken"}), v1.JS_PARTIAL, 1),
        (Outcome(1, 0, {"a": "broken"}), v1.JS_FAILED, 1),
        (Outcome(3, 2, {"a": "no answer"}, transient=True), v1.JS_QUEUED, 1),
    ],
)
def test_table_failures_are_reported_and_retried_only_if_transient(live_lake: ResourceFactory, outcome, state, errors):
    job_id = triggered(live_lake)
    worker(live_lake, lambda *_: outcome).work_once()
    done = job(live_lake, job_id)
    assert (done.state, done.errors, done.table_errors[0].table) == (state, errors, "a")
    assert done.message == f"1 of {outcome.scanned} tables failed: a: {outcome.failures['a']}"


def test_last_attempt_with_transient_failures_of_some_tables_is_partial(live_lake: ResourceFactory):
    job_id = triggered(live_lake)
    outcome = Outcome(3, 2, {"a": "no answer"}, transient=True)
    with worker(live_lake, lambda *_: outcome):
        until(lambda: job(live_lake, job_id).state not in (v1.JS_QUEUED, v1.JS_RUNNING))
    assert (job(live_lake, job_id).state, job(live_lake, job_id).attempt) == (v1.JS_PARTIAL, 3)


@pytest.mark.parametrize(
    ("error", "state"), [(Unavailable("later"), v1.JS_QUEUED), (InvalidArgument("never"), v1.JS_FAILED)]
)
def test_failed_run_is_retried_only_if_transient(live_lake: ResourceFactory, error, state):
    job_id = triggered(live_lake)
    worker(live_lake, raising(error)).work_once()
    assert (job(live_lake, job_id).state, job(live_lake, job_id).message) == (state, str(error))


def test_internal_error_is_reported_without_details(live_lake: ResourceFactory):
    job_id = triggered(live_lake)
    worker(live_lake, raising(ZeroDivisionError("secret"))).work_once()
    assert "secret" not in job(live_lake, job_id).message
    assert job(live_lake, job_id).state == v1.JS_QUEUED


def test_job_fails_after_the_last_attempt(live_lake: ResourceFactory):
    job_id = triggered(live_lake)
    with worker(live_lake, raising(Unavailable("later"))):
        until(lambda: job(live_lake, job_id).state == v1.JS_FAILED)
    assert job(live_lake, job_id).attempt == 3


def waiting(begun: threading.Event) -> Callable[[v1.Job, Control], Outcome]:
    """Works until it must stop."""

    def run(job: v1.Job, control: Control) -> Outcome:
        begun.set()
        while True:
            control.check()
            time.sleep(0.005)

    return run


def test_lease_is_renewed_during_the_work(live_lake: ResourceFactory):
    job_id, begun = triggered(live_lake), threading.Event()
    quick = JobRules(lease_s=0.6)
    with worker(live_lake, waiting(begun), quick):
        begun.wait(200)
        first = job(live_lake, job_id).lease_expires_at.ToDatetime(UTC)
        until(lambda: job(live_lake, job_id).lease_expires_at.ToDatetime(UTC) > first + timedelta(seconds=0.7))
        assert job(live_lake, job_id).attempt == 1


def test_cancelled_job_stops_at_the_next_renewal(live_lake: ResourceFactory):
    job_id, begun = triggered(live_lake), threading.Event()
    with worker(live_lake, waiting(begun), JobRules(lease_s=0.6)):
        begun.wait(200)
        jobs.cancel(live_lake.home, v1.CancelReconcileJobRequest(job_id=job_id))
        until(lambda: job(live_lake, job_id).state == v1.JS_CANCELLED, seconds=5)


def test_stopping_worker_releases_its_job(live_lake: ResourceFactory):
    job_id, begun = triggered(live_lake), threading.Event()
    working = worker(live_lake, waiting(begun))
    working.start()
    begun.wait(200)
    assert working.stop()
    given_back = job(live_lake, job_id)
    assert (given_back.state, given_back.attempt) == (v1.JS_QUEUED, 0)
    assert worker(live_lake, lambda *_: Outcome(1)).work_once()
    assert job(live_lake, job_id).state == v1.JS_SUCCEEDED


@pytest.mark.parametrize("at_once", [1, 3])
def test_worker_runs_the_configured_number_of_concurrent_jobs(live_lake: ResourceFactory, at_once):
    made = [connector(live_lake, "/nowhere", name=f"c{number}") for number in range(6)]
    for each in made:
        connectors.trigger(live_lake.home, v1.TriggerReconcileRequest(connector_id=each.resource_id))
    barrier, lock, now, most = threading.Barrier(at_once), threading.Lock(), [0], [0]

    def run(job: v1.Job, control: Control) -> Outcome:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        barrier.wait(200)  # blocks unless this many jobs run at once
        with lock:
            now[0] -= 1
        return Outcome(1, 1)

    with Worker(JobQueue(live_lake.stores, rules=RULES), run, name="w", poll_s=0.01, at_once=at_once):
        until(lambda: len(done(live_lake)) == 6)
    assert most == [at_once]


def done(live_lake: ResourceFactory) -> list[v1.Job]:
    request = v1.ListReconcileJobsRequest(state=v1.JS_SUCCEEDED)
    return list(jobs.list_(live_lake.home, request).jobs)


def test_stopping_worker_releases_all_its_jobs(live_lake: ResourceFactory):
    for number in range(2):
        made = connector(live_lake, "/nowhere", name=f"c{number}")
        connectors.trigger(live_lake.home, v1.TriggerReconcileRequest(connector_id=made.resource_id))
    busy = threading.Barrier(3)

    def run(job: v1.Job, control: Control) -> Outcome:
        busy.wait(200)
        while True:
            control.check()
            time.sleep(0.005)

    working = Worker(JobQueue(live_lake.stores, rules=RULES), run, name="w", poll_s=0.01, at_once=2)
    working.start()
    busy.wait(200)
    assert working.stop()
    states = [(each.state, each.attempt) for each in jobs.list_(live_lake.home, v1.ListReconcileJobsRequest()).jobs]
    assert states == [(v1.JS_QUEUED, 0)] * 2


def test_worker_releases_jobs_that_do_not_stop_in_time(live_lake: ResourceFactory):
    """Spark, for example, does not stop in the middle of a batch."""
    job_id, begun, end = triggered(live_lake), threading.Event(), threading.Event()

    def run(job: v1.Job, control: Control) -> Outcome:
        begun.set()
        end.wait(200)
        return Outcome(7, 7)

    working = worker(live_lake, run)
    working.start()
    begun.wait(200)
    assert not working.stop(patience_s=0.1)
    assert (job(live_lake, job_id).state, job(live_lake, job_id).attempt) == (v1.JS_QUEUED, 0)
    assert worker(live_lake, lambda *_: Outcome(1, 1)).work_once()
    end.set()
    until(lambda: not working._threads[0].is_alive())
    assert (job(live_lake, job_id).state, job(live_lake, job_id).tables_scanned) == (v1.JS_SUCCEEDED, 1)


def test_progress_is_stored_during_the_work(live_lake: ResourceFactory, monkeypatch):
    monkeypatch.setattr(worker_module, "spark_ui", lambda: "http://spark:4040")
    job_id, may_end = triggered(live_lake), threading.Event()

    def run(job: v1.Job, control: Control) -> Outcome:
        stage = v1.JobProgress(
            **{"pass": v1.CAP_STATS_ONLY_ASYNC},
            tables_total=3,
            tables_done=1,
            tables=["a", "b"],
            files_total=10,
            rows_total=1000,
            bytes_total=5000,
            files_done=4,
            rows_done=400,
            bytes_done=2000,
        )
        control.report(Progress(1, stage=stage))
        assert may_end.wait(200)
        return Outcome(3, 2)

    with worker(live_lake, run):
        until(lambda: job(live_lake, job_id).progress.files_done == 4)
        seen = job(live_lake, job_id)
        may_end.set()
        until(lambda: job(live_lake, job_id).state == v1.JS_SUCCEEDED)
    assert (seen.state, seen.tables_scanned, list(seen.progress.tables)) == (v1.JS_RUNNING, 1, ["a", "b"])
    assert (seen.progress.tables_done, seen.progress.tables_total, seen.progress.files_total) == (1, 3, 10)
    assert (seen.progress.rows_done, seen.progress.rows_total) == (400, 1000)
    assert (seen.progress.bytes_done, seen.progress.bytes_total) == (2000, 5000)
    assert seen.progress.spark_ui == "http://spark:4040"
    assert job(live_lake, job_id).tables_scanned == 3


def test_frequent_progress_reports_are_written_rarely(live_lake: ResourceFactory, monkeypatch):
    writes = []
    real = JobQueue.progress
    monkeypatch.setattr(JobQueue, "progress", lambda *arguments: (writes.append(1), real(*arguments))[1])
    job_id = triggered(live_lake)

    def run(job: v1.Job, control: Control) -> Outcome:
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            control.report(Progress(1))
        return Outcome(1, 1)

    worker(live_lake, run).work_once()
    assert 1 <= len(writes) <= 4
    assert job(live_lake, job_id).state == v1.JS_SUCCEEDED


@behavior(73)
def test_worker_that_lost_its_lease_writes_nothing_more(live_lake: ResourceFactory):
    job_id = triggered(live_lake)
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    queue = JobQueue(live_lake.stores, rules=JobRules(lease_s=10), clock=lambda: now[0], jitter=lambda: 0.0)
    now[0] = datetime.now(UTC) + timedelta(seconds=1)
    lease = queue.lease("slow")
    assert lease is not None
    with RunningJob(queue, lease, threading.Event()) as running:
        running.check()
        now[0] += timedelta(seconds=11)
        with pytest.raises(Cancelled) as lost:
            running.check()
        assert lost.value.key == "job.lost"
        other = queue.lease("other")
        assert other is not None
        running.report(Progress(tables_scanned=99))
        assert running.must_stop()
    assert job(live_lake, job_id).tables_scanned == 0
    assert job(live_lake, job_id).lease_owner == "other"


def test_job_runs_both_phases_in_its_own_account(live_lake: ResourceFactory, tmp_path):
    parquet(tmp_path, "people", id=[1, 2])
    job_id = triggered(live_lake, str(tmp_path))

    def profile(realm, table_id, snapshot, *, handle, **_) -> None:
        stats = v1.TableStats(row_count=2)
        statistics.put_table(realm, v1.PutTableStatsRequest(table_id=table_id, snapshot_id=snapshot.id, stats=stats))

    run = jobs_of(live_lake.realm, Reconciler(SECRETS, profile))
    assert worker(live_lake, run).work_once()
    assert job(live_lake, job_id).state == v1.JS_SUCCEEDED, job(live_lake, job_id)
    (table,) = mirrored(live_lake).values()
    ref = v1.SnapshotRef(special=v1.SS_CURRENT)
    found = statistics.get_table(live_lake.home, v1.GetTableStatsRequest(table_id=table.resource_id, snapshot=ref))
    assert found.stats.row_count == 2


# --- kill -9 ----------------------------------------------------------------------------------------------------------

PROGRAM = """
    import sys, time
    from skiway.metastore import Realm
    from skiway.metastore.jobs.queue import JobQueue, JobRules
    from skiway.metastore.reconcile import Reconciler
    from skiway.spark_jobs.worker import jobs_of
    from skiway.spark_jobs.worker import Worker
    from skiway.security import MemorySecrets
    from skiway.storage import open_stores

    def profile(*_, **__):
        pass

    with open_stores(sys.argv[1]) as stores:
        run = jobs_of(lambda account: Realm(stores, account), Reconciler(MemorySecrets(), profile))

        def slowly(job, control):
            original = control.report

            def report(done):
                original(done)
                if done.stage.tables_done:
                    print("table", flush=True)
                    time.sleep(60)

            control.report = report
            return run(job, control)

        Worker(JobQueue(stores, rules=JobRules(lease_s=60.0)), slowly, name="victim").work_once()
"""


def after_the_lease() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=61)


def slow_worker(url: str) -> subprocess.Popen[str]:
    program = textwrap.dedent(PROGRAM)
    return subprocess.Popen([sys.executable, "-c", program, url], stdout=subprocess.PIPE, text=True)


def contents(live_lake: ResourceFactory) -> dict[str, Any]:
    """What a run leaves behind, without ids and times."""
    found = {}
    for name, table in mirrored(live_lake).items():
        (snapshot,) = snapshots_of(live_lake, table)
        files = statistics.file_statistics(live_lake.home, table.resource_id.id, snapshot.snapshot_id)
        found[name] = (table.schema_json, snapshot.summary["total-data-files"], files.to_pylist())
    return found


@behavior(73)
def test_job_of_a_killed_worker_is_taken_over_without_loss(tmp_path: Path):
    for number in range(6):
        parquet(tmp_path / "up", f"t{number}", id=[number, number + 1])
    results = []
    for name in ("killed", "undisturbed"):
        url = f"sqlite:///{tmp_path}/{name}.db"
        with open_stores(url) as stores:
            live_lake = ResourceFactory(stores, utc_now)  # type: ignore[arg-type]
            live_lake.catalog()
            job_id = triggered(live_lake, str(tmp_path / "up"))
            if name == "killed":
                victim = slow_worker(url)
                assert victim.stdout is not None
                assert victim.stdout.readline() == "table\n"
                os.kill(victim.pid, signal.SIGKILL)
                victim.wait()
                victim.stdout.close()
                assert (job(live_lake, job_id).state, len(mirrored(live_lake))) == (v1.JS_RUNNING, 1)
            queue = JobQueue(stores, rules=RULES, clock=after_the_lease)
            queue.reclaim()
            heir = Worker(queue, jobs_of(live_lake.realm, Reconciler(SECRETS, lambda *_, **__: None)), name="heir")
            until(heir.work_once)  # after the backoff
            done = job(live_lake, job_id)
            assert (done.state, done.tables_scanned) == (v1.JS_SUCCEEDED, 6), done
            assert done.attempt == (2 if name == "killed" else 1)
            results.append(contents(live_lake))
    assert results[0] == results[1]
