"""Blobs in files: behavior specific to file systems."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import obstore
import pytest

from skiway.errors import Unavailable
from skiway.storage import blob_uri, open_blobs


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "blobs"


@pytest.fixture
def blobs(folder):
    return open_blobs(folder.as_uri())


def test_uri_is_the_path(blobs, folder):
    uri = blobs.put(b"abc", folder="a/b", suffix=".pb")
    assert (folder / uri).read_bytes() == b"abc"


def test_flipped_bit_on_disk_is_detected(blobs, folder):
    uri = blobs.put(b"abc")
    (folder / uri).write_bytes(b"abb")
    with pytest.raises(Exception, match="is corrupt") as caught:
        blobs.get(uri)
    assert uri in str(caught.value)


def test_modification_time_is_that_of_the_file(blobs, folder):
    uri = blobs.put(b"abc")
    os.utime(folder / uri, (1_000_000_000, 1_000_000_000))
    assert blobs.head(uri).modified_at == blobs.page().items[0].modified_at == datetime.fromtimestamp(1e9, UTC)
    blobs.put(b"abc")
    assert blobs.head(uri).modified_at.year > 2024


def test_file_and_directories_are_synced_before_put_returns(blobs, folder, monkeypatch):
    synced = synced_paths(monkeypatch)
    uri = blobs.put(b"abc", folder="a/b")
    expected = [folder / uri, folder / "a" / "b" / "ba", folder / "a" / "b", folder / "a", folder]
    assert set(synced) == {path.resolve() for path in expected}


def test_durable_directories_are_not_synced_again(blobs, folder, monkeypatch):
    blobs.put(b"abc", folder="a/b")
    synced = synced_paths(monkeypatch)
    blobs.put(b"abc", folder="a/b")
    assert {path.name for path in synced} == {blob_uri(b"abc")[3:], "ba"}
    synced.clear()
    uri = blobs.put(b"x", folder="a/b")
    expected = [folder / uri, folder / "a" / "b" / "2d", folder / "a" / "b"]
    assert set(synced) == {path.resolve() for path in expected}


def synced_paths(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The paths that are synced to disk from now on."""
    synced: list[Path] = []

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", fsync)
    return synced


def test_unwritable_directory_is_unavailable(blobs, folder):
    uri = blob_uri(b"abc")
    (folder / uri[:2]).write_bytes(b"a file where a directory should be")
    with pytest.raises(Unavailable, match="check the address, credentials and permissions"):
        blobs.put(b"abc")


def test_directory_that_cannot_be_created_is_unavailable(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable, match="cannot be created"):
        open_blobs((tmp_path / "file" / "blobs").as_uri())


def test_page_lists_at_most_one_directory_per_blob(blobs, monkeypatch):
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: blobs.put(f"{number}".encode(), folder="f"), range(400)))
    listed = []
    list_directory = obstore.list_with_delimiter
    monkeypatch.setattr(obstore, "list_with_delimiter", lambda *args: listed.append(args[1]) or list_directory(*args))
    page, sizes = blobs.page("f", size=20), []
    while page.next_token:
        listed.clear()
        page = blobs.page("f", size=20, token=page.next_token)
        sizes.append(len(listed))
    assert len(sizes) == 19
    assert (
        max(sizes) <= 1 + 21 + 1
    )  # the folder, at most one directory per blob, and the last directory of the previous page


def test_partially_written_file_is_not_a_blob(blobs, folder):
    uri = blobs.put(b"abc")
    (folder / f"{uri}#1").write_bytes(b"ab")  # how obstore names unfinished files
    assert [head.uri for head in blobs.scan()] == [uri]
