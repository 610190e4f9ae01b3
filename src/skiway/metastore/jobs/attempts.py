"""Attempts at jobs: their progress, and how their ends are logged."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from skiway.model import v1

MAX_MESSAGE: Final = 512
MAX_TABLE_ERRORS: Final = 100

AttemptResult = Literal["succeeded", "partial", "failed", "cancelled", "retried", "released"]
"""How an attempt ended: the final state of the job, or why the job returned to the queue."""

RESULTS: Final[dict[int, AttemptResult]] = {
    v1.JS_SUCCEEDED: "succeeded",
    v1.JS_PARTIAL: "partial",
    v1.JS_FAILED: "failed",
    v1.JS_CANCELLED: "cancelled",
}
LEVELS: Final[dict[AttemptResult, int]] = {
    "partial": logging.WARNING,
    "retried": logging.WARNING,
    "failed": logging.ERROR,
}

log = logging.getLogger("skiway.jobs")


class Amounts(NamedTuple):
    """Files, with their rows and bytes as far as these are known."""

    files: int = 0
    rows: int = 0
    bytes: int = 0


ONE_FILE: Final = Amounts(1)


@dataclass(frozen=True, slots=True)
class Progress:
    """What an attempt has done so far. `failures` maps tables to error messages; `result` has the figures of maintenance.

    `stage` is the progress of the pass: tables in all, done and in progress, and the files of the tables started so far.
    """

    tables_scanned: int = 0
    tables_changed: int = 0
    failures: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    stage: v1.JobProgress = field(default_factory=v1.JobProgress)
    result: v1.MaintenanceResult | None = None

    @property
    def is_partial(self) -> bool:
        """Whether some tables failed and others did not."""
        return 0 < len(self.failures) < self.tables_scanned

    def write_to(self, job: v1.Job) -> None:
        """Replace the progress in the job's record. All failures are counted, the first 100 are stored."""
        job.progress.CopyFrom(self.stage)
        job.tables_scanned, job.tables_changed = self.tables_scanned, self.tables_changed
        job.errors = len(self.failures)
        job.ClearField("maintenance_result")
        if self.result is not None:
            job.maintenance_result.CopyFrom(self.result)
        job.message = clipped(self.message)
        stored = list(self.failures.items())[:MAX_TABLE_ERRORS]
        del job.table_errors[:]
        job.table_errors.extend(v1.TableError(table=clipped(table), message=clipped(error)) for table, error in stored)


def clipped(text: str) -> str:
    """`text`, without its middle if it is long: what failed is said first, and why last."""
    half = MAX_MESSAGE // 2
    return text if len(text) <= MAX_MESSAGE else f"{text[: half - 1]}…{text[len(text) - half :]}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended. `job` is the job afterwards; `seconds` is the duration of the attempt."""

    job: v1.Job
    result: AttemptResult
    seconds: float
    max_attempts: int
    next_s: float = 0.0

    @classmethod
    def ended(cls, job: v1.Job, *, now: datetime, max_attempts: int, released: bool = False) -> Attempt:
        """The attempt that ended now, given the job afterwards. `released` says that it did not fail."""
        seconds = (now - job.started_at.ToDatetime(UTC)).total_seconds()
        result = RESULTS.get(job.state) or ("released" if released else "retried")
        next_s = (job.next_attempt_at.ToDatetime(UTC) - now).total_seconds() if job.state == v1.JS_QUEUED else 0.0
        return cls(job, result, max(0.0, seconds), max_attempts, next_s)


def log_attempt(attempt: Attempt) -> None:
    """Log the end of an attempt: failures as errors; retries and partial success as warnings."""
    job = attempt.job
    facts = {
        "job_id": job.job_id,
        "account_id": job.account_id,
        "connector_id": job.connector_id.id,
        "table_id": job.table_id.id,
        "attempt": job.attempt,
        "result": attempt.result,
        "duration_s": round(attempt.seconds, 3),
        "tables": job.tables_scanned,
        "tables_failed": job.errors,
    }
    known = {name: value for name, value in facts.items() if value != ""}
    log.log(LEVELS.get(attempt.result, logging.INFO), "job %s %s", job.job_id, _story(attempt), extra=known)


def _story(attempt: Attempt) -> str:
    job, took = attempt.job, f"after {attempt.seconds:.1f} s"
    reason = f": {job.message}" if job.message else ""
    match attempt.result:
        case "succeeded":
            return f"succeeded {took}: {job.tables_scanned} tables, {job.tables_changed} changed"
        case "partial":
            return f"succeeded only in part {took}{reason}"
        case "failed":
            return f"failed {took}, in attempt {job.attempt} of at most {attempt.max_attempts}{reason}"
        case "retried":
            which = f"attempt {job.attempt} of at most {attempt.max_attempts}"
            return f"is retried in {attempt.next_s:.1f} s, because {which} failed {took}{reason}"
        case "released":
            return f"returned to the queue {took}, because its worker stops"
        case "cancelled":
            return f"was cancelled {took}"
