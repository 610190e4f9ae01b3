# mypy: disable-error-code="no-any-return"
"""Read and write manifests and manifest lists, which are Avro files.

PyIceberg's reader takes the end of the file for the end of the list, wherever it comes, and its fast decoder reads past
the end of its memory if a length is wrong. So the blocks are decoded here, with checks, and a damaged file is never
mistaken for a complete one.

PyIceberg writes data manifests of version 2 only. The writers here extend its private writer classes with delete
manifests and with the row ids of version 3; no other module depends on them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

from pyiceberg.avro.codecs import AVRO_CODEC_KEY, CODEC_MAPPING_ICEBERG_TO_AVRO
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader, AvroOutputFile, D
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, construct_writer, resolve_reader, resolve_writer
from pyiceberg.avro.writer import Writer
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestListWriterV2,
    ManifestWriterV2,
    PartitionFieldSummary,
    data_file_with_partition,
    manifest_entry_schema_with_data_file,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, StructType, TimestampNanoType, TimestamptzNanoType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from skiway.formats.files import decoding
from skiway.formats.iceberg.deletes import FILE_PATH_ID
from skiway.formats.iceberg.metadata_files import ReadingIO, WritingIO, check_unpacked, unpacked

NEWEST: Final[Literal[3]] = 3  # this version has the fields of all others
_PARTITION: Final = 3
_FIRST_ROW_OF_FILE: Final = 16
_REFERENCED_FILE: Final = 17
_VECTOR_OFFSET: Final = 18
_VECTOR_SIZE: Final = 19
FIRST_ROW_OF_MANIFEST: Final = 15
AVRO_SCHEMA: Final = "avro.schema"
KEPT_SCHEMAS: Final = 256
"""How many schemas of Avro files are kept with their readers or writers.

Building these takes ten times as long as reading or writing a manifest of a few files.
"""

_LISTED_BYTES: Final = 2000  # of a manifest in a list

_MAX_KEPT_SCHEMA: Final = 1 << 16


def manifests(snapshot: Snapshot | None, io: ReadingIO) -> list[ManifestFile]:
    """Read the manifests of a snapshot, in the order of its manifest list; none without a snapshot."""
    if snapshot is None:
        return []
    with decoding(io.files, snapshot.manifest_list):
        found = _rows(io.new_input(snapshot.manifest_list), _list_reader)
        summary = snapshot.summary.additional_properties if snapshot.summary else {}
        if not found and summary.get("total-data-files", "0") != "0":
            raise ValueError(f"it is empty, but the snapshot has {summary['total-data-files']} data files")
        return found


def known_manifests(snapshot: Snapshot | None, io: ReadingIO) -> list[ManifestFile]:
    """The manifests of a snapshot, from the cache if its list was read before, even if the list is gone since.

    A commit needs those of the last one, which takes a millisecond for ten of them.
    """
    if snapshot is None:
        return []

    def load() -> list[ManifestFile]:
        return manifests(snapshot, io)

    def size_of(found: list[ManifestFile]) -> int:
        return _LISTED_BYTES * len(found)

    return [*io.files.cached("iceberg manifest list", snapshot.manifest_list, load=load, size_of=size_of)]


def has_live_files(manifest: ManifestFile) -> bool:
    """Does the manifest list any file that is not deleted?"""
    return manifest.has_added_files() or manifest.has_existing_files()


def first_row_id(of: ManifestFile | DataFile) -> int | None:
    """The id of the first row, which all others of the manifest or the file follow; None if they have no ids."""
    number: int | None = of[FIRST_ROW_OF_MANIFEST if isinstance(of, ManifestFile) else _FIRST_ROW_OF_FILE]
    return number


def without_row_ids(file: DataFile) -> DataFile:
    """The data file as a new one, whose rows have no ids yet."""
    made = copy(file)
    made._data = [*file._data]
    made[_FIRST_ROW_OF_FILE] = None
    return made


def referenced_file(delete: DataFile) -> str | None:
    """The only data file that a delete file applies to; None if it may apply to several."""
    named: str | None = delete[_REFERENCED_FILE]
    if named is not None or delete.content != DataFileContent.POSITION_DELETES:
        return named
    low, high = ((bounds or {}).get(FILE_PATH_ID) for bounds in (delete.lower_bounds, delete.upper_bounds))
    return low.decode() if low is not None and low == high else None


def vector_place(delete: DataFile) -> tuple[int, int] | None:
    """The offset and the size of a deletion vector in its file; None for other delete files."""
    offset = delete[_VECTOR_OFFSET]
    return None if offset is None else (offset, delete[_VECTOR_SIZE])


def set_partition(delete: DataFile, of: DataFile) -> None:
    """Put a delete file into the partition of a data file."""
    delete[_PARTITION] = of.partition
    delete.spec_id = of.spec_id


def entries(manifest: ManifestFile, io: ReadingIO) -> list[ManifestEntry]:
    """Read the entries of a manifest that are not deleted, with the fields that they inherit from it."""
    with decoding(io.files, manifest.manifest_path):
        rows = _rows(io.new_input(manifest.manifest_path), _entry_reader, at_least=manifest.manifest_length or 0)
        found: list[ManifestEntry] = [entry for entry in rows if entry.status != ManifestEntryStatus.DELETED]
    next_row = first_row_id(manifest)
    for entry in found:
        entry.data_file.spec_id = manifest.partition_spec_id
        if entry.snapshot_id is None and manifest.added_snapshot_id is not None:
            entry.snapshot_id = manifest.added_snapshot_id
        if entry.sequence_number is None:
            entry.sequence_number = manifest.sequence_number
        if entry.file_sequence_number is None:
            entry.file_sequence_number = manifest.sequence_number
        if next_row is not None and first_row_id(entry.data_file) is None:
            entry.data_file[_FIRST_ROW_OF_FILE] = next_row
            next_row += entry.data_file.record_count
    return found


class _Decoder(BinaryDecoder):
    """Decodes bytes; raises EOFError if they end too early."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def tell(self) -> int:
        """The position of the next byte."""
        return self._at

    def read(self, n: int) -> bytes:
        """Return the next `n` bytes."""
        start = self._at
        self.skip(n)
        return self._data[start : self._at]

    def skip(self, n: int) -> None:
        """Skip `n` bytes."""
        if n < 0 or self._at + n > len(self._data):
            raise EOFError(f"expected {n} more bytes, found {len(self._data) - self._at}")
        self._at += n

    def read_int(self) -> int:
        """Decode a zigzag varint: seven bits per byte, lowest first, with the sign in the lowest bit."""
        data, at = self._data, self._at
        number = shift = 0
        try:
            while True:
                byte = data[at]
                at += 1
                number |= (byte & 0x7F) << shift
                if byte < 0x80:
                    break
                shift += 7
        except IndexError:
            raise EOFError("a number is truncated") from None
        self._at = at
        return (number >> 1) ^ -(number & 1)

    def read_ints(self, count: int) -> tuple[int, ...]:
        """Decode `count` numbers."""
        read = self.read_int
        return tuple([read() for _ in range(count)])


