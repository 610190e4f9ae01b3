"""Pointers in a SQLite file: the embedded default, for any number of threads and processes of one machine.

Reads use SQLite's driver directly, because SQLAlchemy takes many times longer for them than SQLite does. The statements
are still SQLAlchemy's; each is compiled to text once. Results are kept until the database changes.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Dialect, Select, create_engine, event, make_url
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from skiway.causes import DISK_FULL
from skiway.clock import Clock, utc_now
from skiway.errors import Busy, Internal, InvalidArgument, SkiwayError, Unavailable
from skiway.storage.calls import OnCall
from skiway.storage.pointers.sql import SqlPointerStore
from skiway.storage.pointers.store import Pointer

__all__ = ["DriverReads", "SqlitePointerStore", "UnchangedReads", "open_pointers"]

T = TypeVar("T")

BUSY_TIMEOUT_S = 30.0
MIN_FREE_BYTES = 64 * 1024
MAX_KEPT = 10_000
MAX_KEPT_ROWS = 10

_MISSING: Final[Any] = object()

_Compiled: TypeAlias = tuple[str, list[tuple[str, Any]]]
"""A compiled statement, and the name and default value of each positional parameter."""


class DriverReads:
    """Runs queries on a pool of connections that `connect` opens, each used by one thread at a time.

    Every query sees all commits before it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect) -> None:
        self._connect = connect
        self._dialect = dialect
        self._texts: dict[Select[*tuple[Any, ...]], _Compiled] = {}
        self._idle: deque[sqlite3.Connection] = deque()  # append and pop are thread-safe
        self._closed = False

    def rows(self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Run a query and return all rows; its compiled form is cached without limit, so there must be few of them."""
        text, places = self._texts.get(statement) or self._compile(statement)
        connection = self._acquire()
        try:
            rows = connection.execute(text, [parameters.get(*place) for place in places]).fetchall()
        except BaseException:
            connection.close()
            raise
        self._release(connection)
        return rows

    def close(self) -> None:
        """Close all connections; those in use are closed when they are released."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _acquire(self) -> sqlite3.Connection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def _release(self, connection: sqlite3.Connection) -> None:
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)

    def _compile(self, statement: Select[*tuple[Any, ...]]) -> _Compiled:
        compiled = statement.compile(dialect=self._dialect)
        names = compiled.positiontup
        assert names is not None, "SQLite's parameters are positional"
        self._texts[statement] = found = (compiled.string, [(name, compiled.params[name]) for name in names])
        return found


