"""The queue of jobs as workers see it: all accounts' jobs, each done by one worker at a time.

A worker leases the job that is due longest, renews the lease while it works, and says how it ended. A worker that is
silent for longer than its lease has lost it, dead or alive: the job is given to another under a higher epoch, and
whatever the first one writes from then on is refused. Any number of workers and servers share a queue through its
store; asking for a job costs the same however many there are.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice

from skiway.errors import Conflict, Internal, NotFound, PreconditionFailed
from skiway.metastore.jobs.records import JobRules, Progress, amended, clipped, end, wait
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.realm import timestamp
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import copied
from skiway.model import v1
from skiway.storage import Clock, Pointer, Stores, utc_now

__all__ = ["JobQueue", "Lease"]

PAGE = 16
"""How many waiting jobs are read at once: some more than there are workers that ask at the same moment."""


def half_to_whole() -> float:
    """The part of a delay that is waited: different each time, so that what failed together does not return together."""
    return random.uniform(0.5, 1.0)  # noqa: S311 - no secret


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job until `expires_at`, with the job as it was at the last call."""

    job: v1.Job

    @property
    def epoch(self) -> int:
        """Tells this lease from all others of the job; the greatest is the present one."""
        return self.job.lease_epoch

    @property
    def expires_at(self) -> datetime:
        """When the lease ends, unless it is renewed before."""
        return self.job.lease_expires_at.ToDatetime(UTC)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody wants the job to stop: call `JobQueue.cancelled` as soon as it has."""
        return self.job.cancel_requested


@dataclass(frozen=True, slots=True)
class JobQueue:
    """All jobs of a store, for those who do them. What waits a while waits `jitter()` times as long as the rules say.

    Calls with a lease raise `Conflict` with the key `job.lease.lost` once it has ended: the worker must stop.
    """

    stores: Stores
    rules: JobRules = field(default_factory=JobRules)
    clock: Clock = utc_now
    jitter: Callable[[], float] = half_to_whole

    def lease(self, worker: str) -> Lease | None:
        """The job that is due longest, now this worker's; None if none is due."""
        self.reclaim()
        waiting = self.stores.pointers.scan(keys.job_ready(), page_size=PAGE)
        for pointer in islice(waiting, self.rules.ready_scan_limit):
            if keys.queue_time(pointer.key) > _micros(self.clock()):
                return None
            job = self._changed(pointer, lambda job: self._begin(job, worker))
            if job is not None:
                return Lease(job)
        return None

    def renew(self, lease: Lease) -> Lease:
        """The lease, for another while from now on."""
        return Lease(self._write(lease, self._extend))

    def progress(self, lease: Lease, done: Progress) -> Lease:
        """The lease renewed, after what was done so far is written down."""

        def edit(job: v1.Job) -> None:
            done.write_to(job)
            self._extend(job)

        return Lease(self._write(lease, edit))

    def complete(self, lease: Lease, done: Progress) -> v1.Job:
        """The job, which has succeeded."""

        def edit(job: v1.Job) -> None:
            done.write_to(job)
            end(job, v1.JS_SUCCEEDED, now=self.clock(), message=done.message)

        return self._write(lease, edit)

    def fail(self, lease: Lease, message: str, *, done: Progress | None = None, retry: bool = True) -> v1.Job:
        """The job, which waits to be tried again, or has failed if it may not be."""

        def edit(job: v1.Job) -> None:
            if done is not None:
                done.write_to(job)
            self._again_or_over(job, message, retry=retry)

        return self._write(lease, edit)

    def cancelled(self, lease: Lease, message: str = "cancelled") -> v1.Job:
        """The job, which its worker has stopped because somebody wanted it to."""
        return self._write(lease, lambda job: end(job, v1.JS_CANCELLED, now=self.clock(), message=message))

    def release(self, lease: Lease) -> v1.Job:
        """The job, given back by a worker that must go: as if this attempt had never been begun."""

        def edit(job: v1.Job) -> None:
            job.attempt -= 1
            if job.cancel_requested:
                end(job, v1.JS_CANCELLED, now=self.clock(), message="cancelled")
            else:
                wait(job, now=self.clock(), delay_s=0)

        return self._write(lease, edit)

    def reclaim(self, *, limit: int = PAGE) -> int:
        """Take up to `limit` jobs from workers whose leases have ended; how many. Each counts as a failed attempt."""
        reclaimed = 0
        for pointer in self.stores.pointers.page(keys.job_leased(), size=limit).items:
            if keys.queue_time(pointer.key) > _micros(self.clock()):
                break
            reclaimed += self._changed(pointer, self._give_up) is not None
        return reclaimed

    # --- what happens to a job ----------------------------------------------------------------------------------------

    def _begin(self, job: v1.Job, worker: str) -> None:
        Progress().write_to(job)
        job.state = v1.JS_RUNNING
        job.attempt += 1
        job.lease_epoch += 1
        job.lease_owner = worker
        job.started_at.CopyFrom(timestamp(self.clock()))
        job.ClearField("next_attempt_at")
        self._extend(job)

    def _extend(self, job: v1.Job) -> None:
        job.lease_expires_at.CopyFrom(timestamp(self.clock() + timedelta(seconds=self.rules.lease_s)))

    def _give_up(self, job: v1.Job) -> None:
        self._again_or_over(job, f"{job.lease_owner} was silent for longer than its lease")

    def _again_or_over(self, job: v1.Job, message: str, *, retry: bool = True) -> None:
        now = self.clock()
        if job.cancel_requested:
            end(job, v1.JS_CANCELLED, now=now, message=message)
        elif not retry or job.attempt >= self.rules.max_attempts:
            end(job, v1.JS_FAILED, now=now, message=message)
        else:
            wait(job, now=now, delay_s=self.rules.backoff_s(job.attempt) * self.jitter())
            job.message = clipped(message)

    # --- how it is written --------------------------------------------------------------------------------------------

    def _write(self, lease: Lease, edit: Callable[[v1.Job], None]) -> v1.Job:
        """The job after `edit`, if the lease still is the present one."""

        def fenced(job: v1.Job) -> None:
            held = job.state == v1.JS_RUNNING and job.lease_epoch == lease.epoch
            if not held or job.lease_expires_at.ToMicroseconds() <= _micros(self.clock()):
                raise _lost(lease, job)
            edit(job)

        return amended(self.stores, lease.job.account_id, lease.job.job_id, edit=fenced, clock=self.clock)

    def _changed(self, place: Pointer, edit: Callable[[v1.Job], None]) -> v1.Job | None:
        """The job at a place in the queue after `edit`; None if another was faster, or if it cannot be read.

        What cannot be read must not keep the others waiting. Gc reports it.
        """
        repository = Repository(self.stores, JOB)
        try:
            current = self._at(repository, place)
            if current is None:
                return None
            desired = copied(current.value)
            edit(desired)
            desired.updated_at.CopyFrom(timestamp(self.clock()))
            return repository.update(current, desired).value
        except (Conflict, Internal, NotFound, PreconditionFailed):
            return None

    def _at(self, repository: Repository[v1.Job], place: Pointer) -> Stored[v1.Job] | None:
        """The job, if it still is at this place: all its pointers carry the same address."""
        own = self.stores.pointers.get(keys.owner(place))
        found = repository.follow(own) if own is not None and own.blob_uri == place.blob_uri else None
        return found if found is not None and place.key in JOB.names(found.value) else None


def _micros(moment: datetime) -> int:
    return timestamp(moment).ToMicroseconds()


def _lost(lease: Lease, job: v1.Job) -> Conflict:
    state = v1.JobState.Name(job.state)
    return failure(
        Conflict,
        "job.lease.lost",
        job_id=job.job_id,
        worker=lease.job.lease_owner,
        epoch=str(lease.epoch),
        found=f"{state} in epoch {job.lease_epoch}",
    )
