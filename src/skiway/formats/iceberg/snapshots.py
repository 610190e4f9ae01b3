# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.
"""Build a new snapshot: the manifests it inherits, the manifests it writes, its manifest list and its summary."""

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
    """A new snapshot on top of a branch. `written` lists the files that it has written."""

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
        self.inherited: list[ManifestFile] = [each for each in manifests(self.parent, self._io) if has_live_files(each)]
        self._new_manifests: list[ManifestFile] = []
        self._added: list[DataFile] = []
        self._removed: list[DataFile] = []
        self._folder, self._name, self._numbers = metadata_folder(metadata), ids(), count()
        # Later than all snapshots before, so that time travel always finds exactly one.
        self._moment_ms = max(int(clock().timestamp() * 1000), metadata.last_updated_ms + 1)

    def add(self, files: Sequence[DataFile]) -> None:
        """Add data files. Raises Conflict if none of the columns that they were written for exists any more."""
        known = set(self.metadata.schema().field_ids)
        if any(file.column_sizes and known.isdisjoint(file.column_sizes) for file in files):
            raise commit_failed("all columns that the rows were written for have been dropped")
        self._check_present(files)
        self._added += files
        for spec_id in sorted({file.spec_id for file in files}):
            self._new_manifests.insert(
                0, self._manifest(spec_id, added=[each for each in files if each.spec_id == spec_id])
            )

    def _check_present(self, files: Sequence[DataFile]) -> None:
        """Check that garbage collection has not deleted files of a very long statement as orphans."""
        for file in files:
            if self._files.find(file.file_path) is None:
                raise PreconditionFailed(
                    f"file {file.file_path!r}, written by this statement, was deleted before the commit, so nothing was "
                    "committed; retry the statement, and set gc.warehouse.min_age_ms to more than its duration",
                    key="file.missing",
                    file=file.file_path,
                )

    def remove(self, paths: Collection[str]) -> None:
        """Remove data files. Raises Conflict if one of them does not exist."""
        from pyiceberg.manifest import ManifestContent

        missing = set(paths)
        for manifest in list(self.inherited):
            if missing and manifest.content == ManifestContent.DATA:
                missing -= self._remove_from(manifest, missing)
        if missing:
            raise commit_failed(f"{len(missing)} of its data files were rewritten or deleted, such as {min(missing)}")

    def remove_all(self) -> None:
        """Remove all files."""
        for manifest in list(self.inherited):
            self._remove_from(manifest, None)

    def merge(self) -> None:
        """Merge small manifests if the table has too many of them, as its properties define."""
        from pyiceberg.manifest import ManifestContent

        options = self.metadata.properties
        if options.get("commit.manifest-merge.enabled", "true").lower() == "false":
            return
        min_count = int(options.get("commit.manifest.min-count-to-merge", "100"))
        size = int(options.get("commit.manifest.target-size-bytes", str(8 << 20)))
        for spec_id in {each.partition_spec_id for each in self.inherited}:
            small = [
                each
                for each in self.inherited
                if (each.partition_spec_id, each.content) == (spec_id, ManifestContent.DATA)
                and each.manifest_length < size // 2
            ]
            if len(small) >= min_count:
                self._merge(small, spec_id, size)

    def finish(self, operation: str, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
        """Write the manifest list and return the updates that make the snapshot the head of its branch."""
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
            listed=[*self._new_manifests, *self.inherited],
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
        """The requirement that the head of the branch is the parent of this snapshot."""
        from pyiceberg.table.update import AssertRefSnapshotId

        return (AssertRefSnapshotId(ref=self.branch, snapshot_id=self._parent_id),)

    @property
    def _parent_id(self) -> int | None:
        return None if self.parent is None else self.parent.snapshot_id

    def _remove_from(self, manifest: ManifestFile, paths: Collection[str] | None) -> set[str]:
        """Replace a manifest by one without these files (None: without all), and return the removed paths."""
        from skiway.formats.iceberg.manifest_files import entries

        found = entries(manifest, self._io)
        removed = [entry for entry in found if paths is None or entry.data_file.file_path in paths]
        if removed:
            remaining = [entry for entry in found if paths is not None and entry.data_file.file_path not in paths]
            made = self._manifest(
                manifest.partition_spec_id, existing=remaining, deleted=removed, content=manifest.content
            )
            self.inherited.remove(manifest)
            self._new_manifests.append(made)
            self._removed += (entry.data_file for entry in removed)
        return {entry.data_file.file_path for entry in removed}

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
                self._new_manifests.append(self._manifest(spec_id, existing=existing))
                self.inherited = [each for each in self.inherited if each not in group]

    def _manifest(self, spec_id: int, **listed: Any) -> ManifestFile:
        from skiway.formats.iceberg.manifest_files import write_manifest

        location = self._location(f"{self._name}-m{next(self._numbers)}.avro")
        return write_manifest(self.metadata, spec_id, self._io, location=location, snapshot_id=self.id, **listed)

    def _location(self, name: str) -> str:
        location = f"{self._folder}/{name}"
        self.written.append(location)
        return location

    def _summary(self, operation: str, properties: Mapping[str, str]) -> Summary:
        """The standard summary: what was added and removed, and the totals."""
        from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries

        from skiway.formats.iceberg.manifest_files import schema_of

        collected = SnapshotSummaryCollector()
        specs = self.metadata.specs()
        for file in self._added:
            collected.add_file(file, schema_of(self.metadata, specs[file.spec_id]), specs[file.spec_id])
        for file in self._removed:
            collected.remove_file(file, schema_of(self.metadata, specs[file.spec_id]), specs[file.spec_id])
        before = self.parent.summary if self.parent is not None else None
        # PyIceberg does not know the operation `replace`, which is counted like an overwrite.
        summary = update_snapshot_summaries(
            Summary(operation=Operation.OVERWRITE, **collected.build(), **properties),
            None if before is None else before.additional_properties,
        )
        return Summary(operation=Operation(operation), **summary.additional_properties)
