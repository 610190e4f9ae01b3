"""Files are synced to disk together, and errors are not lost."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Barrier

import pytest

from skiway.disk_sync import meanwhile, sync_paths


def test_paths_are_synced_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(3, timeout=30)
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


def test_calls_run_while_the_block_runs_and_end_before_it() -> None:
    together, events = Barrier(2, timeout=30), list[str]()

    def call() -> None:
        together.wait()
        together.wait()
        events.append("call")

    with meanwhile([call]):
        together.wait()
        events.append("block")
        together.wait()
    assert events == ["block", "call"]


def test_error_of_a_call_is_raised_after_the_block() -> None:
    events = list[str]()

    def fail() -> None:
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"), meanwhile([fail, lambda: events.append("other call")]):
        events.append("block")
    assert sorted(events) == ["block", "other call"]
    with pytest.raises(ValueError, match="the block"), meanwhile([fail]):
        raise ValueError("the block")
