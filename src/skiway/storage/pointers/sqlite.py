"""Pointers in a SQLite file: the embedded default, for any number of threads and processes of one machine.

Frequent reads and writes use SQLite's own driver, because SQLAlchemy takes many times longer than SQLite does. SQLAlchemy
does the rest. The statements of both are SQLAlchemy's; for the driver, each is compiled to text once. Results are kept until
what they contain changes.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any, ClassVar, Final, TypeAlias, TypeVar

from sqlalchemy import URL, Connection, Dialect, Select, create_engine, event, make_url
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement

from skiway.errors import Busy, Internal, InvalidArgument, SkiwayError, Unavailable
from skiway.foundation.causes import DISK_FULL
from skiway.foundation.clock import Clock, utc_now
from skiway.storage.calls import OnCall, StoreCall
from skiway.storage.pointers.sql import SqlPointerStore, identity, to_pointer, to_row
from skiway.storage.pointers.store import Check, Delete, Operation, Pointer, Put, outcome, require

T = TypeVar("T")

MAX_KEPT: Final = 10_000
MAX_CARRIED: Final = 1_000
"""If more results are kept, a commit discards all of them: to copy them would take longer than to read a few of them again."""

MAX_TOGETHER: Final = 64
"""How many writes are committed at once."""

MISSING: Final[Any] = object()
"""What `UnchangedReads.current` does not have. None is kept for pointers that do not exist."""

Scan: TypeAlias = tuple[str, str, int]
"""The prefix of a listing, the key that it begins after, and its limit."""


class Compiled:
    """A statement as text, with the name and default value of each positional parameter."""

    __slots__ = ("_places", "text")

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        compiled = statement.compile(dialect=dialect)
        assert isinstance(compiled, SQLCompiler)
        assert compiled.positiontup is not None, "SQLite's parameters are positional"
        self.text = compiled.string
        self._places = [(name, compiled.params[name]) for name in compiled.positiontup]

    def bound(self, parameters: Mapping[str, Any]) -> list[Any]:
        """The parameters in the order of their places."""
        return [parameters.get(*place) for place in self._places]


class DriverReads:
    """Runs queries on a pool of connections that `connect` opens, each used by one thread at a time.

    Every query sees all commits before it.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], dialect: Dialect) -> None:
        self._connect = connect
        self._dialect = dialect
        self._compiled: dict[ClauseElement, Compiled] = {}
        self._idle: deque[sqlite3.Connection] = deque()  # append and pop are thread-safe
        self._closed = False

    def rows(self, statement: ClauseElement, parameters: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Run a query and return all rows; its compiled form is cached without limit, so there must be few of them."""
        compiled = self._compiled.get(statement)
        if compiled is None:
            compiled = self._compiled[statement] = Compiled(statement, self._dialect)
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            rows = connection.execute(compiled.text, compiled.bound(parameters)).fetchall()
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self._idle.append(connection)
        return rows

    def close(self) -> None:
        """Close all connections; those in use are closed when they are released."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


class UnchangedReads:
    """Keeps the results of reads for as long as what they contain does not change.

    SQLite counts the commits of all other connections, in this process and in others, and this connection never writes. To
    ask for the count takes a third of the time of the shortest query, and less than a tenth of a pointer's way through all
    layers. A result is at least as new as the count under which it is kept, so every read still sees all commits before it.

    A new count discards all results, unless the only new commit is one of `DriverWrites`, whose changes are known.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._connection: sqlite3.Connection | None = None
        self._opened = 0
        self._count = -1
        self._kept: dict[str | Scan, Any] = {}

    def get(self, key: str | Scan, read: Callable[[], T], *, keep: Callable[[T], bool] = lambda _: True) -> T:
        """Return the kept result, or else call `read`, and keep its result if `keep` allows it."""
        kept = self.current()
        found = kept.get(key, MISSING)
        if found is MISSING:
            found = read()
            if len(kept) < MAX_KEPT and keep(found):
                kept[key] = found  # of this count: if the database has changed since, it is not read any more
        result: T = found
        return result

    def state(self) -> Hashable:
        """A value that changes with each commit."""
        with self._lock:
            self._update()
            return self._opened, self._count

    def current(self) -> dict[str | Scan, Any]:
        """The results that are valid now."""
        with self._lock:
            self._update()
            return self._kept

    def carry(
        self, before: dict[str | Scan, Any], changed: Mapping[str, Pointer | None], *, is_alone: Callable[[], bool]
    ) -> None:
        """Keep the results of the state before a commit, with the pointers that it `changed`, or that are gone.

        `is_alone` tells whether there was no other commit since that state: then the state after the commit is also the
        current one. It is asked last, so that no commit can come in between. A commit to a table takes 0.4 ms less this way.
        """
        if len(before) > MAX_CARRIED:
            return
        after = before.copy()  # reads that began before the commit may still add to the other one
        after.update((key, pointer) for key, pointer in changed.items() if key in before)
        for each in [key for key in after if isinstance(key, tuple)]:
            if any(key.startswith(each[0]) for key in changed):
                del after[each]
        with self._lock:
            self._update()
            if is_alone():
                self._kept = after | self._kept

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _update(self) -> None:
        """Discard the results if the database has changed. Each connection counts for itself."""
        if self._connection is None:
            self._connection, self._count, self._opened = self._connect(), -1, self._opened + 1
        count = _commits_of_others(self._connection)
        if count != self._count:
            self._count, self._kept = count, {}


@dataclass(slots=True, eq=False)
class _Write:
    """What a thread wants to write, and how that ended."""

    work: Callable[[sqlite3.Connection], None]
    changed: Mapping[str, Pointer | None]
    is_done: bool = False
    error: BaseException | None = None


class DriverWrites:
    """Runs writes one after another, on a connection of their own.

    Writes that wait for the connection are committed together, so that the disk is waited for once. Each of them fails by itself,
    and none has ended before all are on the disk.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection], unchanged: UnchangedReads) -> None:
        self._connect, self._unchanged = connect, unchanged
        self._connection: sqlite3.Connection | None = None
        self._waiting: deque[_Write] = deque()  # append and popleft are thread-safe
        self.lock = Lock()
        """Writing threads of this process queue here, also those with other connections. SQLite polls instead."""

    def run(self, work: Callable[[sqlite3.Connection], None], changed: Mapping[str, Pointer | None]) -> None:
        """Run `work` in a transaction, and commit it.

        It changes these pointers, by key, and no others. Those that it deletes are None.
        """
        mine = _Write(work, changed)
        self._waiting.append(mine)
        with self.lock:
            while not mine.is_done:
                self._commit([self._waiting.popleft() for _ in range(min(len(self._waiting), MAX_TOGETHER))])
        if mine.error is not None:
            raise mine.error

    def _commit(self, together: Sequence[_Write]) -> None:
        try:
            done = self._committed(together)
        except BaseException as error:  # noqa: BLE001 - each thread raises it
            for each in together:
                each.error = each.error or error
            if isinstance(error, sqlite3.Error):
                self._discard()
        else:
            with suppress(sqlite3.Error):  # the commit is done
                done()
        finally:
            for each in together:
                each.is_done = True

    def _committed(self, together: Sequence[_Write]) -> Callable[[], None]:
        """Commit writes, or none of them. Returns what tells the reads about it."""
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        try:
            connection.execute("BEGIN IMMEDIATE")  # the write lock at the start, so that nothing fails half way
            count, before = _commits_of_others(connection), self._unchanged.current()
            for each in together:
                _write(connection, each, is_alone=len(together) == 1)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # some errors, such as a full disk, roll back on their own
                connection.rollback()
            raise
        changed = {key: pointer for each in together if each.error is None for key, pointer in each.changed.items()}
        return lambda: self._unchanged.carry(before, changed, is_alone=lambda: _commits_of_others(connection) == count)

    def close(self) -> None:
        """Close the connection, after the transaction that is running."""
        with self.lock:
            self._discard()

    def _discard(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _write(connection: sqlite3.Connection, write: _Write, *, is_alone: bool) -> None:
    """Run a write; if it fails and others are in the transaction, only its changes are undone."""
    if is_alone:
        write.work(connection)
        return
    connection.execute("SAVEPOINT one")
    try:
        write.work(connection)
    except Exception as error:
        if not connection.in_transaction:
            raise
        write.error = error
        connection.execute("ROLLBACK TO one")
    connection.execute("RELEASE one")


def _commits_of_others(connection: sqlite3.Connection) -> int:
    """A number that changes with each commit of another connection, in any process."""
    count: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return count


BUSY_TIMEOUT_S = 30.0
MIN_FREE_BYTES = 64 * 1024
MAX_KEPT_ROWS = 10


class SqlitePointerStore(SqlPointerStore):
    """Stores pointers in the file `path`. Readers never wait, writers queue, and commits are synced to disk."""

    max_large_batch: ClassVar[int] = 100_000

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
        self._writing = DriverWrites(lambda: _opened(path, busy_timeout_s), self._unchanged)
        super().__init__(engine, insert=insert, clock=clock, on_call=on_call)
        table = self._table
        self._one, self._upsert, self._remove = (
            Compiled(each, engine.dialect) for each in (table.one, table.upsert, table.remove)
        )

    def _transact(self, work: Callable[[Connection], T], *, keys: Sequence[str]) -> T:  # noqa: ARG002 - one writer
        with self._writing.lock, self._autocommit.connect() as connection, _immediate(connection):
            return work(connection)

    def _apply(self, batch: Sequence[Operation]) -> None:
        """Like that of every SQL store, without SQLAlchemy, which takes 1 ms longer for the commit of a table."""

        def work(connection: sqlite3.Connection) -> None:
            found = [self._stored(connection, operation.key) for operation in batch]
            now = self._clock()
            for operation, pointer in zip(batch, found, strict=True):
                require(operation, pointer, now)
            if puts:
                connection.executemany(self._upsert.text, puts)
            if deletes:
                connection.executemany(self._remove.text, deletes)

        puts = [self._upsert.bound(to_row(each)) for each in batch if isinstance(each, Put)]
        deletes = [self._remove.bound(identity(each.key)) for each in batch if isinstance(each, Delete)]
        try:
            self._writing.run(work, _changes(batch))
        except sqlite3.Error as error:
            raise self._to_skiway_error(error) from error

    def _stored(self, connection: sqlite3.Connection, key: str) -> Pointer | None:
        row = connection.execute(self._one.text, self._one.bound(identity(key))).fetchone()
        return None if row is None else to_pointer(row)

    def close(self) -> None:
        self._unchanged.close()
        self._reading.close()
        self._writing.close()
        super().close()

    def state(self, *, since: float | None = None) -> Hashable:  # noqa: ARG002 - it takes no request
        """The number of commits that this process has seen."""
        try:
            return self._unchanged.state()
        except sqlite3.Error as error:
            raise self._to_skiway_error(error) from error

    def get(self, key: str) -> Pointer | None:
        """Like that of every store. A pointer that is kept is returned in half of the time: every call reads several."""
        started = time.perf_counter()
        try:
            found = self._unchanged.current().get(key, MISSING)
        except sqlite3.Error:
            found = MISSING  # reading it fails again, and is reported
        if found is MISSING or self._retired:
            return super().get(key)
        if self._on_call is not None:
            self._on_call(StoreCall("pointers", "get", 1, time.perf_counter() - started, None))
        pointer: Pointer | None = found
        return None if pointer is None or pointer.expired(self._clock()) else pointer

    def _get(self, key: str) -> Pointer | None:
        return self._kept(key, lambda: super(SqlitePointerStore, self)._get(key))

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        return self._kept(
            (prefix, after, limit),
            lambda: super(SqlitePointerStore, self)._scan(prefix, after=after, limit=limit, now=now),
            keep=lambda found: len(found) <= MAX_KEPT_ROWS and all(each.expires_at is None for each in found),
        )

    def _kept(self, key: str | Scan, read: Callable[[], T], *, keep: Callable[[T], bool] = lambda _: True) -> T:
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


def _changes(batch: Sequence[Operation]) -> dict[str, Pointer | None]:
    """The pointers that a batch sets, by key, and None for those that it deletes."""
    return {
        operation.key: outcome(operation) if isinstance(operation, Put) else None
        for operation in batch
        if not isinstance(operation, Check)
    }


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
