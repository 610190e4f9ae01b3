"""The first INSERT into a table that the same statement has just created.

DuckDB runs CREATE TABLE … AS as CREATE TABLE, and then INSERT. It neither announces the rows nor undoes the creation if
they fail. So if the INSERT fails, the table is dropped, provided that

- the client that created it inserts (its binding says so), in a transaction that began before the table existed, and
- the table is as it was created: without rows, and nobody has altered it.

The client lists the dropped table until it attaches again. If it now runs CREATE TABLE … AS with the same name, it sends no
rows, because it believes that the table exists: the result would be an empty table. So the server remembers such tables
(`FailedCreations`), and asks the client to drop them first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock

import pyarrow as pa
from cachetools import FIFOCache

from skiway.airport import Statement, current_request
from skiway.errors import PreconditionFailed, SkiwayError

__all__ = ["FailedCreations", "FirstInsert"]

log = logging.getLogger("skiway.lake")


class FirstInsert(Statement):
    """An INSERT after which `undo` is called, once, unless it succeeds."""

    def __init__(self, start: Callable[[], Statement], undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo
        try:
            self._statement = start()
        except BaseException:
            self._failed()
            raise

    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Write rows."""
        return self._statement.apply(rows)

    def commit(self) -> int:
        """Commit the rows."""
        try:
            return self._statement.commit()
        except BaseException:
            self._failed()
            raise

    def abort(self) -> None:
        """Discard the rows, and undo the creation of the table."""
        try:
            self._statement.abort()
        finally:
            self._failed()

    def _failed(self) -> None:
        undo, self._undo = self._undo, None
        if undo is None:
            return
        try:
            undo()
        except SkiwayError:  # the error of the statement is the one to report
            log.warning("the table of a failed CREATE TABLE … AS could not be dropped", exc_info=True)


class FailedCreations:
    """The tables that clients list but that were dropped when a CREATE TABLE … AS failed; the oldest are forgotten first.

    A client is known by the session id that it sends with every call. Names are those of tables in a namespace.
    """

    def __init__(self, size: int = 10_000) -> None:
        self._lock = Lock()
        self._known: FIFOCache[tuple[str, str, str], bool] = FIFOCache(size)

    def add(self, session_id: str, namespace_id: str, name: str) -> None:
        """Remember a table that a session still lists."""
        if not session_id:
            return
        with self._lock:
            self._known[session_id, namespace_id, name.casefold()] = True

    def check(self, namespace_id: str, name: str) -> None:
        """Raise if the caller still lists such a table."""
        with self._lock:
            known = (current_request().session_id, namespace_id, name.casefold()) in self._known
        if known:
            raise PreconditionFailed(
                f"table {name!r} cannot be created yet: this client still lists the table of its CREATE TABLE … AS that "
                "failed, and would send no rows; run DROP TABLE, or DETACH and ATTACH, and then create it again",
                key="table.creation_failed",
                table=name,
            )

    def dropped(self, namespace_id: str, name: str) -> bool:
        """Forget such a table of the caller, which drops it; whether there was one."""
        with self._lock:
            key = (current_request().session_id, namespace_id, name.casefold())
            return self._known.pop(key, False)

    def attached(self) -> None:
        """Forget all tables of the caller, which loads a new listing."""
        with self._lock:
            session = current_request().session_id
            for key in [key for key in self._known if key[0] == session]:
                del self._known[key]
