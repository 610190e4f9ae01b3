"""Decode parts of files: compressed bytes, with a limit on what they take in memory, and Thrift's compact protocol.

Parquet files have their footer and the headers of their pages in Thrift's protocol.

Numbers, booleans, bytes, structs and lists are read. Floating-point numbers are skipped, and are None.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa

_GZIP, _RAW = 31, -15  # values of `wbits` in zlib, which select the header


def decompressed(codec: str, data: bytes, *, limit: int) -> bytes:
    """Decompress `data`; stops after `limit` bytes, so a result of that length may be incomplete.

    Codecs have the names of Avro. Raises ValueError if the codec is not supported or the data is damaged.
    """
    if codec == "null":
        return data
    if codec not in _UNPACK:
        raise ValueError(f"it is compressed with {codec[:40]!r}, which is not supported")
    return _UNPACK[codec](data, limit)


def _zlib(header: int) -> Callable[[bytes, int], bytes]:
    def unpack(data: bytes, limit: int) -> bytes:
        stream = zlib.decompressobj(header)
        found = stream.decompress(data, limit)
        if not stream.eof and len(found) < limit:
            raise ValueError("it is truncated")
        return found

    return unpack


def _zstd(data: bytes, limit: int) -> bytes:
    found: bytes = pa.CompressedInputStream(pa.BufferReader(data), "zstd").read(limit)
    return found


def _snappy(data: bytes, limit: int) -> bytes:
    """A block with its size in front, which is checked first."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size >= limit:
        return bytes(limit)
    found: bytes = pa.decompress(data, size, "snappy", asbytes=True)
    return found


def _checked_snappy(data: bytes, limit: int) -> bytes:
    """A block with a checksum at its end."""
    found = _snappy(data[:-4], limit)
    if len(found) < limit and zlib.crc32(found) != int.from_bytes(data[-4:], "big"):
        raise ValueError("its checksum is wrong")
    return found


_UNPACK: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _zlib(_GZIP),
    "deflate": _zlib(_RAW),
    "bzip2": lambda data, limit: bz2.BZ2Decompressor().decompress(data, limit),
    "zstandard": _zstd,
    "snappy": _checked_snappy,
    "snappy without checksum": _snappy,
}


def read_struct(data: bytes, at: int = 0) -> tuple[dict[int, Any], int]:
    """The fields of the struct at this byte, by number, and the byte after it; `IndexError` if the data ends within it."""
    found: dict[int, Any] = {}
    number = 0
    while head := data[at]:
        at += 1
        if head >> 4:
            number += head >> 4
        else:
            number, at = _integer(data, at)
        kind = head & 15
        found[number], at = (kind == 1, at) if kind in (1, 2) else _value(data, at, kind)
    return found, at + 1


def _value(data: bytes, at: int, kind: int) -> tuple[Any, int]:
    match kind:
        case 1 | 2 | 3:
            return data[at], at + 1
        case 4 | 5 | 6:
            return _integer(data, at)
        case 7:
            return None, _within(data, at + 8)
        case 8:
            size, at = varint(data, at)
            end = _within(data, at + size)
            return data[at:end], end
        case 9 | 10:
            return _list(data, at)
        case 12:
            return read_struct(data, at)
        case _:
            raise ValueError(f"unexpected type {kind}")


def _list(data: bytes, at: int) -> tuple[list[Any], int]:
    head, at = data[at], at + 1
    size, kind = head >> 4, head & 15
    if size == 15:
        size, at = varint(data, at)
    found = []
    for _ in range(size):
        value, at = _value(data, at, kind)
        found.append(value)
    return found, at


def _within(data: bytes, end: int) -> int:
    if end > len(data):
        raise IndexError(end)
    return end


def _integer(data: bytes, at: int) -> tuple[int, int]:
    number, at = varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode an unsigned integer of at most 64 bits; return it, and the place after it."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
        if shift > 63:
            raise ValueError("a number has more than 64 bits")
