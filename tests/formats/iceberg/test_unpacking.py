"""Compressed metadata and manifests take only so much memory, whatever they decompress to."""

from __future__ import annotations

import bz2
import gzip
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from formats.managed import LooseTable
from skiway.errors import LimitExceeded
from skiway.formats.iceberg import metadata_files
from skiway.formats.iceberg.manifest_files import manifests
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.metadata_files import WritingIO, unpacked


def deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=-15)
    return packer.compress(data) + packer.flush()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "gzip": gzip.compress,
    "deflate": deflate,
    "bzip2": bz2.compress,
    "zstandard": lambda data: pa.compress(data, "zstd", asbytes=True),
    "snappy": lambda data: pa.compress(data, "snappy", asbytes=True) + zlib.crc32(data).to_bytes(4, "big"),
}


@pytest.mark.parametrize("codec", PACK)
def test_data_is_decompressed_up_to_the_limit(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"0123456789" * 100_000
    packed = PACK[codec](data)
    assert unpacked(codec, packed, "f") == data
    if codec == "null":
        return
    monkeypatch.setattr(metadata_files, "MAX_UNPACKED_BYTES", 1000)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="'f' takes more than 1000 bytes when it is decompressed"):
            unpacked(codec, packed, "f")
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", ["gzip", "deflate"])
def test_truncated_data_is_an_error(codec: str) -> None:
    with pytest.raises(ValueError, match="truncated"):
        unpacked(codec, PACK[codec](b"0123456789" * 1000)[:-20], "f")


def test_metadata_and_manifests_that_are_too_large_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = LooseTable(tmp_path, pa.schema({"id": pa.int64()}))
    table.append(pa.table({"id": [1, 2, 3]}))
    location = Path(table.location.removeprefix("file://"))
    bomb = location.with_name("v99.gz.metadata.json")
    bomb.write_bytes(gzip.compress(location.read_bytes() + b" " * 5_000_000))
    monkeypatch.setattr(metadata_files, "MAX_UNPACKED_BYTES", 1_000_000)
    with pytest.raises(LimitExceeded, match=r"v99\.gz\.metadata\.json' takes more than 1000000 bytes"):
        read_metadata(table.files, str(bomb))
    monkeypatch.setattr(metadata_files, "MAX_UNPACKED_BYTES", 100)
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    with pytest.raises(LimitExceeded, match=r"snap-.*\.avro' takes more than 100 bytes"):
        manifests(snapshot, WritingIO(table.files))
