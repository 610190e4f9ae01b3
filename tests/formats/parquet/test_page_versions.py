"""The pages of a version of a file are checked once, and those of every other version again."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from skiway.errors import LimitExceeded
from skiway.formats import Source, files, open_source
from skiway.formats.readers import pages
from skiway.formats.readers.pages import PageCheck

GROUPS = 3
TABLE = pa.table({"n": range(3000), "m": range(3000)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet"
    pq.write_table(TABLE, path, compression="zstd", row_group_size=1000)
    return path


@pytest.fixture
def source(path: Path) -> Iterator[Source]:
    with open_source("parquet", str(path.parent)) as source:
        yield source


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The row groups whose pages were checked."""
    found: list[int] = []
    check = PageCheck._check

    def counted(self: PageCheck, group: int, columns: list[str]) -> None:
        found.append(group)
        check(self, group, columns)

    monkeypatch.setattr(PageCheck, "_check", counted)
    return found


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are old enough at once."""
    monkeypatch.setattr(files, "_SETTLED_NS", 0)


def read(source: Source, *columns: str) -> int:
    table = source.load((), "t")
    return table.read(table.current(), columns=columns or None).read_all().num_rows


def change(path: Path) -> None:
    """Write the same bytes again, with the same time of change, as far as the caller can decide."""
    before, data = path.stat(), path.read_bytes()
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)


@pytest.mark.usefixtures("settled")
def test_pages_are_checked_once(source: Source, checks: list[int]) -> None:
    assert read(source, "n") == read(source, "n") == 3000
    assert checks == [0, 1, 2]
    read(source, "m")
    assert len(checks) == 2 * GROUPS, "other columns have other pages"


@pytest.mark.usefixtures("settled")
def test_pages_of_a_changed_file_are_checked_again(source: Source, checks: list[int], path: Path) -> None:
    read(source)
    change(path)
    read(source)
    assert len(checks) == 2 * GROUPS


def test_pages_of_a_file_that_may_still_change_unnoticed_are_always_checked(source: Source, checks: list[int]) -> None:
    read(source)
    read(source)
    assert len(checks) == 2 * GROUPS


@pytest.mark.usefixtures("settled")
def test_check_that_failed_fails_again(source: Source, checks: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 100)
    for _ in range(2):
        with pytest.raises(LimitExceeded):
            read(source)
    assert checks.count(0) == 2
