"""A worker: takes jobs from the queue, one at a time, and keeps its lease alive while it works on one.

    lease   ->  heartbeat on a thread of its own  ->  run  ->  complete, fail, cancelled or release

A worker that is silent for longer than its lease has lost it. It learns of that at the next heartbeat, and stops before
it writes anything more; what it says of the job after that is refused by the queue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

from skiway.errors import Cancelled, Conflict, NotFound, SkiwayError
from skiway.metastore.job_queue import JobQueue, Lease
from skiway.metastore.job_rules import Progress
from skiway.metastore.reconcile import TRANSIENT, Control, Outcome
from skiway.model import v1

__all__ = ["Held", "Run", "Worker"]

BEATS: Final = 3
"""How often a lease is renewed in the time it lasts."""

Run = Callable[[v1.Job, Control], Outcome]
"""Does the work of a job."""

log = logging.getLogger("skiway.worker")


class Held(Control):
    """A lease while its job is worked on: renewed in the background, and the place where the run hears of its end."""

    def __init__(self, queue: JobQueue, lease: Lease, stopping: threading.Event) -> None:
        self._queue, self._lease, self._stopping = queue, lease, stopping
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
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
        """Write down what was done so far, which renews the lease too."""
        self._take(lambda: self._queue.progress(self._lease, done))

    def _reason(self) -> str:
        if self._lost or self._queue.clock() >= self._lease.expires_at:
            return "lost"
        if self._lease.cancel_requested:
            return "cancelled"
        return "stopping" if self._stopping.is_set() else ""

    def _beat(self) -> None:
        pause_s = self._queue.rules.lease_s / BEATS
        while not self._ended.wait(pause_s) and not self._lost:
            self._take(lambda: self._queue.renew(self._lease))

    def _take(self, renew: Callable[[], Lease]) -> None:
        try:
            self._lease = renew()
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
        self._thread.join()


@dataclass(slots=True)
class Worker:
    """Works on jobs until it is stopped; `name` tells it from others. Looks for jobs every `poll_s` while there are none."""

    queue: JobQueue
    run: Run
    name: str
    poll_s: float = 1.0
    _stopping: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def start(self) -> None:
        """Work on a thread of its own."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self.work, name=self.name, daemon=True)
        self._thread.start()

    def stop(self, patience_s: float = 30.0) -> bool:
        """Give back what is being worked on, and end; whether that came to an end in time."""
        self._stopping.set()
        if self._thread is None:
            return True
        self._thread.join(patience_s)
        if self._thread.is_alive():
            log.warning(
                "worker %s is still busy after %.0f s: its job is taken over when the lease ends", self.name, patience_s
            )
            return False
        return True

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
        with Held(self.queue, lease, self._stopping) as held:
            ending = self._ending(held)
        try:
            ending(held.lease)
        except (Conflict, NotFound) as error:
            log.warning("job %s is no longer this worker's: %s", lease.job.job_id, error)
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
