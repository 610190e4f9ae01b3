"""Reads metadata files and the blocks of manifests, compressed or not, with a limit on what they take in memory."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from skiway.errors import LimitExceeded
from skiway.formats.files import Files

__all__ = ["MAX_UNPACKED_BYTES", "check_unpacked", "table_metadata", "unpacked"]

MAX_UNPACKED_BYTES: Final = 256 * 1024 * 1024
"""For a metadata file, and for a manifest."""

_GZIP, _RAW = 31, -15  # how zlib is told which header to expect


def table_metadata(files: Files, location: str) -> TableMetadata:
    """Read a metadata file."""
    with files.open(location) as file:
        check_unpacked(file.size(), location)
        data = file.read()
    if location.endswith(".gz.metadata.json"):
        data = unpacked("gzip", data, location)
    return TableMetadataUtil.parse_raw(data.decode())


def unpacked(codec: str, data: bytes, location: str) -> bytes:
    """Decompress what is part of a file; `LimitExceeded` as soon as it exceeds the limit."""
    if codec == "null":
        return data
    if codec not in _UNPACK:
        raise ValueError(f"it is compressed with {codec[:40]!r}, which is not supported")
    found = _UNPACK[codec](data, MAX_UNPACKED_BYTES + 1)
    check_unpacked(len(found), location)
    return found


def check_unpacked(size: int, location: str) -> None:
    """Raise `LimitExceeded` if a file takes too many bytes when it is decompressed."""
    if size > MAX_UNPACKED_BYTES:
        raise LimitExceeded(
            f"file {location!r} takes more than {MAX_UNPACKED_BYTES} bytes when it is decompressed, which is the limit for "
            "metadata: expire snapshots, or rewrite the manifests of the table",
            key="metadata.decoded_size",
            file=location,
            limit=str(MAX_UNPACKED_BYTES),
        )


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
    """A block with its size in front, which is checked first, and a checksum at the end."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size >= limit:
        return bytes(limit)
    found: bytes = pa.decompress(data[:-4], size, "snappy", asbytes=True)
    if zlib.crc32(found) != int.from_bytes(data[-4:], "big"):
        raise ValueError("its checksum is wrong")
    return found


_UNPACK: Final[Mapping[str, Callable[[bytes, int], bytes]]] = {
    "gzip": _zlib(_GZIP),
    "deflate": _zlib(_RAW),
    "bzip2": _bzip2,
    "zstandard": _zstd,
    "snappy": _snappy,
}
