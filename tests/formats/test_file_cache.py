"""Immutable files are read once, and the cache is shared only between readers with the same access."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.managed import LooseTable
from skiway.formats import FileCache, open_source
from skiway.formats.files import Files, Reach
from skiway.formats.iceberg.metadata import read_metadata
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.security.source_access import location

ROWS = pa.table({"id": [1, 2, 3]})


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened, in order."""
    found: list[str] = []
    original: Callable[[Files, str], pa.NativeFile] = Files.open

    def opened(self: Files, uri: str) -> pa.NativeFile:
        found.append(uri.rpartition("/")[2])
        return original(self, uri)

    monkeypatch.setattr(Files, "open", opened)
    return found


def test_sources_with_the_same_cache_share_it(tmp_path: Path, reads: list[str]) -> None:
    pq.write_table(ROWS, tmp_path / "people.parquet")
    cache = FileCache()
    for _ in range(2):
        with open_source("parquet", str(tmp_path), cache=cache) as source:
            source.load((), "people")
    assert reads == ["people.parquet"]
    # The footer is cached, and that it was checked, which matters only when it is read again.
    assert (cache.stats().entries, cache.stats().hits, cache.stats().misses) == (2, 1, 2)


def test_source_without_a_given_cache_has_its_own(tmp_path: Path, reads: list[str]) -> None:
    pq.write_table(ROWS, tmp_path / "people.parquet")
    for _ in range(2):
        with open_source("parquet", str(tmp_path)) as source:
            source.load((), "people")
            source.load((), "people")
    assert reads == ["people.parquet"] * 2


def test_sources_with_different_credentials_or_folders_do_not_share_the_cache(tmp_path: Path, reads: list[str]) -> None:
    pq.write_table(ROWS, tmp_path / "people.parquet")
    cache = FileCache()
    for options in ({}, {"s3.region": "eu"}, {"allowed-locations": "/srv/other"}):
        with open_source("parquet", str(tmp_path), options=options, cache=cache) as source:
            source.load((), "people")
    assert reads == ["people.parquet"] * 3


def test_cache_size_in_bytes_is_limited(tmp_path: Path) -> None:
    files = Files({}, Reach((location(str(tmp_path)),)), FileCache(1000 + 3 * 1000))
    for number in range(10):
        files.cached("text", number, load=lambda: b"x" * 300, size_of=len)
    assert files.cached("text", "long", load=lambda: b"y" * 3001, size_of=len) == b"y" * 3001
    assert (files.cache.stats().entries, files.cache.stats().weight) == (3, 3 * 1300)


def test_tables_of_a_warehouse_share_its_cache(tmp_path: Path, reads: list[str]) -> None:
    table = LooseTable(tmp_path, ROWS.schema)
    warehouse = Warehouse.at(str(tmp_path))
    for _ in range(2):
        read_metadata(warehouse.files(table.metadata.location), table.location)
    assert len(reads) == 1
    fresh = Warehouse.at(str(tmp_path), cache=FileCache())
    read_metadata(fresh.files(table.metadata.location), table.location)
    assert len(reads) == 2
