"""The record of a job, which clients and workers change in turn.

All that finds a job, the place in the queue too, moves with its record in one batch (see `kinds`). So a change happens
wholly or not at all, and there is nothing to undo for a process that died.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from skiway.errors import Contention, PreconditionFailed
from skiway.metastore import keys
from skiway.metastore.changes import copied
from skiway.metastore.failures import failure
from skiway.metastore.job_rules import clipped
from skiway.metastore.kinds import JOB
from skiway.metastore.parents import retrying
from skiway.metastore.realm import timestamp
from skiway.metastore.repository import Repository
from skiway.model import v1
from skiway.storage import Clock, Stores

__all__ = ["amended", "end", "wait"]


def amended(stores: Stores, account_id: str, job_id: str, *, edit: Callable[[v1.Job], None], clock: Clock) -> v1.Job:
    """The job after `edit`, which is given a copy of the stored one, and another whenever somebody else was faster."""
    repository = Repository(stores, JOB)

    def attempt() -> v1.Job:
        current = repository.require(keys.job(account_id, job_id), name=job_id)
        desired = copied(current.value)
        edit(desired)
        if desired == current.value:
            return current.value
        desired.updated_at.CopyFrom(timestamp(clock()))
        try:
            return repository.update(current, desired).value
        except PreconditionFailed:
            raise failure(Contention, "store.contended", what=f"job {job_id}") from None

    return retrying(attempt)


def wait(job: v1.Job, *, now: datetime, delay_s: float) -> None:
    """Let the job wait for a worker, `delay_s` from now on."""
    _leave_worker(job)
    job.state = v1.JS_QUEUED
    job.next_attempt_at.CopyFrom(timestamp(now + timedelta(seconds=delay_s)))


def end(job: v1.Job, state: v1.JobState.ValueType, *, now: datetime, message: str) -> None:
    """Let the job be over."""
    _leave_worker(job)
    job.state = state
    job.message = clipped(message)
    job.finished_at.CopyFrom(timestamp(now))
    job.ClearField("next_attempt_at")


def _leave_worker(job: v1.Job) -> None:
    job.ClearField("lease_owner")
    job.ClearField("lease_expires_at")
