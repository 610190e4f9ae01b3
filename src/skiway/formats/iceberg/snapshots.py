# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models take the names of fields, but are typed with those of JSON.
"""A snapshot in the making: which manifests it keeps, which it writes, and what it says about itself."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import PreconditionFailed
from skiway.formats.iceberg.metadata import commit_failed, metadata_folder
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Summary
    from pyiceberg.table.update import TableRequirement, TableUpdate

__all__ = ["MAIN", "NewSnapshot"]

MAIN: Final = "main"


class NewSnapshot:
    """The snapshot that follows the head of a branch. What it writes is listed in `written`."""

    def __init__(
        self,
        metadata: TableMetadata,
        files: TableFiles,
        *,
        clock: Callable[[], datetime],
        branch: str = MAIN,
        ids: Callable[[], object] = uuid.uuid4,
    ) -> None:
        from skiway.formats.iceberg.file_io import WritingIO
        from skiway.formats.iceberg.manifest_files import has_live_files, manifests

        self.metadata, self.branch = metadata, branch
        self.parent = metadata.snapshot_by_name(branch)
        self.id = metadata.new_snapshot_id()
        self.written: list[str] = []
        self._files, self._io = files, WritingIO(files)
        self.kept: list[ManifestFile] = [each for each in manifests(self.parent, self._io) if has_live_files(each)]
        self._made: list[ManifestFile] = []
        self._added: list[DataFile] = []
        self._removed: list[DataFile] = []
        self._folder, self._name, self._numbers = metadata_folder(metadata), ids(), count()
        # Later than all that was before, so that asking by time always finds one.
        self._moment_ms = max(int(clock().timestamp() * 1000), metadata.last_updated_ms + 1)

    def add(self, files: Sequence[DataFile]) -> None:
        """List new data files. Conflict if they were written for columns of which none is left."""
        known = set(self.metadata.schema().field_ids)
        if any(file.column_sizes and known.isdisjoint(file.column_sizes) for file in files):
            raise commit_failed("all the columns that its rows were written for are gone")
        self._check_present(files)
        self._added += files
        for spec_id in sorted({file.spec_id for file in files}):
            self._made.insert(0, self._manifest(spec_id, added=[each for each in files if each.spec_id == spec_id]))

    def _check_present(self, files: Sequence[DataFile]) -> None:
        """A statement may have been silent for so long that its first files were taken for those of a dead one."""
        for file in files:
            if self._files.find(file.file_path) is None:
                raise PreconditionFailed(
                    f"file {file.file_path!r}, which the statement has written, was removed before its commit, so nothing "
                    "is committed: repeat the statement, and let gc.warehouse.min_age_ms be longer than it takes",
                    key="file.missing",
                    file=file.file_path,
                )

    def remove(self, paths: Collection[str]) -> None:
        """List data files no more. Conflict if one of them is not there."""
        from pyiceberg.manifest import ManifestContent

        missing = set(paths)
        for manifest in list(self.kept):
            if missing and manifest.content == ManifestContent.DATA:
                missing -= self._without(manifest, missing)
        if missing:
            raise commit_failed(f"{len(missing)} of its data files were rewritten or deleted, such as {min(missing)}")

    def remove_all(self) -> None:
        """List nothing that was there."""
        for manifest in list(self.kept):
            self._without(manifest, None)

    def merge(self) -> None:
        """Write many small manifests as few, if the table's properties want that."""
        from pyiceberg.manifest import ManifestContent

        options = self.metadata.properties
        if options.get("commit.manifest-merge.enabled", "true").lower() == "false":
            return
        most = int(options.get("commit.manifest.min-count-to-merge", "100"))
        size = int(options.get("commit.manifest.target-size-bytes", str(8 << 20)))
        for spec_id in {each.partition_spec_id for each in self.kept}:
            small = [
                each
                for each in self.kept
                if (each.partition_spec_id, each.content) == (spec_id, ManifestContent.DATA)
                and each.manifest_length < size // 2
            ]
            if len(small) >= most:
                self._merge(small, spec_id, size)

    def finish(self, operation: str, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
        """The updates that put the snapshot at the head of its branch; its manifest list is written."""
        from pyiceberg.table.refs import SnapshotRefType
        from pyiceberg.table.snapshots import Snapshot
        from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate

        from skiway.formats.iceberg.manifest_files import write_list

        location = self._location(f"snap-{self.id}-0-{self._name}.avro")
        rows = write_list(
            self.metadata,
            self._io,
            location=location,
            snapshot_id=self.id,
            parent_id=self._parent_id,
            listed=[*self._made, *self.kept],
        )
        numbered = self.metadata.format_version >= 3
        snapshot = Snapshot(
            snapshot_id=self.id,
            parent_snapshot_id=self._parent_id,
            sequence_number=self.metadata.next_sequence_number(),
            timestamp_ms=self._moment_ms,
            manifest_list=location,
            summary=self._summary(operation, properties),
            schema_id=self.metadata.current_schema_id,
            first_row_id=(getattr(self.metadata, "next_row_id", None) or 0) if numbered else None,
            added_rows=rows if numbered else None,
        )
        head = SetSnapshotRefUpdate(ref_name=self.branch, type=SnapshotRefType.BRANCH, snapshot_id=self.id)
        return AddSnapshotUpdate(snapshot=snapshot), head

    @property
    def requirements(self) -> tuple[TableRequirement, ...]:
        """That the head of the branch is the one that this snapshot follows."""
        from pyiceberg.table.update import AssertRefSnapshotId

        return (AssertRefSnapshotId(ref=self.branch, snapshot_id=self._parent_id),)

    @property
    def _parent_id(self) -> int | None:
        return None if self.parent is None else self.parent.snapshot_id

    def _without(self, manifest: ManifestFile, paths: Collection[str] | None) -> set[str]:
        """Replace a manifest by one without these files, or without any; those that it had."""
        from skiway.formats.iceberg.manifest_files import entries

        found = entries(manifest, self._io)
        gone = [entry for entry in found if paths is None or entry.data_file.file_path in paths]
        if gone:
            stay = [entry for entry in found if paths is not None and entry.data_file.file_path not in paths]
            made = self._manifest(manifest.partition_spec_id, existing=stay, deleted=gone, content=manifest.content)
            self.kept.remove(manifest)
            self._made.append(made)
            self._removed += (entry.data_file for entry in gone)
        return {entry.data_file.file_path for entry in gone}

    def _merge(self, small: Sequence[ManifestFile], spec_id: int, size: int) -> None:
        from skiway.formats.iceberg.manifest_files import entries

        groups: list[list[ManifestFile]] = [[]]
        for each in small:
            if groups[-1] and sum(one.manifest_length for one in groups[-1]) + each.manifest_length > size:
                groups.append([])
            groups[-1].append(each)
        for group in groups:
            if len(group) > 1:
                existing = [entry for manifest in group for entry in entries(manifest, self._io)]
                self._made.append(self._manifest(spec_id, existing=existing))
                self.kept = [each for each in self.kept if each not in group]

    def _manifest(self, spec_id: int, **listed: Any) -> ManifestFile:
        from skiway.formats.iceberg.manifest_files import write_manifest

        location = self._location(f"{self._name}-m{next(self._numbers)}.avro")
        return write_manifest(self.metadata, spec_id, self._io, location=location, snapshot_id=self.id, **listed)

    def _location(self, name: str) -> str:
        location = f"{self._folder}/{name}"
        self.written.append(location)
        return location

    def _summary(self, operation: str, properties: Mapping[str, str]) -> Summary:
        """What other engines write too: what was added and removed, and the totals."""
        from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries

        from skiway.formats.iceberg.manifest_files import schema_of

        collected = SnapshotSummaryCollector()
        specs = self.metadata.specs()
        for file in self._added:
            collected.add_file(file, schema_of(self.metadata, specs[file.spec_id]), specs[file.spec_id])
        for file in self._removed:
            collected.remove_file(file, schema_of(self.metadata, specs[file.spec_id]), specs[file.spec_id])
        before = self.parent.summary if self.parent is not None else None
        # PyIceberg counts what a replacement changes as it does for an overwrite, but does not know its name.
        summary = update_snapshot_summaries(
            Summary(operation=Operation.OVERWRITE, **collected.build(), **properties),
            None if before is None else before.additional_properties,
        )
        return Summary(operation=Operation(operation), **summary.additional_properties)
