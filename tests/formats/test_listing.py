"""Listing folders while others delete files in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from skiway.formats import location
from skiway.formats.files import Files, Reach


def test_file_that_vanishes_while_its_folder_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.parquet", "gone.parquet", "z.parquet"):
        (tmp_path / name).write_bytes(b"1")
    listed = os.scandir

    @contextmanager
    def scandir(path: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with listed(path) as entries:
            found = list(entries)
        (tmp_path / "gone.parquet").unlink()
        yield iter(found)

    monkeypatch.setattr(os, "scandir", scandir)
    folder = location(str(tmp_path))
    _, files = Files({}, Reach((folder,))).children(folder)
    assert [each.location.name for each in files] == ["a.parquet", "z.parquet"]
