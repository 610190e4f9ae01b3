"""The job queue as workers use it: the jobs of all accounts, each run by one worker at a time.

A worker leases the job that has been due longest, renews the lease while it works, and reports the result. A worker
that does not renew its lease in time has lost it, dead or alive: the job goes to another worker under a higher epoch,
and every later write of the first is rejected. Any number of workers and servers share a queue through its store; the
cost of asking for a job does not depend on how many there are.

All keys of a job, including its place in the queue, move with its record in one batch (see `kinds`). So a change
happens completely or not at all, and nothing has to be cleaned up after a process that died.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice

from skiway.errors import Conflict, Contention, Internal, NotFound, PreconditionFailed
from skiway.metastore.jobs.attempts import Attempt, Progress, clipped, log_attempt
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.journal import added_event, journaled
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.realm import timestamp
from skiway.metastore.records.repository import Repository, Stored
from skiway.metastore.records.updates import copied, retrying
from skiway.model import v1
from skiway.security import LeasedJob
from skiway.storage import Clock, Operation, Pointer, Stores, utc_now

ACTIVE = (v1.JS_QUEUED, v1.JS_RUNNING)
FINISHED = (v1.JS_SUCCEEDED, v1.JS_PARTIAL, v1.JS_FAILED, v1.JS_CANCELLED)

PAGE = 16
"""How many queued jobs are read at once: a few more than workers usually ask at the same moment."""


def half_to_whole() -> float:
    """A random factor for delays, so that jobs that failed together are not retried together."""
    return random.uniform(0.5, 1.0)  # noqa: S311 - not used for security


@dataclass(frozen=True, slots=True)
class JobRules:
    """How often a job is tried, and for how long it is leased.

    All servers of a store should use the same rules, but nothing breaks while they differ.
    """

    max_attempts: int = 8
    base_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    lease_s: float = 30.0
    ready_scan_limit: int = 128

    def backoff_s(self, attempt: int) -> float:
        """How long to wait after the failed attempt number `attempt`, counted from 1."""
        # The exponent is bounded so that the power does not overflow; the maximum is reached long before.
        return min(self.max_backoff_s, self.base_backoff_s * 2.0 ** min(attempt - 1, 60))


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to work on a job until `expires_at`, with the job as of the last call."""

    job: v1.Job

    @property
    def epoch(self) -> int:
        """The number of this lease of the job. Only the highest is valid."""
        return self.job.lease_epoch

    @property
    def expires_at(self) -> datetime:
        """When the lease expires unless it is renewed."""
        return self.job.lease_expires_at.ToDatetime(UTC)

    @property
    def cancel_requested(self) -> bool:
        """Whether the job should stop. The worker calls `JobQueue.cancelled` as soon as it has."""
        return self.job.cancel_requested


