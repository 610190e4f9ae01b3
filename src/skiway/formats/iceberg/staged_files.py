"""Data files that wait for their commit, described by a manifest of their own.

The commit reads the descriptions back and writes new manifests, so the manifest here is never part of a snapshot.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.metadata import TableMetadata

__all__ = ["StagedManifest", "read_staged", "write_staged"]


@dataclass(frozen=True, slots=True)
class StagedManifest:
    """Where a manifest of staged data files is, how long it is, and how the table was partitioned when they were written."""

    location: str
    length: int
    spec_id: int


def write_staged(
    files: TableFiles,
    metadata: TableMetadata,
    added: Sequence[DataFile],
    *,
    ids: Callable[[], object] = uuid.uuid4,
) -> StagedManifest:
    """Describe data files that one `DataFileWriter` has written for `metadata`; there must be at least one."""
    from skiway.formats.iceberg.file_io import WritingIO
    from skiway.formats.iceberg.manifest_writing import write_manifest

    location = f"{metadata.location}/metadata/staged-{ids()}.avro"
    spec_id = added[0].spec_id
    try:
        made = write_manifest(
            metadata, spec_id, WritingIO(files), location=location, snapshot_id=metadata.new_snapshot_id(), added=added
        )
    except BaseException:
        files.remove([location])
        raise
    return StagedManifest(location, made.manifest_length, spec_id)


def read_staged(files: TableFiles, staged: StagedManifest) -> list[DataFile]:
    """The data files, as they were written."""
    from pyiceberg.manifest import ManifestFile

    from skiway.formats.iceberg.file_io import WritingIO
    from skiway.formats.iceberg.manifest_files import entries

    manifest = ManifestFile.from_args(
        _table_format_version=3,
        manifest_path=staged.location,
        manifest_length=staged.length,
        partition_spec_id=staged.spec_id,
    )
    return [entry.data_file for entry in entries(manifest, WritingIO(files))]
