"""Delta tables that were deleted and created again: their versions are numbered from 0 once more."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from lake.mirrored_source import Source, source_of
from skiway.errors import SkiwayError


def recreate(source: Source, *values: int) -> None:
    shutil.rmtree(source.folder / "t")
    source.write(*values)


def rows(source: Source) -> list[int]:
    with source.lake.client("c") as db:
        return sorted(db.scan("s.t").read_all()["x"].to_pylist())


def test_rows_are_those_of_the_new_table_after_a_sync(tmp_path: Path) -> None:
    with source_of(tmp_path, "delta") as source:
        source.write(1, 2)
        source.sync()
        assert rows(source) == [1, 2]
        recreate(source, 7, 8, 9)
        source.sync()
        assert rows(source) == [7, 8, 9]
        with source.lake.client("c") as db:
            bounds = db.statistics("s.t", "x")
            assert (bounds.min, bounds.max) == (7, 9)


def test_before_a_sync_the_error_says_what_to_do(tmp_path: Path) -> None:
    """The new rows must not be read with the statistics of the old ones."""
    with source_of(tmp_path, "delta") as source:
        source.write(1, 2)
        source.sync()
        recreate(source, 7, 8, 9)
        with pytest.raises(SkiwayError, match="snapshot 0 no longer exists upstream; synchronise the connector"):
            rows(source)
