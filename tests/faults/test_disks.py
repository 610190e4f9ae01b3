"""A disk that is full or read-only for a while, and a database file that another program has locked."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from faults.disturbed import NAME, disturbed, fill, read_only, small_disk
from skiway.errors import Conflict, LimitExceeded, PreconditionFailed, Unavailable

pytestmark = pytest.mark.timeout(300)


@pytest.mark.full  # which mounts a disk
def test_full_disk_fails_statements_and_loses_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=24) as disk, disturbed(disk / "home") as running:
        filler = fill(disk)
        assert not running.writer.insert()
        assert isinstance(running.writer.errors[-1], Unavailable | LimitExceeded | PreconditionFailed)
        assert running.doors.db.count(NAME) == len(running.writer.acknowledged), "reading must work"
        filler.unlink()


@pytest.mark.full  # which mounts a disk
def test_read_only_disk_fails_statements_and_loses_nothing(tmp_path: Path) -> None:
    with (
        small_disk(tmp_path / "disk", megabytes=24) as disk,
        disturbed(disk / "home") as running,
        read_only(disk / "home"),
    ):
        assert not running.writer.insert()
        assert isinstance(running.writer.errors[-1], Unavailable | PreconditionFailed)
        assert running.doors.db.count(NAME) == len(running.writer.acknowledged), "reading must work"


def test_locked_database_delays_writes_and_no_reads(tmp_path: Path) -> None:
    with disturbed(tmp_path / "home") as running:
        other = sqlite3.connect(tmp_path / "home" / "pointers.db", isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
        done: list[bool] = []
        writing = threading.Thread(target=lambda: done.append(running.writer.insert()))
        writing.start()
        assert running.doors.db.count(NAME) == 1
        writing.join(2)
        assert writing.is_alive(), "the statement must wait for the lock"
        other.execute("COMMIT")
        other.close()
        writing.join(200)
        assert done == [True]


@pytest.mark.full
def test_database_locked_for_too_long_fails_the_statement(tmp_path: Path) -> None:
    with disturbed(tmp_path / "home") as running:
        other = sqlite3.connect(tmp_path / "home" / "pointers.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        assert not running.writer.insert()
        assert time.monotonic() - began < 200
        assert isinstance(running.writer.errors[-1], Conflict | Unavailable)
        other.execute("ROLLBACK")
        other.close()
