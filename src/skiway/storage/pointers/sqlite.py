"""Small reads by SQLite's own driver: SQLAlchemy takes many times longer for them than SQLite does.

The statements are still SQLAlchemy's; each is turned into text once.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Dialect, Select, create_engine, event, make_url
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from skiway.clock import Clock, utc_now
from skiway.errors import Contention, Internal, InvalidArgument, SkiwayError, Unavailable
from skiway.storage.calls import OnCall
from skiway.storage.pointers.sql import SqlPointerStore

__all__ = ["DriverReads", "SqlitePointerStore", "open_pointers"]

_Text: TypeAlias = tuple[str, list[tuple[str, Any]]]
"""A statement as the driver takes it, and the parameter of each place with what it is unless it is given."""


class DriverReads:
    """Asks statements over connections that `connect` opens, each used by one thread at a time and kept for the next.

    Every read sees what was committed before it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect) -> None:
        self._connect = connect
        self._dialect = dialect
        self._texts: dict[Select[*tuple[Any, ...]], _Text] = {}
        self._idle: deque[sqlite3.Connection] = deque()  # whose ends may be used by several threads at once
        self._closed = False

    def rows(self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """All rows; `statement` must be one of a few that are asked again and again."""
        text, places = self._texts.get(statement) or self._compiled(statement)
        connection = self._taken()
        try:
            rows = connection.execute(text, [parameters.get(*place) for place in places]).fetchall()
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)
        return rows

    def close(self) -> None:
        """Close all connections; one that is in use, when it is given back."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _taken(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def _compiled(self, statement: Select[*tuple[Any, ...]]) -> _Text:
        compiled = statement.compile(dialect=self._dialect)
        names = compiled.positiontup
        assert names is not None, "SQLite's parameters have places"
        self._texts[statement] = found = (compiled.string, [(name, compiled.params[name]) for name in names])
        return found


# --------------------
# Pointers in a SQLite file: the embedded default, for any number of threads and processes of one machine.


T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0


class SqlitePointerStore(SqlPointerStore):
    """Pointers in the file `path`. Readers never wait, writers queue, and a commit is on disk when it returns."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        clock: Clock = utc_now,
        on_call: OnCall | None = None,
    ) -> None:
        path = path.absolute()  # connections are opened as needed, perhaps from another working directory
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"{path.parent} cannot be made a directory: {error}", key="store.disk") from error
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            connect_args={"timeout": busy_timeout_s, "isolation_level": None},
            max_overflow=-1,
        )
        event.listen(engine, "connect", _configure)
        self._reading = DriverReads(lambda: _opened(path, busy_timeout_s), engine.dialect)
        # Threads of this process queue here; SQLite's own waiting is polling, and is left to processes.
        self._writer = Lock()
        super().__init__(engine, insert=insert, clock=clock, on_call=on_call)

    def _transact(self, work: Callable[[Connection], T], *, keys: Sequence[str]) -> T:  # noqa: ARG002 - one writer
        with self._writer, self._autocommit.connect() as connection, _immediate(connection):
            return work(connection)

    def close(self) -> None:
        self._reading.close()
        super().close()

    def _rows(self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        try:
            return self._reading.rows(statement, parameters)
        except sqlite3.Error as error:
            raise self._meaning(error) from error

    def _error(self, error: DBAPIError) -> SkiwayError:
        return self._meaning(error.orig)

    def _meaning(self, error: BaseException | None) -> SkiwayError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code, without its extension
        what = f"{self._name}: {error}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Contention(f"{what}: another process kept writing for too long, try again", key="store.busy")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Internal(f"{what}: restore the file from a backup", key="store.corrupt")
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            return Unavailable(f"{what}: see to room and permissions of the disk, then try again", key="store.disk")
        return Internal(what, key="store.failed")


@contextmanager
def _immediate(connection: Connection) -> Iterator[None]:
    """A transaction that holds the write lock from its beginning, so that it never has to be given up half way."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        driver = connection.connection.driver_connection
        if driver is not None and driver.in_transaction:  # some errors, such as a full disk, have rolled back already
            driver.rollback()
        raise


def _opened(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    _configure(connection)
    return connection


def _configure(connection: sqlite3.Connection, _entry: ConnectionPoolEntry | None = None) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(f"write-ahead logging is not possible here (journal mode is {mode})")
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL could forget acknowledged commits at a power failure


def open_pointers(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> SqlitePointerStore:
    """The store in the file that `sqlite:///relative/path` or `sqlite:////absolute/path` names, made when missing."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidArgument(f"{url} cannot be read as a URL: write sqlite:///path/to/file.db") from error
    if parsed.host or not parsed.database or parsed.database == ":memory:" or parsed.query or options:
        raise InvalidArgument(f"{url} does not name a file, or has options: write sqlite:///path/to/file.db")
    return SqlitePointerStore(Path(parsed.database), clock=clock, on_call=on_call)
