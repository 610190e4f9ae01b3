"""Optimize a managed table: pack small files, apply deletes, put rows in order, and merge manifests.

Groups of files are rewritten one after another, and committed as soon as enough is ready, so that little work is lost if the
process stops. Every commit is a `replace` snapshot with the same rows. Writers win: if others have changed files of a
group in between, its commit fails, and those of its files that nobody has changed are rewritten again from the new snapshot,
and then half of them, a few times. A group that keeps losing is given up for now; the table is then as its writers have left it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from skiway.errors import Conflict, NotFound, PreconditionFailed
from skiway.formats import data_files
from skiway.formats.iceberg.changes.commits import overwrite, tidy
from skiway.formats.iceberg.changes.maintenance import (
    CompactionRules,
    FileGroup,
    file_groups,
    rewritten,
    unused_deletes,
)
from skiway.formats.iceberg.warehouse import TableFiles, Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore.managed.commits import change
from skiway.metastore.managed.states import ManagedTable, load
from skiway.metastore.records.realm import Realm
from skiway.model import v1

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table.metadata import TableMetadata


ATTEMPTS: Final = 4
"""How often a group of files is tried."""
_COMMIT_BYTES: Final = 1 << 30
_COMMIT_GROUPS: Final = 100
MIN_MANIFESTS: Final = 5
"""The number of small manifests of a partition spec from which on they are merged."""
_REFUSED: Final = (Conflict, NotFound, PreconditionFailed)  # then nothing was committed
_SUMMARY: Final = {"skiway.maintenance": "optimize"}

RulesOf = Callable[["TableMetadata"], CompactionRules]


@dataclass(slots=True)
class OptimizeReport:
    """What was done: files before and after, and the groups that were given up, with the reasons."""

    groups: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    commits: int = 0
    given_up: list[str] = field(default_factory=list)
    deletes_removed: int = 0
    manifests_before: int = 0
    manifests_after: int = 0


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A group whose new files wait for the commit. `based_on` is the snapshot that its rows were read from."""

    group: FileGroup
    writer: DataFileWriter
    added: list[DataFile]
    based_on: int


def planned_groups(table: ManagedTable, rules: CompactionRules) -> list[FileGroup]:
    """The groups of files that `optimize` would rewrite."""
    current = table.handle.current()
    return [] if current is None else file_groups(table.handle, current, rules)