def _list_reader(written: Schema) -> Reader:
    types: dict[int, Callable[..., Any]] = {-1: ManifestFile, 508: PartitionFieldSummary}
    return resolve_reader(written, MANIFEST_LIST_FILE_SCHEMAS[NEWEST], types, {517: ManifestContent})


def _entry_reader(written: Schema) -> Reader:
    enums: dict[int, Callable[..., Any]] = {0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent}
    return resolve_reader(written, MANIFEST_ENTRY_SCHEMAS[NEWEST], {-1: ManifestEntry, 2: DataFile}, enums)


class _SchemaConversion(AvroSchemaConversion):
    """PyIceberg's conversion of Avro schemas, which writes timestamps of nanoseconds, but does not read them."""

    def _convert_logical_type(self, avro_logical_type: dict[str, Any]) -> IcebergType:
        if avro_logical_type["logicalType"] == "timestamp-nanos":
            return TimestamptzNanoType() if avro_logical_type.get("adjust-to-utc") else TimestampNanoType()
        return super()._convert_logical_type(avro_logical_type)


def _new_reader(kind: Callable[[Schema], Reader], written: str) -> Reader:
    """A reader of records that were written with an Avro schema. It has no state, so files and threads can share it."""
    return kind(_SchemaConversion().avro_to_iceberg(json.loads(written)))


_known_reader = lru_cache(KEPT_SCHEMAS)(_new_reader)
_HEADER_READER: Final = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def _rows(file: InputFile, kind: Callable[[Schema], Reader], *, at_least: int = 0) -> list[Any]:
    """Read all records of an Avro file of at least `at_least` bytes; raises if it is truncated."""
    with file.open() as opened:
        check_unpacked(len(file), file.location)
        data = opened.read()
    if len(data) < at_least:
        raise ValueError(f"it has {len(data)} of {at_least} bytes")
    decoder = _Decoder(data)
    header = _HEADER_READER.read(decoder)
    if header.magic != MAGIC:
        raise ValueError("it is not an Avro file")
    written = header.meta.get(AVRO_SCHEMA)
    if written is None:
        raise ValueError("its header has no schema")
    reader = (_known_reader if len(written) <= _MAX_KEPT_SCHEMA else _new_reader)(kind, written)
    codec = header.meta.get(AVRO_CODEC_KEY, "null")
    found: list[Any] = []
    total = 0
    while decoder.tell() < len(data):
        count, block = decoder.read_int(), decoder.read_bytes()
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block has no sync marker at its end")
        inside = unpacked(codec, block, file.location)
        total += len(inside)
        check_unpacked(total, file.location)
        records = _Decoder(inside)
        found += [reader.read(records) for _ in range(count)]
        if records.tell() != len(inside):
            raise ValueError("a block is longer than its records")
    return found


_HEADER_WRITER: Final = construct_writer(META_SCHEMA)


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
            new = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            writer.add_entry(new)
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
        _HEADER_WRITER.write(self.encoder, AvroFileHeader(MAGIC, meta, self.sync_bytes))


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
