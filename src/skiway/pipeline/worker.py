"""What a job does: both passes over a connector, with Spark making the statistics."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final

from skiway.errors import Cancelled, Conflict, NotFound, SkiwayError
from skiway.formats import Snapshot, TableHandle
from skiway.metastore import Realm
from skiway.metastore.connectors.specs import EVERY_COLUMN, ColumnChoice
from skiway.metastore.jobs.queue import JobQueue, Lease, Progress
from skiway.metastore.reconcile.outcomes import TRANSIENT, Control, Outcome
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.pipeline.session import own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from skiway.pipeline.profile.snapshots import ProfileReport

__all__ = ["Held", "Run", "SparkProfile", "Worker", "jobs_of"]


@dataclass(frozen=True, slots=True)
class SparkProfile:
    """Profiles snapshots on Spark. The session is asked for when there is something to profile, and not before."""

    spark: Callable[[], SparkSession] = own_session

    def __call__(
        self,
        realm: Realm,
        table_id: v1.ResourceId,
        snapshot: Snapshot,
        *,
        handle: TableHandle,
        cancelled: Callable[[], bool],
        columns: ColumnChoice = EVERY_COLUMN,
        on_progress: Callable[[int, int], None] = lambda _, __: None,
    ) -> ProfileReport:
        from skiway.pipeline.profile.snapshots import profile_snapshot

        return profile_snapshot(
            realm,
            table_id,
            snapshot,
            handle=handle,
            spark=self.spark,
            columns=columns,
            on_progress=on_progress,
            cancelled=cancelled,
        )


def jobs_of(realm_of: Callable[[str], Realm], reconciler: Reconciler) -> Callable[[v1.Job, Control], Outcome]:
    """What a worker runs: a job, in the realm of the account it belongs to."""

    def run(job: v1.Job, control: Control) -> Outcome:
        return reconciler.job(realm_of(job.account_id), job, control)

    return run


# --------------------
# A worker: takes jobs from the queue, as many at a time as it is told, and keeps the lease of each alive meanwhile.
#
# lease   ->  heartbeat on a thread of its own  ->  run  ->  complete, fail, cancelled or release
#
# A worker that is silent for longer than its lease has lost it. It learns of that at the next heartbeat, and stops before
# it writes anything more; what it says of the job after that is refused by the queue.


BEATS: Final = 3
"""How often a lease is renewed in the time it lasts."""

REPORT_EVERY_S: Final = 0.5
"""Progress is written down no more often than that."""

Run = Callable[[v1.Job, Control], Outcome]
"""Does the work of a job."""

log = logging.getLogger("skiway.worker")


class Held(Control):
    """A lease while its job is worked on: renewed in the background, and the place where the run hears of its end.

    Progress is written down in the background as well, so that telling it costs the run nothing.
    """

    def __init__(self, queue: JobQueue, lease: Lease, stopping: threading.Event) -> None:
        self._queue, self._lease, self._stopping = queue, lease, stopping
        self._ended, self._wake = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._untold: Progress | None = None
        self._lost = ""

    @property
    def lease(self) -> Lease:
        """As it was at the last renewal."""
        return self._lease

    def check(self) -> None:
        """Raise `Cancelled` if the job was cancelled, the lease is lost, or the worker must go."""
        reason = self._reason()
        if reason:
            raise Cancelled(f"work on job {self._lease.job.job_id} ends: {reason}", key=f"job.{reason}")

    def report(self, done: Progress) -> None:
        """Have written down what was done so far, soon; of several reports the last."""
        self._untold = done
        self._wake.set()

    def give_back(self) -> None:
        """Let others have the job now, though the run has not heard that it must stop. What it still writes is the same
        that the next one would.
        """
        self._lost = "it was given back"
        try:
            self._queue.release(self._lease)
        except SkiwayError as error:
            log.warning("job %s is not given back, and taken over later: %s", self._lease.job.job_id, error)

    def _reason(self) -> str:
        if self._lost or self._queue.clock() >= self._lease.expires_at:
            return "lost"
        if self._lease.cancel_requested:
            return "cancelled"
        return "stopping" if self._stopping.is_set() else ""

    def _beat(self) -> None:
        pause_s = self._queue.rules.lease_s / BEATS
        while not self._ended.is_set() and not self._lost:
            self._wake.wait(pause_s)
            self._wake.clear()
            if self._ended.is_set():
                return
            done, self._untold = self._untold, None
            self._take(done)
            if done is not None:
                self._ended.wait(min(REPORT_EVERY_S, pause_s))

    def _take(self, done: Progress | None) -> None:
        """Renew the lease, with what is to be written down."""
        try:
            self._lease = self._queue.renew(self._lease) if done is None else self._queue.progress(self._lease, done)
        except (Conflict, NotFound) as error:
            self._lost = str(error)
        except SkiwayError as error:
            # The store may answer again before the lease ends; if not, the clock tells.
            log.warning("the lease of job %s was not renewed: %s", self._lease.job.job_id, error)

    def __enter__(self) -> Held:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._wake.set()
        self._thread.join()


@dataclass(slots=True)
class Worker:
    """Works on jobs until it is stopped, on `at_once` of them at a time; `name` tells it from others.

    Looks for jobs every `poll_s` while there are none.
    """

    queue: JobQueue
    run: Run
    name: str
    poll_s: float = 1.0
    at_once: int = 1
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _threads: list[threading.Thread] = field(default_factory=list, init=False)
    _held: dict[str, Held] = field(default_factory=dict, init=False)

    def start(self) -> None:
        """Work on threads of its own."""
        self._stopping.clear()
        self._threads = [threading.Thread(target=self.work, name=self.name, daemon=True) for _ in range(self.at_once)]
        for thread in self._threads:
            thread.start()

    def stop(self, patience_s: float = 30.0) -> bool:
        """Give back what is being worked on, and end; whether that came to an end in time."""
        self._stopping.set()
        ends_at = time.monotonic() + patience_s
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))
        busy = list(self._held.values())
        for held in busy:
            log.warning("job %s goes on for longer than %.0f s: it is given back", held.lease.job.job_id, patience_s)
            held.give_back()
        return not busy

    def work(self) -> None:
        """Work until `stop`."""
        while not self._stopping.is_set():
            try:
                worked = self.work_once()
            except SkiwayError as error:
                log.warning("worker %s cannot reach the queue: %s", self.name, error)
                worked = False
            if not worked:
                self._stopping.wait(self.poll_s)

    def work_once(self) -> bool:
        """Do the job that is due longest; whether there was one."""
        lease = self.queue.lease(self.name)
        if lease is None:
            return False
        job_id = lease.job.job_id
        with Held(self.queue, lease, self._stopping) as held:
            self._held[job_id] = held
            ending = self._ending(held)
        try:
            ending(held.lease)
        except (Conflict, NotFound) as error:
            log.warning("job %s is no longer this worker's: %s", job_id, error)
        finally:
            del self._held[job_id]
        return True

    def _ending(self, held: Held) -> Callable[[Lease], v1.Job]:
        """Do the job; how to tell the queue what came of it."""
        queue, job = self.queue, held.lease.job
        try:
            outcome = self.run(job, held)
        except Cancelled as error:
            return queue.release if error.key == "job.stopping" else queue.cancelled
        except SkiwayError as error:
            message, retry = str(error), isinstance(error, TRANSIENT)
            return lambda lease: queue.fail(lease, message, retry=retry)
        except Exception:
            log.exception("job %s failed by a fault of ours", job.job_id)
            return lambda lease: queue.fail(lease, "internal error: the worker's log tells more", retry=True)
        if outcome.transient or (outcome.failures and len(outcome.failures) >= outcome.scanned):
            return lambda lease: queue.fail(lease, outcome.message, done=outcome.progress, retry=outcome.transient)
        return lambda lease: queue.complete(lease, outcome.progress)

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
