"""The progress and outcome of a pass over a connector, and how a run is stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from skiway.errors import Cancelled, Contention, PreconditionFailed, TimedOut, Unavailable
from skiway.formats import Snapshot, TableHandle
from skiway.metastore.connectors.specs import ColumnChoice
from skiway.metastore.jobs.attempts import Amounts, Progress, clipped
from skiway.metastore.records.realm import Realm
from skiway.model import v1

SHOWN_FILES: Final = 3
TRANSIENT = (Unavailable, TimedOut, Contention)

LEFT_OUT: Final = "columns.left_out"
"""Property of a table's statistics: the ids of the columns that were not profiled."""


class Profiled(Protocol):
    """The outcome of a profile. `failed` maps the paths of unreadable files to the reasons.

    `other_formats` counts the files, by format, that are not profiled because they are not Parquet.
    """

    @property
    def failed(self) -> Mapping[str, str]: ...
    @property
    def other_formats(self) -> Mapping[str, int]: ...


class Profile(Protocol):
    """Profiles the files of a snapshot, and stores statistics of the table and of the chosen columns.

    `on_progress` gets what of the files is done, and what there is in all. Files that could not be read are in the outcome. `again` is
    empty, or the id of a run that reads all files, even those that were profiled before.
    """

    def __call__(
        self,
        realm: Realm,
        table_id: v1.ResourceId,
        snapshot: Snapshot,
        *,
        handle: TableHandle,
        cancelled: Callable[[], bool],
        columns: ColumnChoice,
        again: str,
        on_progress: Callable[[Amounts, Amounts], None],
    ) -> Profiled | None: ...


class Control:
    """How a run is stopped and reports its progress. This one never stops and does not report.

    Methods may be called from several threads.
    """

    def check(self) -> None:
        """Raise `Cancelled` if the run must stop. Called before every write."""

    def report(self, done: Progress) -> None:
        """Report the progress so far."""

    def must_stop(self) -> bool:
        """Whether `check` would raise."""
        try:
            self.check()
        except Cancelled:
            return True
        return False


@dataclass(slots=True)
class Stages:
    """The progress of a pass, table by table."""

    mode: v1.CaptureMode.ValueType = v1.CAP_UNSPECIFIED
    total: int = 0
    _done: int = 0
    _busy: list[str] = field(default_factory=list)
    _files: dict[str, tuple[Amounts, Amounts]] = field(default_factory=dict)

    def begun(self, table: str) -> None:
        """Record that a table is in progress."""
        self._busy.append(table)

    def ended(self, table: str) -> None:
        """Record that a table is done."""
        self._busy.remove(table)
        self._done += 1

    def files(self, of: str, done: Amounts, total: Amounts) -> None:
        """Record how much of the files of a snapshot is done."""
        self._files[of] = done, total

    @property
    def now(self) -> v1.JobProgress:
        """The progress as jobs store it."""
        done, total = (_sum(file[place] for file in self._files.values()) for place in (0, 1))
        return v1.JobProgress(
            **{"pass": self.mode},
            tables_total=self.total,
            tables_done=self._done,
            tables=map(clipped, self._busy),
            files_total=total.files,
            files_done=done.files,
            rows_total=total.rows,
            rows_done=done.rows,
            bytes_total=total.bytes,
            bytes_done=done.bytes,
            spark_ui="",  # the worker knows it
        )


def _sum(parts: Iterable[Amounts]) -> Amounts:
    return Amounts(*map(sum, zip(Amounts(), *parts, strict=True)))


@dataclass(slots=True)
class Outcome:
    """The result of a run so far. `transient` says whether a retry may fix a failure.

    Maintenance also has a `note` that says what was done, and a `result` with figures. `other_formats` counts the files of tables,
    by format, that have no profile because they are not Parquet.
    """

    scanned: int = 0
    changed: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    transient: bool = False
    stages: Stages = field(default_factory=Stages)
    note: str = ""
    result: v1.MaintenanceResult | None = None
    other_formats: dict[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def progress(self) -> Progress:
        """The progress as jobs store it."""
        return Progress(self.scanned, self.changed, dict(self.failures), self.message, self.stages.now, self.result)

    @property
    def message(self) -> str:
        """A summary of the failures; the notes if there are none."""
        if not self.failures:
            return " ".join(filter(None, (self.note, self._unprofiled)))
        details = "; ".join(f"{table}: {reason}" for table, reason in self.failures.items())
        return f"{len(self.failures)} of {self.scanned} tables failed: {details}"

    @property
    def _unprofiled(self) -> str:
        """Which tables have files in other formats than Parquet, if any."""
        counts = {
            table: ", ".join(
                f"{count} {'file' if count == 1 else 'files'} in {name}" for name, count in formats.items()
            )
            for table, formats in self.other_formats.items()
        }
        tables = "; ".join(f"{table}: {text}" for table, text in counts.items())
        return (
            f"rows in Avro and ORC are read, but not profiled ({tables}): rewrite these files as Parquet for statistics of all rows"
            if tables
            else ""
        )

    def and_then(self, later: Outcome) -> Outcome:
        """This pass and the next one, over the same tables."""
        return Outcome(
            max(self.scanned, later.scanned),
            max(self.changed, later.changed),
            {**self.failures, **later.failures},
            self.transient or later.transient,
            later.stages,
            "; ".join(filter(None, (self.note, later.note))),
            other_formats={**self.other_formats, **later.other_formats},
        )


def unread(failed: Mapping[str, str]) -> PreconditionFailed:
    """The error that some files could not be read. The statistics of the others are stored."""
    shown = "; ".join(f"{path}: {reason}" for path, reason in list(failed.items())[:SHOWN_FILES])
    more = f" and {len(failed) - SHOWN_FILES} more" if len(failed) > SHOWN_FILES else ""
    return PreconditionFailed(
        f"{len(failed)} files could not be profiled, so statistics cover only the others: {shown}{more}; restore the"
        " files, or remove them from the table, and synchronise again",
        key="profile.files.failed",
        files=str(len(failed)),
    )
