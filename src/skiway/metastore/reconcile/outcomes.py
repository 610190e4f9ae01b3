"""What a pass over a connector tells: how far it is, what came of it, and when it must stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from skiway.errors import Cancelled, Contention, PreconditionFailed, TimedOut, Unavailable
from skiway.formats import Snapshot, TableHandle
from skiway.metastore.connectors.specs import ColumnChoice
from skiway.metastore.jobs.queue import Progress, Stage
from skiway.metastore.records.realm import Realm
from skiway.model import v1

__all__ = ["LEFT_OUT", "TRANSIENT", "Control", "Outcome", "Profile", "Profiled", "Stages", "unread"]

SHOWN_FILES: Final = 3
TRANSIENT = (Unavailable, TimedOut, Contention)

LEFT_OUT: Final = "columns.left_out"
"""Property of a table's statistics: the ids of columns that were not to be profiled."""


class Profiled(Protocol):
    """What came of a profile; `failed` says by path why files could not be read."""

    @property
    def failed(self) -> Mapping[str, str]: ...


class Profile(Protocol):
    """Profiles the files of a snapshot and stores statistics of the table and of those columns that are chosen.

    `on_progress` is told how many files of how many are done. What could not be read is in the answer.
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
        on_progress: Callable[[int, int], None],
    ) -> Profiled | None: ...


class Control:
    """How a run hears that it must stop, and tells how far it is. This one never stops and tells nobody.

    All calls may come from several threads at once.
    """

    def check(self) -> None:
        """Raise `Cancelled` if the run must stop. Called before everything that is written."""

    def report(self, done: Progress) -> None:
        """Take down what was done so far."""

    def must_stop(self) -> bool:
        """Whether `check` would raise."""
        try:
            self.check()
        except Cancelled:
            return True
        return False


@dataclass(slots=True)
class Stages:
    """How far a pass is, table by table."""

    mode: v1.CaptureMode.ValueType = v1.CAP_UNSPECIFIED
    total: int = 0
    _done: int = 0
    _busy: list[str] = field(default_factory=list)
    _files: dict[str, tuple[int, int]] = field(default_factory=dict)

    def begun(self, table: str) -> None:
        """A table is worked on."""
        self._busy.append(table)

    def ended(self, table: str) -> None:
        """It is not any more."""
        self._busy.remove(table)
        self._done += 1

    def files(self, of: str, done: int, total: int) -> None:
        """So many files of a snapshot are profiled."""
        self._files[of] = done, total

    @property
    def now(self) -> Stage:
        """As it is told."""
        done, total = (sum(each) for each in zip(*self._files.values(), strict=True)) if self._files else (0, 0)
        return Stage(self.mode, self.total, self._done, tuple(self._busy), total, done)


@dataclass(slots=True)
class Outcome:
    """What a run has done so far. `transient` says whether a failure may be gone when the run is made again."""

    scanned: int = 0
    changed: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    transient: bool = False
    stages: Stages = field(default_factory=Stages)

    @property
    def progress(self) -> Progress:
        """The same, as jobs tell it."""
        return Progress(self.scanned, self.changed, dict(self.failures), self.message, self.stages.now)

    @property
    def message(self) -> str:
        """What there is to say of failures."""
        if not self.failures:
            return ""
        told = "; ".join(f"{table}: {reason}" for table, reason in self.failures.items())
        return f"partial failure, {len(self.failures)} of {self.scanned} tables: {told}"

    def and_then(self, later: Outcome) -> Outcome:
        """This pass and the one after it, over the same tables."""
        return Outcome(
            max(self.scanned, later.scanned),
            max(self.changed, later.changed),
            {**self.failures, **later.failures},
            self.transient or later.transient,
            later.stages,
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
