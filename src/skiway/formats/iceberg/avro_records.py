# mypy: disable-error-code=no-any-return
"""The records of Avro files, decoded with checks.

PyIceberg's reader takes the end of the file for the end of the list, wherever it comes, and its fast decoder reads past
the end of its memory if a length is wrong. So the blocks are decoded here, and a damaged file is never mistaken for a
complete one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from pyiceberg.avro.codecs import AVRO_CODEC_KEY
from pyiceberg.avro.decoder import BinaryDecoder
from pyiceberg.avro.file import MAGIC, META_SCHEMA, SYNC_SIZE, AvroFileHeader
from pyiceberg.avro.reader import Reader
from pyiceberg.avro.resolver import construct_reader, resolve_reader
from pyiceberg.io import InputFile
from pyiceberg.schema import Schema

from skiway.formats.iceberg.unpacking import check_unpacked, unpacked

__all__ = ["Records", "read_records"]

_HEADER: Final = construct_reader(META_SCHEMA, {-1: AvroFileHeader})
_SCHEMA_KEY: Final = "avro.schema"
_LONG_SCHEMA: Final = 100_000  # characters


@dataclass(frozen=True, slots=True, eq=False)
class Records:
    """What the records of an Avro file become: the fields to read, and the classes of structs and enums, by field id."""

    schema: Schema
    types: dict[int, Callable[..., Any]]
    enums: dict[int, Callable[..., Enum]]


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


def _reader_of(header: AvroFileHeader, records: Records) -> Reader:
    """The reader of a file's records. It has no state, and building it takes longer than reading a few records."""
    written = header.meta.get(_SCHEMA_KEY, "")
    return (_reader if len(written) < _LONG_SCHEMA else _reader.__wrapped__)(written, records)


@lru_cache(maxsize=500)
def _reader(written: str, records: Records) -> Reader:
    header = AvroFileHeader(MAGIC, {_SCHEMA_KEY: written} if written else {}, b"")
    return resolve_reader(header.get_schema(), records.schema, records.types, records.enums)


def read_records(file: InputFile, of: Records, *, at_least: int = 0) -> list[Any]:
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
    reader = _reader_of(header, of)
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