@dataclass(frozen=True, slots=True)
class JobQueue:
    """All jobs of a store, for workers. Delays are those of the rules times `jitter()`.

    The end of every attempt is logged and passed to `on_attempt`. Calls with a lease raise `Conflict` with the key
    `job.lease.lost` once the lease is lost: the worker must stop.
    """

    stores: Stores
    rules: JobRules = field(default_factory=JobRules)
    clock: Clock = utc_now
    jitter: Callable[[], float] = half_to_whole
    on_attempt: Callable[[Attempt], None] = lambda _: None

    def __post_init__(self) -> None:
        object.__setattr__(self, "stores", journaled(self.stores, clock=self.clock))

    def lease(self, worker: str) -> Lease | None:
        """Lease the job that has been due longest to a worker; None if no job is due."""
        self.reclaim()
        waiting = self.stores.pointers.scan(keys.job_ready(), page_size=PAGE)
        for pointer in islice(waiting, self.rules.ready_scan_limit):
            if keys.queue_time(pointer.key) > _micros(self.clock()):
                return None
            job = self._changed(pointer, lambda job: self._start(job, worker))
            if job is not None:
                return Lease(job)
        return None

    def renew(self, lease: Lease) -> Lease:
        """Extend the lease."""
        return Lease(self._write(lease, self._extend))

    def progress(self, lease: Lease, done: Progress) -> Lease:
        """Store the progress so far, and extend the lease."""

        def edit(job: v1.Job) -> None:
            done.write_to(job)
            self._extend(job)

        return Lease(self._write(lease, edit))

    def complete(self, lease: Lease, done: Progress) -> v1.Job:
        """Finish the job: as succeeded, or as partial if some tables failed, or as failed if all of them did."""

        def edit(job: v1.Job) -> None:
            done.write_to(job)
            end(job, _final_state(done), now=self.clock(), message=done.message)

        return self._ended(self._write(lease, edit))

    def fail(self, lease: Lease, message: str, *, done: Progress | None = None, retry: bool = True) -> v1.Job:
        """Queue the job for another attempt. If it must not be retried, finish it as failed, or as partial."""

        def edit(job: v1.Job) -> None:
            if done is not None:
                done.write_to(job)
            self._retry_or_end(job, message, done=done, retry=retry)

        return self._ended(self._write(lease, edit))

    def cancelled(self, lease: Lease, message: str = "cancelled") -> v1.Job:
        """Finish the job as cancelled, after its worker has stopped."""
        edit = partial(end, state=v1.JS_CANCELLED, now=self.clock(), message=message)
        return self._ended(self._write(lease, edit))

    def release(self, lease: Lease) -> v1.Job:
        """Return the job to the queue without counting the attempt, because its worker shuts down."""

        def edit(job: v1.Job) -> None:
            job.attempt -= 1
            if job.cancel_requested:
                end(job, v1.JS_CANCELLED, now=self.clock(), message="cancelled")
            else:
                _requeue(job, now=self.clock(), delay_s=0)

        return self._ended(self._write(lease, edit), released=True)

    def reclaim(self, *, limit: int = PAGE) -> int:
        """Take up to `limit` jobs from workers whose leases have expired, and return how many. Each attempt has failed."""
        reclaimed = 0
        for pointer in self.stores.pointers.page(keys.job_leased(), size=limit).items:
            if keys.queue_time(pointer.key) > _micros(self.clock()):
                break
            job = self._changed(pointer, self._give_up)
            if job is not None:
                self._ended(job)
                reclaimed += 1
        return reclaimed

    def require_held(self, lease: Lease, job: v1.Job) -> None:
        """Raise unless the lease of the job is still valid. `job` is the job as it is stored now."""
        if not _is_held(job, lease.epoch, now=self.clock()):
            raise _lost(lease, job)

    # --- figures of the queue -----------------------------------------------------------------------------------------

    def queued(self) -> int:
        """The number of jobs in the queue, of all accounts, including those that are due later."""
        return self.stores.pointers.count(keys.job_ready())

    def running(self) -> int:
        """The number of jobs that workers hold."""
        return self.stores.pointers.count(keys.job_leased())

    def oldest_age_s(self) -> float:
        """How long the job that is due longest has been waiting; 0 if none is due."""
        for pointer in self.stores.pointers.page(keys.job_ready(), size=1).items:
            return max(0, _micros(self.clock()) - keys.queue_time(pointer.key)) / 1e6
        return 0.0

    # --- changes of a job ---------------------------------------------------------------------------------------------

    def _start(self, job: v1.Job, worker: str) -> None:
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
        self._retry_or_end(job, f"{job.lease_owner} did not renew its lease in time")

    def _retry_or_end(self, job: v1.Job, message: str, *, done: Progress | None = None, retry: bool = True) -> None:
        now = self.clock()
        if job.cancel_requested:
            end(job, v1.JS_CANCELLED, now=now, message=message)
        elif not retry or job.attempt >= self.rules.max_attempts:
            end(job, v1.JS_PARTIAL if done is not None and done.is_partial else v1.JS_FAILED, now=now, message=message)
        else:
            _requeue(job, now=now, delay_s=self.rules.backoff_s(job.attempt) * self.jitter())
            job.message = clipped(message)

    def _ended(self, job: v1.Job, *, released: bool = False) -> v1.Job:
        """Report the end of an attempt. Returns the job."""
        attempt = Attempt.ended(job, now=self.clock(), max_attempts=self.rules.max_attempts, released=released)
        log_attempt(attempt)
        self.on_attempt(attempt)
        return job

    # --- writing ------------------------------------------------------------------------------------------------------

    def _write(self, lease: Lease, edit: Callable[[v1.Job], None]) -> v1.Job:
        """Apply `edit` to the job, if the lease is still valid."""

        def fenced(job: v1.Job) -> None:
            self.require_held(lease, job)
            edit(job)

        return amended(self.stores, lease.job.account_id, lease.job.job_id, edit=fenced, clock=self.clock)

    def _changed(self, place: Pointer, edit: Callable[[v1.Job], None]) -> v1.Job | None:
        """Apply `edit` to the job at a place in the queue; None if another was faster, or if it cannot be read.

        An unreadable job must not block the others. Garbage collection reports it.
        """
        repository = Repository(self.stores, JOB)
        try:
            current = self._at(repository, place)
            if current is None:
                return None
            desired = copied(current.value)
            edit(desired)
            desired.updated_at.CopyFrom(timestamp(self.clock()))
            return repository.update(current, desired, also=_ending(self.stores, current.value)).value
        except (Conflict, Internal, NotFound, PreconditionFailed):
            return None

    def _at(self, repository: Repository[v1.Job], place: Pointer) -> Stored[v1.Job] | None:
        """The job, if it still is at this place: all its pointers have the same blob address."""
        own = self.stores.pointers.get(keys.owner(place))
        found = repository.follow(own) if own is not None and own.blob_uri == place.blob_uri else None
        return found if found is not None and place.key in JOB.names(found.value) else None


