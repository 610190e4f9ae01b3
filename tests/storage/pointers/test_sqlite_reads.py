"""Small reads through SQLite's own driver."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, select
from sqlalchemy.dialects import sqlite

from skiway.storage.pointers.sqlite import DriverReads

NUMBERS = Table("numbers", MetaData(), Column("number", Integer, primary_key=True))
UP_TO = select(NUMBERS.c.number).where(NUMBERS.c.number <= bindparam("most")).order_by(NUMBERS.c.number).limit(3)
MISSING = select(Table("missing", MetaData(), Column("number", Integer)).c.number)


class Connections(list[sqlite3.Connection]):
    """Opens connections to one file and records them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE numbers (number INTEGER PRIMARY KEY)")
            database.executemany("INSERT INTO numbers VALUES (?)", [(number,) for number in range(10)])
        database.close()

    def __call__(self) -> sqlite3.Connection:
        self.append(sqlite3.connect(self.path, isolation_level=None, check_same_thread=False))
        return self[-1]


@pytest.fixture
def connections(tmp_path: Path) -> Connections:
    return Connections(tmp_path / "numbers.db")


@pytest.fixture
def reads(connections: Connections):
    made = DriverReads(connections, sqlite.dialect())
    yield made
    made.close()


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_missing_parameters_come_from_the_statement(reads):
    assert reads.rows(UP_TO, {"most": 1}) == [(0,), (1,)]
    assert reads.rows(UP_TO, {"most": 9}) == [(0,), (1,), (2,)]


def test_connection_is_reused_for_sequential_reads(reads, connections):
    for _ in range(5):
        reads.rows(UP_TO, {"most": 1})
    assert len(connections) == 1


def test_read_sees_earlier_commits(reads, connections):
    reads.rows(UP_TO, {"most": 0})
    with sqlite3.connect(connections.path) as other:
        other.execute("DELETE FROM numbers WHERE number = 0")
    other.close()
    assert reads.rows(UP_TO, {"most": 0}) == []


def test_concurrent_reads_do_not_share_a_connection(reads, connections):
    barrier, found = threading.Barrier(8), []

    def read():
        barrier.wait()
        found.extend(reads.rows(UP_TO, {"most": 1}) for _ in range(50))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[(0,), (1,)]] * 400
    assert len(connections) <= 8


def test_failed_connection_is_not_reused(reads, connections):
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        reads.rows(MISSING, {})
    assert is_closed(connections[0])
    assert reads.rows(UP_TO, {"most": 0}) == [(0,)]
    assert len(connections) == 2


def test_connections_returned_after_closing_are_closed_too(reads, connections):
    reads.rows(UP_TO, {"most": 0})
    reads.close()
    assert is_closed(connections[0])
    reads.rows(UP_TO, {"most": 0})
    assert is_closed(connections[1])
