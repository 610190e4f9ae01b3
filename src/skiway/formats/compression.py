"""Decompress parts of files, with a limit on what they take in memory."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa

__all__ = ["decompressed"]

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


def _bzip2(data: bytes, limit: int) -> bytes:
    return bz2.BZ2Decompressor().decompress(data, limit)


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
    "bzip2": _bzip2,
    "zstandard": _zstd,
    "snappy": _checked_snappy,
    "snappy without checksum": _snappy,
}
