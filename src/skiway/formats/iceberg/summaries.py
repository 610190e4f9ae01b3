# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.
"""Snapshot summaries: the files and rows that a snapshot adds and removes, and the totals after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot, Summary

__all__ = ["snapshot_summary"]

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
    from pyiceberg.table.snapshots import Operation, SnapshotSummaryCollector, Summary, update_snapshot_summaries

    from skiway.formats.iceberg.manifest_writing import schema_of

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
    from skiway.formats.iceberg.manifest_files import vector_place

    place = vector_place(file)
    if place is None:
        return file
    vector = copy(file)
    vector._data = [*file._data]
    vector[_SIZE] = place[1]
    return vector


def _count_vectors(found: dict[str, str], files: Sequence[DataFile], kind: str) -> None:
    """Count deletion vectors apart from position delete files; PyIceberg does not distinguish them."""
    from skiway.formats.iceberg.manifest_files import vector_place

    vectors = sum(vector_place(file) is not None for file in files)
    if not vectors:
        return
    name = f"{kind}-position-delete-files"
    others = int(found.pop(name)) - vectors
    found[f"{kind}-dvs"] = str(vectors)
    if others:
        found[name] = str(others)
