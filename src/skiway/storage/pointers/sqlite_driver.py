"""Frequent reads and writes of a SQLite file with its own driver: SQLAlchemy takes many times longer than SQLite does.

The statements are still SQLAlchemy's; each is compiled to text once. Results are kept until somebody changes what they contain.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any, Final, TypeAlias, TypeVar

from sqlalchemy import Dialect
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ClauseElement

from skiway.storage.pointers.store import Pointer

__all__ = ["MAX_KEPT", "MISSING", "Compiled", "DriverReads", "DriverWrites", "Scan", "UnchangedReads"]

T = TypeVar("T")

MAX_KEPT: Final = 10_000
MAX_CARRIED: Final = 1_000
"""If more results are kept, a commit discards all of them: to copy them would take longer than to read a few of them again."""

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
        connection = self._acquire()
        try:
            rows = connection.execute(compiled.text, compiled.bound(parameters)).fetchall()
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


class UnchangedReads:
    """Keeps the results of reads for as long as nobody changes what they contain.

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
                kept[key] = found  # of this count: if the database has changed since, nobody looks there any more
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


class DriverWrites:
    """Runs transactions one after another, on a connection that nobody else uses."""

    def __init__(self, connect: Callable[[], sqlite3.Connection], unchanged: UnchangedReads) -> None:
        self._connect, self._unchanged = connect, unchanged
        self._connection: sqlite3.Connection | None = None
        self.lock = Lock()
        """Writing threads of this process queue here, also those with other connections. SQLite polls instead."""

    @contextmanager
    def transaction(self, changed: Mapping[str, Pointer | None]) -> Iterator[sqlite3.Connection]:
        """A transaction that takes the write lock at its start, so that it never fails half way.

        It changes these pointers, by key, and no others. Those that it deletes are None.
        """
        with self.lock:
            if self._connection is None:
                self._connection = self._connect()
            connection = self._connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                count, before = _commits_of_others(connection), self._unchanged.current()
                yield connection
                connection.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:  # some errors, such as a full disk, roll back on their own
                    connection.rollback()
                if isinstance(error, sqlite3.Error):
                    self._discard()
                raise
            with suppress(sqlite3.Error):  # the commit is done
                self._unchanged.carry(before, changed, is_alone=lambda: _commits_of_others(connection) == count)

    def close(self) -> None:
        """Close the connection, after the transaction that is running."""
        with self.lock:
            self._discard()

    def _discard(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _commits_of_others(connection: sqlite3.Connection) -> int:
    """A number that changes with each commit of another connection, in any process."""
    count: int = connection.execute("PRAGMA data_version").fetchone()[0]
    return count
