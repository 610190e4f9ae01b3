"""How often a job is tried, how long a worker may be silent, and how much of what went wrong is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from skiway.model import v1

__all__ = ["ACTIVE", "FINISHED", "JobRules", "Progress", "Stage", "clipped"]

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
