"""Decompression of all codecs: up to a limit, and with errors for damaged data."""

from __future__ import annotations

import bz2
import gzip
import zlib

import pyarrow as pa
import pytest

from skiway.formats.readers.encodings import decompressed

TEXT = bytes(range(256)) * 40


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def snappy(data: bytes) -> bytes:
    found: bytes = pa.compress(data, "snappy", asbytes=True)
    return found


def checked_snappy(data: bytes) -> bytes:
    return snappy(data) + zlib.crc32(data).to_bytes(4, "big")


PACK = {
    "gzip": gzip.compress,
    "deflate": deflated,
    "bzip2": bz2.compress,
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
    "snappy": checked_snappy,
    "snappy without checksum": snappy,
}


@pytest.mark.parametrize("codec", PACK)
@pytest.mark.parametrize("size", [1, 127, 128, 300, len(TEXT)])
def test_data_is_decompressed_up_to_the_limit(codec: str, size: int) -> None:
    packed = PACK[codec](TEXT[:size])
    assert decompressed(codec, packed, limit=size + 1) == TEXT[:size]
    assert len(decompressed(codec, packed, limit=size)) == size
    if size > 1:
        assert len(decompressed(codec, packed, limit=size - 1)) == size - 1


def test_stored_data_is_returned_as_it_is() -> None:
    assert decompressed("null", TEXT, limit=3) == TEXT


def test_unknown_codecs_are_named() -> None:
    with pytest.raises(ValueError, match="it is compressed with 'xz', which is not supported"):
        decompressed("xz", TEXT, limit=3)
    with pytest.raises(ValueError, match=f"'{'x' * 40}'"):
        decompressed("x" * 41, TEXT, limit=3)


@pytest.mark.parametrize("codec", ["gzip", "deflate"])
def test_truncated_data_is_an_error(codec: str) -> None:
    packed = PACK[codec](TEXT)
    with pytest.raises(ValueError, match="it is truncated"):
        decompressed(codec, packed[:-9], limit=len(TEXT) + 1)
    assert len(decompressed(codec, packed[:-9], limit=5)) == 5


def test_wrong_checksum_is_an_error() -> None:
    packed = checked_snappy(TEXT)
    for damaged in (packed[:-1] + bytes([packed[-1] ^ 1]), packed[:-4] + packed[-4:][::-1]):
        with pytest.raises(ValueError, match="its checksum is wrong"):
            decompressed("snappy", damaged, limit=len(TEXT) + 1)


def test_snappy_that_announces_too_much_is_not_decompressed() -> None:
    announced = b"\xff\xff\xff\xff\x0f" + snappy(TEXT)[2:]
    assert decompressed("snappy without checksum", announced, limit=10) == bytes(10)
    assert decompressed("snappy without checksum", b"\x80\x80\x80\x01", limit=100) == bytes(100), "two megabytes"