def optimize(
    realm: Realm,
    warehouse: Warehouse,
    table_id: v1.ResourceId,
    *,
    rules_of: RulesOf = CompactionRules.of,
    check: Callable[[], None] = lambda: None,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> OptimizeReport:
    """Rewrite what is worth it, and return what was done.

    `check` may raise to stop; what was committed before stays. `on_progress` gets the numbers of files that are done and in all.
    """
    return _Run(realm, warehouse, table_id, rules_of, check, on_progress).run()


@dataclass(slots=True)
class _Run:
    realm: Realm
    warehouse: Warehouse
    table_id: v1.ResourceId
    rules_of: RulesOf
    check: Callable[[], None]
    on_progress: Callable[[int, int], None]
    report: OptimizeReport = field(default_factory=OptimizeReport)
    _done: int = 0

    def run(self) -> OptimizeReport:
        table = self._load()
        self.report.manifests_before = len(live_manifests(table))
        groups = planned_groups(table, self.rules_of(table.metadata))
        total = sum(group.files.num_rows for group in groups)
        waiting: list[_Rewritten] = []
        try:
            for group in groups:
                self.on_progress(self._done, total)
                made = self._rewritten(table, group)
                if made is not None:
                    waiting.append(made)
                self._done += group.files.num_rows
                if sum(each.group.size_bytes for each in waiting) >= _COMMIT_BYTES or len(waiting) >= _COMMIT_GROUPS:
                    self._commit(waiting)
            self._commit(waiting)
        finally:
            for each in waiting:  # those that were not committed because something failed
                each.writer.abort()
        self.on_progress(total, total)
        self._tidy()
        return self.report

    def _load(self) -> ManagedTable:
        return load(self.realm, self.warehouse, self.table_id)

    def _rewritten(self, table: ManagedTable, group: FileGroup) -> _Rewritten | None:
        """The new files of a group, as it is in the current snapshot of `table`; None if there is nothing left of it."""
        self.check()
        current = table.handle.current()
        if current is None or not group.files.num_rows:
            return None
        rules = self.rules_of(table.metadata)
        writer, added = rewritten(table.handle, current, group, rules, files=table.files, check=self.check)
        return _Rewritten(group, writer, added, current.id)

    def _commit(self, waiting: list[_Rewritten]) -> None:
        """Commit all groups at once; if others have changed one of them, each on its own. Empties the list.

        After an error that leaves the outcome open, the new files stay, because the commit may have happened.
        """
        self.check()
        made, waiting[:] = list(waiting), []
        if len(made) > 1:
            try:
                self._publish(made, made[0].based_on)
            except _REFUSED:
                pass
            else:
                return
        for each in made:
            self._commit_alone(each)

    def _publish(self, made: list[_Rewritten], based_on: int) -> None:
        removed = [path for each in made for path in each.group.paths]
        added = [file for each in made for file in each.added]
        producer = overwrite(removed, added, based_on=based_on, operation="replace", properties=_SUMMARY)
        change(self.realm, self.warehouse, self.table_id, producer)
        self.report.commits += 1
        self.report.groups += len(made)
        self.report.files_before += len(removed)
        self.report.files_after += len(added)
        self.report.bytes_before += sum(each.group.size_bytes for each in made)
        self.report.bytes_after += sum(file.file_size_in_bytes for file in added)

    def _commit_alone(self, made: _Rewritten) -> None:
        """Commit one group. If others were faster, rewrite what is left of it, until the attempts are used up."""
        reason = ""
        for attempt in range(ATTEMPTS):
            try:
                self._publish([made], made.based_on)
            except _REFUSED as error:
                reason = error.message
                made.writer.abort()
            else:
                return
            if attempt + 1 < ATTEMPTS:
                again = self._again(made.group, halved=attempt > 0)
                if again is None:
                    return  # others have changed all its files
                made = again
        self.report.given_up.append(f"{made.group.files.num_rows} files: {reason}")

    def _again(self, group: FileGroup, *, halved: bool) -> _Rewritten | None:
        table = self._load()
        current = table.handle.current()
        if current is None:
            return None
        left = group.unchanged_in(data_files(table.handle.files(current)))
        if halved:  # it takes half the time, in which others change fewer files; the next run takes care of the rest
            left = replace(left, files=left.files[: max(2, left.files.num_rows // 2)])
        return self._rewritten(table, left)

    def _tidy(self) -> None:
        """Remove delete files that delete nothing any more, and merge small manifests."""
        self.check()
        found: list[int] = [0]

        def unused(metadata: TableMetadata, files: TableFiles) -> set[tuple[str, object]]:
            places = unused_deletes(metadata, files)
            found[0] = len(places)
            return places

        before = self._load()
        producer = tidy(unused, min_manifests=MIN_MANIFESTS, properties=_SUMMARY)
        table = change(self.realm, self.warehouse, self.table_id, producer)
        self.report.commits += table.metadata_location != before.metadata_location
        self.report.deletes_removed = found[0]
        self.report.manifests_after = len(live_manifests(table))


def live_manifests(table: ManagedTable) -> list[ManifestFile]:
    """The manifests of the current snapshot that have files which are not deleted."""
    from skiway.formats.iceberg.manifest_files import has_live_files, manifests
    from skiway.formats.iceberg.metadata_files import ReadingIO

    current = table.metadata.current_snapshot()
    return [manifest for manifest in manifests(current, ReadingIO(table.files)) if has_live_files(manifest)]
