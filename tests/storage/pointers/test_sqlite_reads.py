"""Small reads by SQLite's own driver."""

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
    """Opens connections to one file, and keeps them for the test to see."""

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
def opened(tmp_path: Path) -> Connections:
    return Connections(tmp_path / "numbers.db")


@pytest.fixture
def reads(opened: Connections):
    made = DriverReads(opened, sqlite.dialect())
    yield made
    made.close()


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_parameters_that_are_not_given_are_those_of_the_statement(reads):
    assert reads.rows(UP_TO, {"most": 1}) == [(0,), (1,)]
    assert reads.rows(UP_TO, {"most": 9}) == [(0,), (1,), (2,)]


def test_one_connection_serves_one_read_after_the_other(reads, opened):
    for _ in range(5):
        reads.rows(UP_TO, {"most": 1})
    assert len(opened) == 1


def test_a_read_sees_what_was_committed_before_it(reads, opened):
    reads.rows(UP_TO, {"most": 0})
    with sqlite3.connect(opened.path) as other:
        other.execute("DELETE FROM numbers WHERE number = 0")
    other.close()
    assert reads.rows(UP_TO, {"most": 0}) == []


def test_reads_of_several_threads_do_not_share_a_connection(reads, opened):
    together, found = threading.Barrier(8), []

    def read():
        together.wait()
        found.extend(reads.rows(UP_TO, {"most": 1}) for _ in range(50))

    threads = [threading.Thread(target=read) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [[(0,), (1,)]] * 400
    assert len(opened) <= 8


def test_a_connection_that_failed_is_not_used_again(reads, opened):
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        reads.rows(MISSING, {})
    assert is_closed(opened[0])
    assert reads.rows(UP_TO, {"most": 0}) == [(0,)]
    assert len(opened) == 2


def test_closing_closes_also_what_is_given_back_later(reads, opened):
    reads.rows(UP_TO, {"most": 0})
    reads.close()
    assert is_closed(opened[0])
    reads.rows(UP_TO, {"most": 0})
    assert is_closed(opened[1])
