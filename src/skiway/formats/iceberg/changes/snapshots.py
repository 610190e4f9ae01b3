# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.
"""New snapshots with their manifests, manifest list and summary. Loads PyIceberg: import it where it is used.

A summary has the files and rows that the snapshot adds and removes, and the totals after it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from copy import copy
from datetime import datetime
from itertools import count as counting
from typing import Any, Final

from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from skiway.errors import PreconditionFailed
from skiway.formats.iceberg.manifest_files import (
    entries,
    has_live_files,
    known_manifests,
    manifests,
    referenced_file,
    schema_of,
    set_partition,
    vector_place,
    write_list,
    write_manifest,
)
from skiway.formats.iceberg.metadata import MAIN, commit_failed, metadata_folder
from skiway.formats.iceberg.metadata_files import WritingIO
from skiway.formats.iceberg.warehouse import TableFiles

_SIZE: Final = 5  # the place of `file_size_in_bytes` in a DataFile


def snapshot_summary(
    metadata: TableMetadata,
    parent: Snapshot | None,
    operation: str,
    *,
    added: Sequence[DataFile],
    removed: Sequence[DataFile],
    properties: Mapping[str, str],
) -> Summary:
    """The summary of a snapshot on top of `parent` that adds and removes these data and delete files."""
    collected = SnapshotSummaryCollector()
    specs = metadata.specs()
    for files, count in ((added, collected.add_file), (removed, collected.remove_file)):
        for file in files:
            count(_measured(file), schema_of(metadata, specs[file.spec_id]), specs[file.spec_id])
    found = collected.build()
    for files, kind in ((added, "added"), (removed, "removed")):
        _count_vectors(found, files, kind)
    before = parent.summary if parent is not None else None
    # PyIceberg does not know the operation `replace`, which is counted like an overwrite.
    summary = update_snapshot_summaries(
        Summary(operation=Operation.OVERWRITE, **found, **properties),
        None if before is None else before.additional_properties,
    )
    return Summary(operation=Operation(operation), **summary.additional_properties)


def _measured(file: DataFile) -> DataFile:
    """The file with the size that counts: deletion vectors share a file, so each counts with its own size."""
    place = vector_place(file)
    if place is None:
        return file
    vector = copy(file)
    vector._data = [*file._data]
    vector[_SIZE] = place[1]
    return vector


def _count_vectors(found: dict[str, str], files: Sequence[DataFile], kind: str) -> None:
    """Count deletion vectors apart from position delete files; PyIceberg does not distinguish them."""
    vectors = sum(vector_place(file) is not None for file in files)
    if not vectors:
        return
    name = f"{kind}-position-delete-files"
    others = int(found.pop(name)) - vectors
    found[f"{kind}-dvs"] = str(vectors)
    if others:
        found[name] = str(others)


class NewSnapshot:
    """A new snapshot on top of the current one, with a random id by default. `written` lists the files that it has written.

    As a context manager, it deletes them if the block fails.
    """

    def __init__(
        self,
        metadata: TableMetadata,
        files: TableFiles,
        *,
        clock: Callable[[], datetime],
        snapshot_id: int | None = None,
        ids: Callable[[], object] = uuid.uuid4,
    ) -> None:
        self.metadata, self.files = metadata, files
        self.parent = metadata.snapshot_by_name(MAIN)
        self.id = metadata.new_snapshot_id() if snapshot_id is None else snapshot_id
        self.written: list[str] = []
        self._io = WritingIO(files)
        self.inherited: list[ManifestFile] = [
            manifest for manifest in known_manifests(self.parent, self._io) if has_live_files(manifest)
        ]
        self._new_manifests: list[ManifestFile] = []
        self._added: list[DataFile] = []
        self._removed: list[DataFile] = []
        self._folder, self._name, self._numbers = metadata_folder(metadata), ids(), counting()
        # Later than all snapshots before, so that time travel always finds exactly one.
        self._moment_ms = max(int(clock().timestamp() * 1000), metadata.last_updated_ms + 1)

    def __enter__(self) -> NewSnapshot:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.files.remove(self.written)

    def add(self, files: Sequence[DataFile], *, is_foreign: bool = False) -> None:
        """Add data files, which are `is_foreign` if they belong to another table.

        Raises Conflict if none of the columns that they were written for exists any more.
        """
        known = set(self.metadata.schema().field_ids)
        if any(file.column_sizes and known.isdisjoint(file.column_sizes) for file in files):
            raise commit_failed("all columns that the rows were written for have been dropped")
        if not is_foreign:
            self._check_present(files)
        self._added += files
        for spec_id in sorted({file.spec_id for file in files}):
            self._new_manifests.insert(
                0, self._manifest(spec_id, added=[file for file in files if file.spec_id == spec_id])
            )

    def _check_present(self, files: Sequence[DataFile]) -> None:
        """Check that garbage collection has not deleted files of a very long statement as orphans."""
        for file in files:
            if self.files.find(file.file_path) is None:
                raise PreconditionFailed(
                    f"file {file.file_path!r}, written by this statement, was deleted before the commit, so nothing was "
                    "committed; retry the statement, and set gc.warehouse.min_age_ms to more than its duration",
                    key="file.missing",
                    file=file.file_path,
                )

    def remove(self, paths: Collection[str], *, deletes: Sequence[DataFile] = ()) -> None:
        """Remove data files, and delete rows of other data files with delete files, each of which names its data file.

        Delete files that these changes supersede are removed. Raises Conflict if one of the data files does not exist.
        """
        removed = set(paths)
        changed: dict[str, list[DataFile]] = {}
        for each in deletes:
            changed.setdefault(str(referenced_file(each)), []).append(each)
        missing = removed | changed.keys()
        for manifest in self._inherited(ManifestContent.DATA):
            if missing:
                found = entries(manifest, self._io)
                self._replace(manifest, found, lambda file: file.file_path in removed)
                for entry in found:
                    for delete in changed.get(entry.data_file.file_path, ()):
                        set_partition(delete, entry.data_file)
                missing -= {entry.data_file.file_path for entry in found}
        if missing:
            raise commit_failed(f"{len(missing)} of its data files were rewritten or deleted, such as {min(missing)}")
        # A deletion vector replaces all older deletes of its data file.
        superseded = removed | changed.keys() if self.metadata.format_version >= 3 else removed
        for manifest in self._inherited(ManifestContent.DELETES):
            if superseded:
                self._replace(manifest, entries(manifest, self._io), lambda file: referenced_file(file) in superseded)
        self._add_deletes(deletes)

    def _add_deletes(self, deletes: Sequence[DataFile]) -> None:
        if self.metadata.format_version >= 3 and any(vector_place(delete) is None for delete in deletes):
            raise commit_failed("it was upgraded to version 3, which has other delete files")
        self._check_present(deletes)
        self._added += deletes
        for spec_id in sorted({delete.spec_id for delete in deletes}):
            some = [delete for delete in deletes if delete.spec_id == spec_id]
            self._new_manifests.append(self._manifest(spec_id, added=some, content=ManifestContent.DELETES))

    def check_current(self, snapshot_id: int | None) -> None:
        """Raise Conflict unless this snapshot, or none, is the current one."""
        if self._parent_id != snapshot_id:
            raise commit_failed(
                "it has rows by now" if snapshot_id is None else f"snapshot {snapshot_id} is no longer the current one"
            )

    def check_deletes(self, paths: Collection[str], *, based_on: int | None) -> None:
        """Raise Conflict if these data files do not have the same delete files as in the snapshot `based_on`.

        If the snapshot has expired, raise if they have any.
        """
        if based_on is not None and based_on == self._parent_id:
            return
        base = None if based_on is None else self.metadata.snapshot_by_id(based_on)
        then = [manifest for manifest in manifests(base, self._io) if has_live_files(manifest)]
        old = {each.manifest_path: each for each in then if each.content == ManifestContent.DELETES}
        new = {each.manifest_path: each for each in self._inherited(ManifestContent.DELETES)}
        # Manifests never change, so only those that one of the two snapshots does not have can make a difference.
        before, now = (
            self._deletes_of(set(paths), (one[path] for path in one.keys() - other.keys()))
            for one, other in ((old, new), (new, old))
        )
        if before != now:
            raise commit_failed("rows were deleted from it since the rows to change were read")

    def _deletes_of(self, paths: Set[str], listed: Iterable[ManifestFile]) -> set[tuple[str, object]]:
        """The delete files in these manifests that may apply to one of the data files."""
        files = [entry.data_file for manifest in listed for entry in entries(manifest, self._io)]
        named = [(file, referenced_file(file)) for file in files]
        return {(file.file_path, vector_place(file)) for file, path in named if path is None or path in paths}

    def _inherited(self, content: ManifestContent) -> list[ManifestFile]:
        return [manifest for manifest in self.inherited if manifest.content == content]

    def remove_all(self) -> None:
        """Remove all files."""
        for manifest in list(self.inherited):
            self._replace(manifest, entries(manifest, self._io), lambda _: True)

    def remove_deletes(self, places: Collection[tuple[str, object]]) -> None:
        """Remove delete files, named by their paths and, for deletion vectors, their places in the file."""
        named = frozenset(places)
        for manifest in self._inherited(ManifestContent.DELETES):
            found = entries(manifest, self._io)
            self._replace(manifest, found, lambda file: (file.file_path, vector_place(file)) in named)

    @property
    def is_changed(self) -> bool:
        """Whether the snapshot differs from its parent so far."""
        return bool(self._new_manifests)

    def merge(self, *, min_count: int | None = None) -> None:
        """Merge small manifests if there are at least `min_count` of them, by default as the table's properties define."""
        options = self.metadata.properties
        if min_count is None and options.get("commit.manifest-merge.enabled", "true").lower() == "false":
            return
        if min_count is None:
            min_count = int(options.get("commit.manifest.min-count-to-merge", "100"))
        size = int(options.get("commit.manifest.target-size-bytes", str(8 << 20)))
        for spec_id, content in {(manifest.partition_spec_id, manifest.content) for manifest in self.inherited}:
            small = [
                each
                for each in self._inherited(content)
                if each.partition_spec_id == spec_id and each.manifest_length < size // 2
            ]
            if len(small) >= min_count:
                self._merge(small, size, spec_id=spec_id, content=content)

    def finish(self, operation: str, properties: Mapping[str, str]) -> tuple[TableUpdate, ...]:
        """Write the manifest list and return the updates that make the snapshot the head of its branch."""
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
            summary=snapshot_summary(
                self.metadata,
                self.parent,
                operation,
                added=self._added,
                removed=self._removed,
                properties=properties,
            ),
            schema_id=self.metadata.current_schema_id,
            first_row_id=(getattr(self.metadata, "next_row_id", None) or 0) if numbered else None,
            added_rows=rows if numbered else None,
        )
        head = SetSnapshotRefUpdate(ref_name=MAIN, type=SnapshotRefType.BRANCH, snapshot_id=self.id)
        return AddSnapshotUpdate(snapshot=snapshot), head

    @property
    def requirements(self) -> tuple[TableRequirement, ...]:
        """The requirement that the head of the branch is the parent of this snapshot."""
        return (AssertRefSnapshotId(ref=MAIN, snapshot_id=self._parent_id),)

    @property
    def _parent_id(self) -> int | None:
        return None if self.parent is None else self.parent.snapshot_id

    def _replace(
        self, manifest: ManifestFile, found: Sequence[ManifestEntry], is_removed: Callable[[DataFile], bool]
    ) -> None:
        """Replace a manifest, which has the entries `found`, by one without some of its files."""
        removed = [entry for entry in found if is_removed(entry.data_file)]
        if removed:
            remaining = [entry for entry in found if not is_removed(entry.data_file)]
            made = self._manifest(
                manifest.partition_spec_id, existing=remaining, deleted=removed, content=manifest.content
            )
            self.inherited.remove(manifest)
            self._new_manifests.append(made)
            self._removed += (entry.data_file for entry in removed)

    def _merge(self, small: Sequence[ManifestFile], size: int, *, spec_id: int, content: ManifestContent) -> None:
        groups: list[list[ManifestFile]] = [[]]
        for each in small:
            if groups[-1] and sum(one.manifest_length for one in groups[-1]) + each.manifest_length > size:
                groups.append([])
            groups[-1].append(each)
        for group in groups:
            if len(group) > 1:
                existing = [entry for manifest in group for entry in entries(manifest, self._io)]
                self._new_manifests.append(self._manifest(spec_id, existing=existing, content=content))
                self.inherited = [manifest for manifest in self.inherited if manifest not in group]

    def _manifest(self, spec_id: int, **listed: Any) -> ManifestFile:
        location = self._location(f"{self._name}-m{next(self._numbers)}.avro")
        return write_manifest(self.metadata, spec_id, self._io, location=location, snapshot_id=self.id, **listed)

    def _location(self, name: str) -> str:
        location = f"{self._folder}/{name}"
        self.written.append(location)
        return location
