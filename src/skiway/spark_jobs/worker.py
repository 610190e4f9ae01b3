"""The worker: leases jobs from the queue, runs several at a time, and keeps their leases alive.

    lease   ->  heartbeat on a separate thread, run  ->  complete, fail, cancelled or release

A worker that does not renew a lease in time loses it. It notices at the next heartbeat and stops before it writes anything
more; the queue rejects any later report about the job.

`jobs_of` returns the function that runs a job. `SparkProfile` and `SparkCopies` are what it needs of Spark; they import it late.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import Cancelled, Conflict, NotFound, SkiwayError, Unsupported
from skiway.formats import Snapshot, TableHandle
from skiway.metastore import Realm, quality
from skiway.metastore.ingest.copying import STEP_BYTES, DatabaseSource, Expectations
from skiway.metastore.jobs.api import keep_log
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import JobQueue, Lease, leased
from skiway.metastore.pipelines.api import run_job
from skiway.metastore.pipelines.inputs import CurrentRoles, PipelineArea
from skiway.metastore.pipelines.models.loads import LoadExpectations
from skiway.metastore.pipelines.models.statements import FunctionEngine, QueryEngine
from skiway.metastore.quality.verdicts import TableFacts
from skiway.metastore.reconcile.outcomes import TRANSIENT, Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.resources import hierarchy
from skiway.metastore.table_maintenance.api import SourceTables
from skiway.metastore.table_maintenance.tasks import LargeOptimizer, run_task
from skiway.model import v1
from skiway.spark_jobs.interruption import end_of_spark, interruptible, joined
from skiway.spark_jobs.key_joins import SparkJoins
from skiway.spark_jobs.session import SparkPlace, spark_ui
from skiway.telemetry.logs import CollectedLog, collecting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.formats.iceberg.warehouse import Warehouse
    from skiway.security.source_access import SourceAccess
    from skiway.spark_jobs.profile.snapshots import ProfileReport


@dataclass(frozen=True, slots=True)
class SparkCopies:
    """Copies on Spark, in steps of about `step_bytes` of files. `spark` is called only if there is something to do.

    With `fetch_drivers`, drivers of databases are fetched.
    """

    spark: Callable[[], SparkSession]
    fetch_drivers: bool = True
    step_bytes: int = STEP_BYTES

    @property
    def distribute(self) -> SparkJoins:
        """Calls functions as tasks of Spark."""
        return SparkJoins(self.spark)

    def expectations(self, realm: Realm, warehouse: Warehouse, name: str, text: str) -> Expectations:
        """The expectations in a text, for a load by the copy that is called `name`."""
        from skiway.spark_jobs.pipeline_queries import SparkQueries

        return LoadExpectations.of(SparkQueries(self.spark), realm, warehouse, name, text)

    def database(
        self,
        uri: str,
        *,
        options: Mapping[str, str],
        credentials: Mapping[str, str],
        access: SourceAccess,
        follower: str = "",
    ) -> DatabaseSource:
        """Open the database or the Airport server at `uri`, if `access` permits it. A `follower` is a connector that copies its changes."""
        if follower:
            from skiway.spark_jobs.ingest.postgres_log import open_log

            return open_log(self.distribute, uri, follower, options=options, credentials=credentials, access=access)
        if uri.startswith("grpc"):
            from skiway.spark_jobs.ingest.airport import open_airport

            return open_airport(uri, options=options, credentials=credentials, access=access)
        from skiway.spark_jobs.ingest.databases import open_database

        session = cache(self.spark)  # the driver is added to this one

        def spark() -> SparkSession:
            return joined(session())

        return open_database(
            spark,
            SparkJoins(spark),
            uri,
            options=options,
            credentials=credentials,
            access=access,
            fetch_driver=self.fetch_drivers,
        )


HEARTBEATS_PER_LEASE: Final = 3
"""How often a lease is renewed before it would expire."""

REPORT_EVERY_S: Final = 0.5
"""The minimum time between two progress reports."""

REVIVE_EVERY_S: Final = 60.0
"""How long to wait after Spark could not be started again."""

Run = Callable[[v1.Job, Control], Outcome]
"""Runs a job."""

log = logging.getLogger("skiway.worker")


@dataclass(frozen=True, slots=True)
class SparkProfile:
    """Profiles snapshots on Spark. `spark` is called only if it is needed.

    If more than `sample_above_bytes` would have to be read, a sample of about `sample_bytes` is. This process reads up to
    `in_process_bytes` itself; with None, up to a default.
    """

    spark: Callable[[], SparkSession] = field(default_factory=lambda: SparkPlace().session)
    sample_above_bytes: int | None = None
    sample_bytes: int = 0
    in_process_bytes: int | None = None

    def __call__(
        self, realm: Realm, table_id: v1.ResourceId, snapshot: Snapshot, *, handle: TableHandle, **how: Any
    ) -> ProfileReport:
        """Profile a snapshot, as `profile_snapshot` does with these arguments."""
        from skiway.spark_jobs.profile.scans import SMALL
        from skiway.spark_jobs.profile.snapshots import Sampling, profile_snapshot

        above, at_most = self.sample_above_bytes, self.in_process_bytes
        sampling = None if above is None else Sampling(above, self.sample_bytes)
        small = SMALL if at_most is None else replace(SMALL, bytes=at_most)
        return profile_snapshot(
            realm, table_id, snapshot, handle=handle, spark=self.spark, sampling=sampling, small=small, **how
        )


def jobs_of(
    realm_of: Callable[[str], Realm],
    reconciler: Reconciler,
    queries: QueryEngine | None = None,
    *,
    large: LargeOptimizer | None = None,
    current_roles: CurrentRoles | None = None,
    functions: Callable[[v1.Job], FunctionEngine] | None = None,
) -> Callable[[v1.Job, Control], Outcome]:
    """The function that runs a job in the realm of its account.

    `queries` runs those of pipelines, and `large` optimizes large tables. `current_roles` tells the roles of the owners of
    pipelines, if this process knows them. `functions` returns what runs Python functions for a job, if they are allowed.
    """
    area = PipelineArea(reconciler, current_roles, allows_python=functions is not None)

    def run(job: v1.Job, control: Control) -> Outcome:
        with interruptible(job.job_id, control):
            outcome = run_here(job, control)
            if outcome.failures and isinstance(end_of_spark(), TRANSIENT):
                outcome.transient = True
            return outcome

    def run_here(job: v1.Job, control: Control) -> Outcome:
        realm = realm_of(job.account_id)
        if job.HasField("pipeline"):
            runner = functions(job) if functions else None
            return run_job(realm, area, job.pipeline, queries, control, runner, run_id=job.job_id)
        if job.HasField("maintenance"):
            if reconciler.warehouse is None:
                raise Unsupported(
                    "this worker has no warehouse, so it has no tables to maintain", key="warehouse.missing"
                )
            table = hierarchy.table(realm, job.table_id).value
            if not table.metadata_location:
                return SourceTables(reconciler).run(realm, table, job.maintenance, control)
            return run_task(
                realm, reconciler.warehouse, job.table_id, job.maintenance, control, job=leased(job), large=large
            )
        if job.HasField("quality"):
            return check_exactly(realm, job, reconciler, control)
        return reconciler.job(realm, job, control)

    return run


def check_exactly(realm: Realm, job: v1.Job, reconciler: Reconciler, control: Control) -> Outcome:
    """Decide quality rules from the rows of a table."""
    spark = reconciler.profile.spark if isinstance(reconciler.profile, SparkProfile) else SparkPlace().session

    def measured(table: v1.Table, checks: Sequence[v1.RuleCheck], *, snapshot_id: int) -> TableFacts:
        from skiway.spark_jobs.quality import measure

        control.check()
        with reconciler.opened(realm, table, snapshot_id) as (handle, snapshot):
            return measure(spark, handle, snapshot, table, checks)

    decided = quality.check_rows(realm, job, measured)
    return Outcome(scanned=1, note=f"checked {decided} quality rules")


class RunningJob(Control):
    """The lease of a running job, renewed in the background; tells the run when it must stop.

    Progress is stored in the background as well, so that reporting it does not delay the run.
    """

    def __init__(self, queue: JobQueue, lease: Lease, stopping: threading.Event) -> None:
        self._queue, self._lease, self._stopping = queue, lease, stopping
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._heartbeat, name="heartbeat", daemon=True)
        self._pending_progress: Progress | None = None
        self._lost = ""

    @property
    def lease(self) -> Lease:
        """The lease as of its last renewal."""
        return self._lease

    def check(self) -> None:
        """Raise `Cancelled` if the job was cancelled, the lease is lost, or the worker is stopping."""
        reason = self._reason()
        if reason:
            raise Cancelled(f"job {self._lease.job.job_id} stops: {reason}", key=f"job.{reason}")

    def report(self, done: Progress) -> None:
        """Store the progress soon; of several reports only the last is stored."""
        done.stage.spark_ui = spark_ui()
        self._pending_progress = done
        self._wake.set()

    def release(self) -> None:
        """Release the job although the run has not stopped yet. This is safe: runs are idempotent."""
        self._lost = "it was released"
        try:
            self._queue.release(self._lease)
        except SkiwayError as error:
            log.warning(
                "job %s cannot be released and will be taken over when its lease expires: %s",
                self._lease.job.job_id,
                error,
            )

    def _reason(self) -> str:
        if self._lost or self._queue.clock() >= self._lease.expires_at:
            return "lost"
        if self._lease.cancel_requested:
            return "cancelled"
        return "stopping" if self._stopping.is_set() else ""

    def _heartbeat(self) -> None:
        pause_s = self._queue.rules.lease_s / HEARTBEATS_PER_LEASE
        while not self._ended.is_set() and not self._lost:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._ended.is_set():
                return
            done, self._pending_progress = self._pending_progress, None
            self._renew(done)
            if done is not None:
                self._ended.wait(min(REPORT_EVERY_S, pause_s))

    def _renew(self, done: Progress | None) -> None:
        """Renew the lease, and store the progress if there is any."""
        try:
            self._lease = self._queue.renew(self._lease) if done is None else self._queue.progress(self._lease, done)
        except (Conflict, NotFound) as error:
            self._lost = error.message
        except SkiwayError as error:
            # The store may be available again before the lease expires; if not, `_reason` notices.
            log.warning("the lease of job %s was not renewed: %s", self._lease.job.job_id, error)
        except Exception:
            log.exception("the lease of job %s was not renewed", self._lease.job.job_id)

    def __enter__(self) -> RunningJob:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._wake.set()
        self._thread.join()


@dataclass(slots=True)
class Worker:
    """Runs jobs until it is stopped, up to `at_once` at a time. `name` identifies it in the queue.

    While there are no jobs, it polls every `poll_s` seconds. `revive` starts Spark again if it has ended, and returns
    whether that succeeded.
    """

    queue: JobQueue
    run: Run
    name: str
    poll_s: float = 1.0
    at_once: int = 1
    revive: Callable[[], bool] = lambda: True
    _reviving: threading.Lock = field(default_factory=threading.Lock, init=False)
    _revive_from: float = field(default=float("-inf"), init=False)
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _running: dict[str, RunningJob] = field(default_factory=dict, init=False)

    def start(self) -> None:
        """Start the threads of the worker."""
        self._stopping.clear()
        self._threads = [threading.Thread(target=self.work, name=self.name, daemon=True) for _ in range(self.at_once)]
        for thread in self._threads:
            thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether all threads of the worker run."""
        return all(thread.is_alive() for thread in self._threads)

    def stop(self, patience_s: float = 30.0) -> bool:
        """Release the running jobs and stop; return whether all runs ended in time."""
        self._stopping.set()
        ends_at = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))
        busy = list(self._running.values())
        for running in busy:
            log.warning("job %s did not stop within %.0f s and is released", running.lease.job.job_id, patience_s)
            running.release()
        return not busy

    def work(self) -> None:
        """Run jobs until `stop` is called."""
        while not self._stopping.is_set():
            self._revive()
            try:
                worked = self.work_once()
            except SkiwayError as error:
                log.warning("worker %s cannot reach the queue: %s", self.name, error)
                worked = False
            if not worked:
                self._stopping.wait(self.poll_s)

    def _revive(self) -> None:
        """Revive Spark on one thread at a time."""
        if not self._reviving.acquire(blocking=False):
            return
        try:
            if time.monotonic() >= self._revive_from and not self.revive():
                self._revive_from = time.monotonic() + REVIVE_EVERY_S
        finally:
            self._reviving.release()

    def work_once(self) -> bool:
        """Run the job that has been due longest; return whether there was one."""
        lease = self.queue.lease(self.name)
        if lease is None:
            return False
        job_id = lease.job.job_id
        with RunningJob(self.queue, lease, self._stopping) as running:
            self._running[job_id] = running
            collected = CollectedLog(lease.job.account_id)
            with collecting(collected):
                report_outcome = self._run(running, collected)
            self._keep_log(running, collected)
        try:
            report_outcome(running.lease)
        except (Conflict, NotFound) as error:
            log.warning("job %s no longer belongs to this worker: %s", job_id, error)
        finally:
            del self._running[job_id]
        return True

    def _keep_log(self, running: RunningJob, collected: CollectedLog) -> None:
        """Store the log with the job, before the job ends. If that fails, the job goes on without it."""
        try:
            keep_log(self.queue, running.lease, collected)
        except SkiwayError as error:
            log.warning("the log of job %s was not kept: %s", running.lease.job.job_id, error)

    def _run(self, running: RunningJob, collected: CollectedLog) -> Callable[[Lease], v1.Job]:
        """Run the job and return the function that reports its outcome to the queue."""
        queue, job = self.queue, running.lease.job
        collected.write(f"--- attempt {job.attempt} on {self.name}, {queue.clock():%Y-%m-%d %H:%M:%S} UTC ---")
        try:
            outcome = self.run(job, running)
        except Cancelled as error:
            collected.write(f"stopped: {error.message}")
            return queue.release if error.key == "job.stopping" else queue.cancelled
        except SkiwayError as error:
            collected.write("".join(traceback.format_exception(error)).rstrip())
            message, retry = error.message, isinstance(error, TRANSIENT)
            return lambda lease: queue.fail(lease, message, retry=retry)
        except Exception:
            log.exception("job %s failed with an internal error", job.job_id)
            return lambda lease: queue.fail(lease, "internal error; see the log of the worker", retry=True)
        collected.write("\n".join(_summary(outcome)))
        if outcome.transient:
            return lambda lease: queue.fail(lease, outcome.message, done=outcome.progress)
        return lambda lease: queue.complete(lease, outcome.progress)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _summary(outcome: Outcome) -> Iterator[str]:
    """The last lines of the log of an attempt. Unlike the record of the job, they have all failures in full."""
    yield f"ended: {outcome.scanned} scanned, {outcome.changed} changed, {len(outcome.failures)} failed"
    if outcome.note:
        yield f"  {outcome.note}"
    yield from (f"  {table}: {failure}" for table, failure in outcome.failures.items())
