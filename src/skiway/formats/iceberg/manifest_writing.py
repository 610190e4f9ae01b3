# mypy: disable-error-code=no-any-return
"""Write manifests and manifest lists in versions 2 and 3 of the format.

PyIceberg writes data manifests of version 2 only. The writers here extend its private writer classes with delete
manifests and with the row ids of version 3; no other module depends on them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader, AvroOutputFile, D
from pyiceberg.avro.resolver import construct_writer, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import OutputFile
from pyiceberg.manifest import (
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import StructType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from skiway.formats.iceberg.file_io import WritingIO
from skiway.formats.iceberg.manifest_files import AVRO_SCHEMA, FIRST_ROW_OF_MANIFEST, KEPT_SCHEMAS, NEWEST, first_row_id

__all__ = ["schema_of", "write_list", "write_manifest"]

_HEADER: Final = construct_writer(META_SCHEMA)


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
    """Write a new manifest for the snapshot `snapshot_id`; it must have at least one entry."""
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
    """The newest schema that has all source columns of the spec."""
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


@dataclass(frozen=True, slots=True)
class _Layout:
    """How records are written: the schema, also as the JSON in the file's header, and the writer, which has no state."""

    schema: Schema
    json: str
    writer: Writer

    @classmethod
    def of(cls, name: str, schema: Schema, records: Schema) -> _Layout:
        text = json.dumps(AvroSchemaConversion().iceberg_to_avro(schema, schema_name=name))
        return cls(schema, text, resolve_writer(record_schema=records, file_schema=schema))


@lru_cache(KEPT_SCHEMAS)
def _entry_layout(version: Literal[1, 2, 3], partition: StructType) -> _Layout:
    written, records = (
        manifest_entry_schema_with_data_file(each, data_file_with_partition(partition, each))
        for each in (version, NEWEST)
    )
    return _Layout.of("manifest_entry", written, records)


@lru_cache(KEPT_SCHEMAS)
def _list_layout(version: Literal[1, 2, 3]) -> _Layout:
    return _Layout.of("manifest_file", MANIFEST_LIST_FILE_SCHEMAS[version], MANIFEST_LIST_FILE_SCHEMAS[NEWEST])


class _Output(AvroOutputFile[D]):
    """An Avro file with a known layout. PyIceberg would build it again for each file."""

    def __init__(self, output_file: OutputFile, layout: _Layout, metadata: dict[str, str]) -> None:
        self.output_file, self.file_schema, self.writer = output_file, layout.schema, layout.writer
        self.sync_bytes, self.metadata = os.urandom(SYNC_SIZE), metadata
        self._json = layout.json

    def _write_header(self) -> None:
        codec = self.metadata[AVRO_CODEC_KEY]
        codec = CODEC_MAPPING_ICEBERG_TO_AVRO.get(codec) or codec
        meta = {**self.metadata, AVRO_SCHEMA: self._json, AVRO_CODEC_KEY: codec}
        _HEADER.write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))


class _Manifest(ManifestWriterV2):
    """A manifest writer that also supports delete manifests and version 3."""

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
        layout = _entry_layout(self.format, self._spec.partition_type(self._schema))
        return _Output[ManifestEntry](self._output_file, layout, self._meta)


def write_list(
    metadata: TableMetadata,
    io: WritingIO,
    *,
    location: str,
    snapshot_id: int,
    parent_id: int | None,
    listed: Sequence[ManifestFile],
) -> int:
    """Write the manifest list of a new snapshot and return the number of row ids that it assigns."""
    codec: Any = metadata.properties.get("write.avro.compression-codec", "gzip")
    writer = _List(
        output_file=io.new_output(location),
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent_id,
        sequence_number=metadata.next_sequence_number(),
        compression=codec,
    )
    if metadata.format_version == NEWEST:
        writer.assign_row_ids(getattr(metadata, "next_row_id", None) or 0)
    with writer:
        writer.add_manifests(list(listed))
    return writer.rows_assigned


class _List(ManifestListWriterV2):
    """A manifest list writer that also supports version 3, where new data manifests get row ids."""

    rows_assigned = 0
    _next_row: int | None = None

    def assign_row_ids(self, first: int) -> None:
        self._format_version = NEWEST
        self._next_row = first
        self._meta |= {"format-version": str(NEWEST), "first-row-id": str(first)}

    def __enter__(self) -> _List:
        self._writer = _Output[ManifestFile](self._output_file, _list_layout(self._format_version), self._meta)
        self._writer.__enter__()
        return self

    def prepare_manifest(self, manifest_file: ManifestFile) -> ManifestFile:
        prepared = super().prepare_manifest(manifest_file)
        if self._next_row is None or prepared.content != ManifestContent.DATA:
            return prepared
        if first_row_id(prepared) is None:
            prepared[FIRST_ROW_OF_MANIFEST] = self._next_row
            rows = (prepared.added_rows_count or 0) + (prepared.existing_rows_count or 0)
            self._next_row += rows
            self.rows_assigned += rows
        return prepared