class UnchangedReads:
    """Keeps the results of reads for as long as nobody changes the database.

    SQLite counts the commits of all other connections, in this process and in others, and this connection never writes. To
    ask for the count takes a third of the time of the shortest query, and less than a tenth of a pointer's way through all
    layers. A result is at least as new as the count under which it is kept, so every read still sees all commits before it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened = 0
        self._count = -1
        self._kept: dict[Hashable, Any] = {}

    def get(self, key: Hashable, read: Callable[[], T], *, keep: Callable[[T], bool] = lambda _: True) -> T:
        """Return the kept result, or else call `read`, and keep its result if `keep` allows it."""
        kept = self._current()
        found = kept.get(key, _MISSING)
        if found is _MISSING:
            found = read()
            if len(kept) < MAX_KEPT and keep(found):
                kept[key] = found  # of this count: if the database has changed since, nobody looks there any more
        result: T = found
        return result

    def state(self) -> Hashable:
        """A value that changes with each commit."""
        with self._lock:
            self._update()
            return self._opened, self._count

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _current(self) -> dict[Hashable, Any]:
        """The results that are valid now."""
        with self._lock:
            self._update()
            return self._kept

    def _update(self) -> None:
        """Discard the results if the database has changed. Each connection counts for itself."""
        if self._connection is None:
            self._connection, self._count, self._opened = self._connect(), -1, self._opened + 1
        count = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if count != self._count:
            self._count, self._kept = count, {}


class SqlitePointerStore(SqlPointerStore):
    """Stores pointers in the file `path`. Readers never wait, writers queue, and commits are synced to disk."""

    def __init__(
        self,
        path: Path,
        *,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
        clock: Clock = utc_now,
        on_call: OnCall | None = None,
    ) -> None:
        path = path.absolute()  # connections are opened later, possibly in another working directory
        self._folder = path.parent
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unavailable(f"directory {path.parent} cannot be created: {error}", key="store.disk") from error
        engine = create_engine(
            URL.create("sqlite", database=str(path)),
            connect_args={"timeout": busy_timeout_s, "isolation_level": None},
            max_overflow=-1,
        )
        event.listen(engine, "connect", _configure)
        self._reading = DriverReads(lambda: _opened(path, busy_timeout_s), engine.dialect)
        self._unchanged = UnchangedReads(lambda: _opened(path, busy_timeout_s))
        # Threads of this process queue here; SQLite waits for other processes by polling.
        self._writer = Lock()
        super().__init__(engine, insert=insert, clock=clock, on_call=on_call)

    def _transact(self, work: Callable[[Connection], T], *, keys: Sequence[str]) -> T:  # noqa: ARG002 - one writer
        with self._writer, self._autocommit.connect() as connection, _immediate(connection):
            return work(connection)

    def close(self) -> None:
        self._unchanged.close()
        self._reading.close()
        super().close()

    def state(self) -> Hashable:
        """The number of commits that this process has seen."""
        try:
            return self._unchanged.state()
        except sqlite3.Error as error:
            raise self._to_skiway_error(error) from error

    def _get(self, key: str) -> Pointer | None:
        return self._kept(key, lambda: super(SqlitePointerStore, self)._get(key))

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        return self._kept(
            (prefix, after, limit),
            lambda: super(SqlitePointerStore, self)._scan(prefix, after=after, limit=limit, now=now),
            keep=lambda found: len(found) <= MAX_KEPT_ROWS and all(each.expires_at is None for each in found),
        )

    def _kept(self, key: Hashable, read: Callable[[], T], *, keep: Callable[[T], bool] = lambda _: True) -> T:
        try:
            return self._unchanged.get(key, read, keep=keep)
        except sqlite3.Error as error:
            raise self._to_skiway_error(error) from error

    def _rows(self, statement: Select[*tuple[Any, ...]], parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        try:
            return self._reading.rows(statement, parameters)
        except sqlite3.Error as error:
            raise self._to_skiway_error(error) from error

    def _error(self, error: DBAPIError) -> SkiwayError:
        return self._to_skiway_error(error.orig)

    def _to_skiway_error(self, error: BaseException | None) -> SkiwayError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code, without its extension
        detail = f"{self._name}: {error}"
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return Busy("another process held the lock for too long; try again later", key="store.busy", detail=detail)
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return Internal(
                "the database file is corrupt; restore the file from a backup", key="store.corrupt", detail=detail
            )
        if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and self._is_disk_full()):
            message = f"the database file cannot be written: {DISK_FULL.sentence}"
            return Unavailable(message, key=DISK_FULL.key, detail=detail)
        if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):
            return Unavailable(
                "the database file cannot be accessed; check the disk and the permissions, then try again",
                key="store.disk",
                detail=detail,
            )
        return Internal("the database has failed", key="store.failed", detail=detail)

    def _is_disk_full(self) -> bool:
        """Whether there is no space left. SQLite reports that as an I/O error for the file that readers share."""
        try:
            return shutil.disk_usage(self._folder).free < MIN_FREE_BYTES
        except OSError:
            return False


@contextmanager
def _immediate(connection: Connection) -> Iterator[None]:
    """A transaction that takes the write lock at its start, so that it never fails half way."""
    connection.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        yield
        connection.exec_driver_sql("COMMIT")
    except BaseException:
        driver = connection.connection.driver_connection
        if driver is not None and driver.in_transaction:  # some errors, such as a full disk, roll back on their own
            driver.rollback()
        raise


def _opened(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
    _configure(connection)
    return connection


def _configure(connection: sqlite3.Connection, _entry: ConnectionPoolEntry | None = None) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise sqlite3.OperationalError(f"write-ahead logging is not supported here (journal mode is {mode})")
    connection.execute("PRAGMA synchronous = FULL")  # NORMAL could lose acknowledged commits in a power failure


def open_pointers(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> SqlitePointerStore:
    """Open the store at `sqlite:///relative/path` or `sqlite:////absolute/path`, creating it if it does not exist."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidArgument(f"{url} is not a valid URL; use sqlite:///path/to/file.db") from error
    if parsed.host or not parsed.database or parsed.database == ":memory:" or parsed.query or options:
        raise InvalidArgument(f"{url} is not a file, or has options; use sqlite:///path/to/file.db")
    return SqlitePointerStore(Path(parsed.database), clock=clock, on_call=on_call)
