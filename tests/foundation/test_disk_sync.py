"""Files are synced to disk together, and errors are not lost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Barrier

import pytest

from skiway.foundation.files import sync_paths, synced_together
from skiway.storage import Put, open_stores


def test_paths_are_synced_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(3, timeout=200)
    monkeypatch.setattr(os, "fsync", lambda _: together.wait())
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    sync_paths([tmp_path / "a", tmp_path / "b", tmp_path])  # waits forever if one comes after another


def test_missing_path_is_an_error_unless_it_may_be_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        sync_paths([tmp_path, tmp_path / "missing"])
    sync_paths([tmp_path, tmp_path / "missing"], missing_ok=True)


def test_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output"):
        sync_paths([tmp_path], missing_ok=True)


def test_block_syncs_everything_at_its_end_and_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together, events = Barrier(3, timeout=200), list[str]()
    monkeypatch.setattr(os, "fsync", lambda _: together.wait())
    (tmp_path / "a").touch()
    (tmp_path / "b").touch()
    with synced_together():
        sync_paths([tmp_path / "a", tmp_path], then=lambda: events.append("a"))
        with synced_together():
            sync_paths([tmp_path / "b", tmp_path], then=lambda: events.append("b"))  # the folder is synced once
        events.append("block")
    assert events == ["block", "a", "b"]
    monkeypatch.setattr(os, "fsync", lambda _: events.append("fsync"))
    sync_paths([tmp_path])
    assert events[-1] == "fsync", "at once, because the block has ended"


def test_block_of_another_thread_delays_nothing(tmp_path: Path) -> None:
    with synced_together(), ThreadPoolExecutor(1) as other:
        events = list[str]()
        other.submit(sync_paths, [tmp_path], then=lambda: events.append("synced")).result()
        assert events == ["synced"]


def test_errors_of_a_block_are_raised_in_their_contexts(tmp_path: Path) -> None:
    @contextmanager
    def renamed() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LookupError("mine") from error

    events = list[str]()

    def block() -> None:
        with synced_together():
            sync_paths([tmp_path / "missing"], within=renamed, then=lambda: events.append("synced"))
            events.append("block")

    with pytest.raises(LookupError, match="mine"):
        block()
    assert events == ["block"]


def test_block_that_fails_syncs_nothing(tmp_path: Path) -> None:
    events = list[str]()

    def block() -> None:
        with synced_together():
            sync_paths([tmp_path], then=lambda: events.append("synced"))
            raise ValueError("the block")

    with pytest.raises(ValueError, match="the block"):
        block()
    assert events == []
    sync_paths([tmp_path], then=lambda: events.append("synced"))
    assert events == ["synced"]


def test_a_pointer_changes_only_after_what_was_written_before_it_is_synced(tmp_path: Path) -> None:
    events = list[str]()
    with open_stores("memory://", "memory://") as stores, synced_together():
        sync_paths([tmp_path], then=lambda: events.append("first"))
        stores.pointers.compare_and_set("a", "blob", expect=0)
        assert events == ["first"]
        with synced_together():
            sync_paths([tmp_path], then=lambda: events.append("second"))
            stores.pointers.apply([Put("b", "blob", expect=0)])
            assert events == ["first", "second"]
        sync_paths([tmp_path], then=lambda: events.append("third"))
        stores.pointers.compare_and_delete("a", expect=1)
        assert events == ["first", "second", "third"]


def test_a_block_inside_that_fails_drops_only_its_own(tmp_path: Path) -> None:
    events = list[str]()
    with synced_together():
        sync_paths([tmp_path], then=lambda: events.append("outer"))
        with suppress(ValueError), synced_together():
            sync_paths([tmp_path / "deleted"])
            raise ValueError
        with synced_together():
            sync_paths([tmp_path], then=lambda: events.append("inner"))
        assert events == []
    assert events == ["outer", "inner"]
