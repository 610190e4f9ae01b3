"""How often a job is tried, how long a worker may be silent, and how much of what went wrong is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from skiway.errors import Contention, PreconditionFailed
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.parents import retrying
from skiway.metastore.records.realm import timestamp
from skiway.metastore.records.repository import Repository
from skiway.metastore.records.updates import copied
from skiway.model import v1
from skiway.storage import Clock, Stores

__all__ = ["ACTIVE", "FINISHED", "JobRules", "Progress", "Stage", "amended", "clipped", "end", "wait"]

ACTIVE = (v1.JS_QUEUED, v1.JS_RUNNING)
FINISHED = (v1.JS_SUCCEEDED, v1.JS_FAILED, v1.JS_CANCELLED)

MAX_MESSAGE = 512
MAX_TABLE_ERRORS = 100


@dataclass(frozen=True, slots=True)
class JobRules:
    """The rules of a queue. All servers of one store should have the same; nothing breaks while they differ."""

    max_attempts: int = 8
    base_backoff_s: float = 0.5
    max_backoff_s: float = 30.0
    lease_s: float = 30.0
    ready_scan_limit: int = 128

    def backoff_s(self, attempt: int) -> float:
        """How long to wait after attempt number `attempt`, counted from 1, has failed."""
        # The exponent is bounded so that the power stays a number; by then the cap has long been reached.
        return min(self.max_backoff_s, self.base_backoff_s * 2.0 ** min(attempt - 1, 60))


@dataclass(frozen=True, slots=True)
class Stage:
    """How far a pass is: tables, those worked on right now, and files of the tables begun so far that are to be read."""

    mode: v1.CaptureMode.ValueType = v1.CAP_UNSPECIFIED
    tables_total: int = 0
    tables_done: int = 0
    tables: tuple[str, ...] = ()
    files_total: int = 0
    files_done: int = 0

    @property
    def message(self) -> v1.JobProgress:
        """The same, as jobs hold it."""
        return v1.JobProgress(
            **{"pass": self.mode},
            tables_total=self.tables_total,
            tables_done=self.tables_done,
            tables=map(clipped, self.tables),
            files_total=self.files_total,
            files_done=self.files_done,
        )


@dataclass(frozen=True, slots=True)
class Progress:
    """What an attempt has done so far, all in all; `failures` says by table what went wrong."""

    tables_scanned: int = 0
    tables_changed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    stage: Stage = Stage()

    def write_to(self, job: v1.Job) -> None:
        """Replace what the job says of its attempt. All failures are counted, the first are kept."""
        job.progress.CopyFrom(self.stage.message)
        job.tables_scanned, job.tables_changed = self.tables_scanned, self.tables_changed
        job.errors = len(self.failures)
        job.message = clipped(self.message)
        kept = list(self.failures.items())[:MAX_TABLE_ERRORS]
        del job.table_errors[:]
        job.table_errors.extend(v1.TableError(table=clipped(table), message=clipped(said)) for table, said in kept)


def clipped(text: str) -> str:
    """`text`, without its middle if it is long: what happened is told first, why it happened last."""
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[: half - 1]}…{text[len(text) - half :]}"


# --------------------
# The record of a job, which clients and workers change in turn.
#
# All that finds a job, the place in the queue too, moves with its record in one batch (see `kinds`). So a change happens
# wholly or not at all, and there is nothing to undo for a process that died.


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
