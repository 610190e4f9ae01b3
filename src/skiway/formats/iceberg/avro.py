# mypy: disable-error-code=no-any-return
"""Manifests and manifest lists as Avro holds them, read so that nothing of a damaged one is taken for the whole.

PyIceberg's own reader takes the end of the file for the end of the list, wherever it comes, and its fast decoder reads
beyond the end of its memory where a length is wrong. So the blocks are read here, by a decoder that looks first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
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

from skiway.formats.files import undamaged
from skiway.formats.iceberg.file_io import ReadingIO

__all__ = ["live_entries", "manifests"]

_NEWEST = 3  # the version that has the fields of all


def manifests(snapshot: Snapshot, io: ReadingIO) -> list[ManifestFile]:
    """The manifests of a snapshot, in the order of its list."""
    with undamaged(io.files, snapshot.manifest_list):
        found = _rows(
            io.new_input(snapshot.manifest_list),
            MANIFEST_LIST_FILE_SCHEMAS[_NEWEST],
            types={-1: ManifestFile, 508: PartitionFieldSummary},
            enums={517: ManifestContent},
        )
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        if not found and said.get("total-data-files", "0") != "0":
            raise ValueError(f"it lists nothing, but the snapshot has {said['total-data-files']} data files")
        return found


def live_entries(manifest: ManifestFile, io: ReadingIO) -> list[ManifestEntry]:
    """The files that a manifest says are in the table, as they are written there."""
    with undamaged(io.files, manifest.manifest_path):
        found = _rows(
            io.new_input(manifest.manifest_path),
            MANIFEST_ENTRY_SCHEMAS[_NEWEST],
            types={-1: ManifestEntry, 2: DataFile},
            enums={0: ManifestEntryStatus, 101: FileFormat, 134: DataFileContent},
            at_least=manifest.manifest_length or 0,
        )
        return [entry for entry in found if entry.status != ManifestEntryStatus.DELETED]


class _Decoder(BinaryDecoder):
    """Decodes bytes; EOFError where they end too early."""

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def tell(self) -> int:
        """The place of the next byte."""
        return self._at

    def read(self, n: int) -> bytes:
        """The next `n` bytes."""
        start = self._at
        self.skip(n)
        return self._data[start : self._at]

    def skip(self, n: int) -> None:
        """Leave out `n` bytes."""
        if n < 0 or self._at + n > len(self._data):
            raise EOFError(f"{n} bytes are to be read where {len(self._data) - self._at} are left")
        self._at += n

    def read_int(self) -> int:
        """A number of any length, seven bits to a byte, the lowest first; its sign is in the last bit."""
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
            raise EOFError("a number is cut off") from None
        self._at = at
        return (number >> 1) ^ -(number & 1)

    def read_ints(self, count: int) -> tuple[int, ...]:
        """So many numbers."""
        read = self.read_int
        return tuple([read() for _ in range(count)])


def _rows(
    file: InputFile,
    schema: Schema,
    *,
    types: Mapping[int, Callable[..., Any]],
    enums: Mapping[int, Callable[..., Enum]],
    at_least: int = 0,
) -> list[Any]:
    """All records of an Avro file; an error if it ends before its end."""
    with file.open() as opened:
        data = opened.read()
    if len(data) < at_least:
        raise ValueError(f"it has {len(data)} bytes of {at_least}")
    decoder = _Decoder(data)
    header = construct_reader(META_SCHEMA, {-1: AvroFileHeader}).read(decoder)
    if header.magic != MAGIC:
        raise ValueError("it is not in Avro")
    reader, codec = resolve_reader(header.get_schema(), schema, dict(types), dict(enums)), header.compression_codec()
    found: list[Any] = []
    while decoder.tell() < len(data):
        count, block = decoder.read_int(), decoder.read_bytes()
        if decoder.read(SYNC_SIZE) != header.sync:
            raise ValueError("a block does not end where it should")
        inside = codec.decompress(block) if codec else block
        records = _Decoder(inside)
        found += [reader.read(records) for _ in range(count)]
        if records.tell() != len(inside):
            raise ValueError("a block holds something else than its records")
    return found
