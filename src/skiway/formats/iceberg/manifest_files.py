# mypy: disable-error-code=no-any-return
"""Read manifests and manifest lists, which are Avro files.

PyIceberg's reader takes the end of the file for the end of the list, wherever it comes, and its fast decoder reads past
the end of its memory if a length is wrong. So the blocks are decoded here, with checks, and a damaged file is never
mistaken for a complete one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final, Literal

from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.io import InputFile
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
    PartitionFieldSummary,
)
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import IcebergType, TimestampNanoType, TimestamptzNanoType
from pyiceberg.utils.schema_conversion import AvroSchemaConversion

from skiway.formats.files import decoding
from skiway.formats.iceberg.deletes import FILE_PATH_ID
from skiway.formats.iceberg.file_io import ReadingIO
from skiway.formats.iceberg.unpacking import check_unpacked, unpacked

__all__ = [
    "AVRO_SCHEMA",
    "FIRST_ROW_OF_MANIFEST",
    "KEPT_SCHEMAS",
    "NEWEST",
    "entries",
    "first_row_id",
    "has_live_files",
    "manifests",
    "referenced_file",
    "set_partition",
    "vector_place",
]

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


def _live_entries(manifest: ManifestFile, io: ReadingIO) -> list[ManifestEntry]:
    """Read the entries of a manifest that are not deleted, without the fields that they inherit from it."""
    with decoding(io.files, manifest.manifest_path):
        found = _rows(io.new_input(manifest.manifest_path), _entry_reader, at_least=manifest.manifest_length or 0)
        return [entry for entry in found if entry.status != ManifestEntryStatus.DELETED]


def has_live_files(manifest: ManifestFile) -> bool:
    """Does the manifest list any file that is not deleted?"""
    return manifest.has_added_files() or manifest.has_existing_files()


def first_row_id(of: ManifestFile | DataFile) -> int | None:
    """The id of the first row, which all others of the manifest or the file follow; None if they have no ids."""
    number: int | None = of[FIRST_ROW_OF_MANIFEST if isinstance(of, ManifestFile) else _FIRST_ROW_OF_FILE]
    return number


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
    found = _live_entries(manifest, io)
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
_HEADER: Final = construct_reader(META_SCHEMA, {-1: AvroFileHeader})


def _rows(file: InputFile, kind: Callable[[Schema], Reader], *, at_least: int = 0) -> list[Any]:
    """Read all records of an Avro file of at least `at_least` bytes; raises if it is truncated."""
    with file.open() as opened:
        check_unpacked(len(file), file.location)
        data = opened.read()
    if len(data) < at_least:
        raise ValueError(f"it has {len(data)} of {at_least} bytes")
    decoder = _Decoder(data)
    header = _HEADER.read(decoder)
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
