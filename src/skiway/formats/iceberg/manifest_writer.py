# mypy: disable-error-code=no-any-return
"""Manifests and manifest lists, read and written whole, in versions 2 and 3 of the format.

PyIceberg writes version 2 and data manifests only, and reads no further than version 2. This module is the one place
that builds on the insides of its writers; it adds delete manifests, and the row ids of version 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pyiceberg.avro.file import AvroOutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from skiway.formats.iceberg.avro import live_entries
from skiway.formats.iceberg.avro import manifests as listed_manifests
from skiway.formats.iceberg.file_io import ReadingIO, WritingIO

__all__ = ["entries", "has_live_files", "manifests", "schema_of", "write_list", "write_manifest"]

_NEWEST: Literal[3] = 3  # it has the fields of all versions
_FIRST_ROW_OF_FILE = 16
_FIRST_ROW_OF_MANIFEST = 15


def manifests(snapshot: Snapshot | None, io: ReadingIO) -> list[ManifestFile]:
    """The manifests of a snapshot, in the order of its list; none for none."""
    return [] if snapshot is None else listed_manifests(snapshot, io)


def has_live_files(manifest: ManifestFile) -> bool:
    """Does it list files of the table, or only such as were deleted?"""
    return manifest.has_added_files() or manifest.has_existing_files()


def entries(manifest: ManifestFile, io: ReadingIO) -> list[ManifestEntry]:
    """The files that a manifest says are in the table, with all that they inherit from it."""
    found = live_entries(manifest, io)
    next_row = manifest[_FIRST_ROW_OF_MANIFEST]
    for entry in found:
        entry.data_file.spec_id = manifest.partition_spec_id
        if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
            entry.snapshot_id = manifest.added_snapshot_id
        if entry.sequence_number is None:
            entry.sequence_number = manifest.sequence_number
        if entry.file_sequence_number is None:
            entry.file_sequence_number = manifest.sequence_number
        if next_row is not None and entry.data_file[_FIRST_ROW_OF_FILE] is None:
            entry.data_file[_FIRST_ROW_OF_FILE] = next_row
            next_row += entry.data_file.record_count
    return found


def write_manifest(
    metadata: TableMetadata,
    spec_id: int,
    io: WritingIO,
    *,
    location: str,
    snapshot_id: int,
    added: Iterable[DataFile] = (),
    existing: Iterable[ManifestEntry] = (),
    deleted: Iterable[ManifestEntry] = (),
    content: ManifestContent = ManifestContent.DATA,
) -> ManifestFile:
    """A new manifest of `snapshot_id`, which must list something."""
    spec = metadata.specs()[spec_id]
    codec: Any = metadata.properties.get("write.avro.compression-codec", "gzip")
    schema = schema_of(metadata, spec)
    writer = _Manifest(spec, schema, io.new_output(location), snapshot_id, codec)
    writer.format, writer.holds = metadata.format_version, content
    with writer:
        for file in added:
            writer.add_entry(_added(file, snapshot_id))
        for entry in existing:
            writer.existing(entry)
        for entry in deleted:
            writer.delete(entry)
    made = writer.to_manifest_file()
    return ManifestFile(*made._data, None)


def schema_of(metadata: TableMetadata, spec: PartitionSpec) -> Schema:
    """The newest schema that has all columns that the spec's values are made of."""
    sources = {field.source_id for field in spec.fields}
    for schema in (metadata.schema(), *reversed(metadata.schemas)):
        if sources <= set(schema.field_ids):
            return schema
    return metadata.schema()


def _added(file: DataFile, snapshot_id: int) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot_id,
        sequence_number=None,
        file_sequence_number=None,
        data_file=file,
    )


class _Manifest(ManifestWriterV2):
    """A writer that also knows delete manifests and version 3."""

    format: Literal[1, 2, 3] = 2
    holds = ManifestContent.DATA

    @property
    def version(self) -> Literal[1, 2, 3]:
        return self.format

    def content(self) -> ManifestContent:
        return self.holds

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "data" if self.holds == ManifestContent.DATA else "deletes"}

    def new_writer(self) -> AvroOutputFile[ManifestEntry]:
        return AvroOutputFile[ManifestEntry](
            output_file=self._output_file,
            file_schema=self._with_partition(self.format),
            record_schema=self._with_partition(_NEWEST),
            schema_name="manifest_entry",
            metadata=self._meta,
        )


def write_list(
    metadata: TableMetadata,
    io: WritingIO,
    *,
    location: str,
    snapshot_id: int,
    parent_id: int | None,
    listed: Sequence[ManifestFile],
) -> int:
    """Write the manifest list of a new snapshot; how many row ids it gives away."""
    codec: Any = metadata.properties.get("write.avro.compression-codec", "gzip")
    writer = _List(
        output_file=io.new_output(location),
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_id,
        sequence_number=metadata.next_sequence_number(),
        compression=codec,
    )
    if metadata.format_version == _NEWEST:
        writer.number_rows(getattr(metadata, "next_row_id", None) or 0)
    with writer:
        writer.add_manifests(list(listed))
    return writer.rows_numbered


class _List(ManifestListWriterV2):
    """A writer that also knows version 3, in which new data manifests get ids for their rows."""

    rows_numbered = 0
    _next_row: int | None = None

    def number_rows(self, first: int) -> None:
        self._format_version = _NEWEST
        self._next_row = first
        self._meta |= {"format-version": str(_NEWEST), "first-row-id": str(first)}

    def __enter__(self) -> _List:
        self._writer = AvroOutputFile[ManifestFile](
            output_file=self._output_file,
            record_schema=MANIFEST_LIST_FILE_SCHEMAS[_NEWEST],
            file_schema=MANIFEST_LIST_FILE_SCHEMAS[self._format_version],
            schema_name="manifest_file",
            metadata=self._meta,
        )
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        prepared = super().prepare_manifest(manifest_file)
        if self._next_row is None or prepared.content != ManifestContent.DATA:
            return prepared
        if prepared[_FIRST_ROW_OF_MANIFEST] is None:
            prepared[_FIRST_ROW_OF_MANIFEST] = self._next_row
            rows = (prepared.added_rows_count or 0) + (prepared.existing_rows_count or 0)
            self._next_row += rows
            self.rows_numbered += rows
        return prepared