def amended(stores: Stores, account_id: str, job_id: str, *, edit: Callable[[v1.Job], None], clock: Clock) -> v1.Job:
    """Apply `edit` to a copy of the stored job, again whenever another process was faster, and return the result."""
    repository = Repository(stores, JOB)

    def attempt() -> v1.Job:
        current = repository.require(keys.job(account_id, job_id), name=job_id)
        desired = copied(current.value)
        edit(desired)
        if desired == current.value:
            return current.value
        desired.updated_at.CopyFrom(timestamp(clock()))
        try:
            return repository.update(current, desired, also=_ending(stores, current.value)).value
        except PreconditionFailed:
            raise failure(Contention, "store.contended", what=f"job {job_id}") from None

    return retrying(attempt)


def _ending(stores: Stores, before: v1.Job) -> Callable[[Stored[v1.Job]], list[Operation]]:
    """The event that a sync, maintenance or run of a pipeline has ended, for the batch that ends the job."""

    def also(stored: Stored[v1.Job]) -> list[Operation]:
        job = stored.value
        if job.state not in FINISHED or before.state in FINISHED:
            return []
        event = v1.Event(action=v1.JobState.Name(job.state).removeprefix("JS_").lower(), job_id=job.job_id)
        if job.HasField("maintenance"):
            event.kind, event.object_id = "maintenance", job.table_id.id
            event.detail = job.maintenance.WhichOneof("task") or ""
        elif job.HasField("pipeline"):
            event.kind, event.object_id = "pipeline", job.pipeline.pipeline_id.id
        elif job.connector_id.id:
            event.kind, event.object_id = "sync", job.connector_id.id
        else:
            return []
        return [added_event(stores, job.account_id, event)]

    return also


def leased(job: v1.Job) -> LeasedJob:
    """The job with the lease under which it runs now, for its tokens."""
    return LeasedJob(job.account_id, job.job_id, job.lease_epoch)


def is_running(stores: Stores, job: LeasedJob, *, clock: Clock = utc_now) -> bool:
    """Whether a worker has this lease of the job now. The lease of a worker that was killed expires soon."""
    found = Repository(stores, JOB).find(keys.job(job.account_id, job.id))
    return found is not None and _is_held(found.value, job.epoch, now=clock())


def end(job: v1.Job, state: v1.JobState.ValueType, *, now: datetime, message: str) -> None:
    """Finish a job in a state."""
    _leave_worker(job)
    job.state = state
    job.message = clipped(message)
    job.finished_at.CopyFrom(timestamp(now))
    job.ClearField("next_attempt_at")


def _final_state(done: Progress) -> v1.JobState.ValueType:
    if not done.failures:
        return v1.JS_SUCCEEDED
    return v1.JS_PARTIAL if done.is_partial else v1.JS_FAILED


def _requeue(job: v1.Job, *, now: datetime, delay_s: float) -> None:
    _leave_worker(job)
    job.state = v1.JS_QUEUED
    job.next_attempt_at.CopyFrom(timestamp(now + timedelta(seconds=delay_s)))


def _leave_worker(job: v1.Job) -> None:
    job.ClearField("lease_owner")
    job.ClearField("lease_expires_at")


def _is_held(job: v1.Job, epoch: int, *, now: datetime) -> bool:
    """Whether the lease with this number is the one of the stored job, and has not expired."""
    is_current = job.state == v1.JS_RUNNING and job.lease_epoch == epoch
    return is_current and job.lease_expires_at.ToMicroseconds() > _micros(now)


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
