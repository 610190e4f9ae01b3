"""Pointers in PostgreSQL, for several servers that share a store."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from math import inf
from time import monotonic
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar

from sqlalchemy import (
    ARRAY,
    URL,
    BigInteger,
    Connection,
    Engine,
    bindparam,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from skiway.errors import Contention, Internal, InvalidArgument, SkiwayError, Unavailable
from skiway.foundation import extras
from skiway.foundation.causes import DISK_FULL
from skiway.foundation.clock import Clock, utc_now
from skiway.storage.calls import OnCall
from skiway.storage.pointers.sql import SqlPointerStore

T = TypeVar("T")

ATTEMPTS = 8
LOCK_TIMEOUT_S = 20
SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE = "40001", "40P01", "55P03"
DISK_FULL_STATE = "53100"
# SQLSTATE classes of problems outside of the store: no connection, wrong password, no resources, shutdown.
UNAVAILABLE_CLASSES = ("08", "28", "53", "57", "58")


class PostgresPointerStore(SqlPointerStore):
    """Stores pointers in `schema` of a database. Only writers of the same keys block each other, and large batches all writers.

    A call that goes on relies on the same state for at most `reuse_state_s` seconds.
    """

    max_large_batch: ClassVar[int] = 100_000

    def __init__(
        self,
        url: URL,
        *,
        schema: str = "skiway",
        pool_size: int = 10,
        reuse_state_s: float = 0.05,
        clock: Clock = utc_now,
        on_call: OnCall | None = None,
        randomness: Callable[[], float] = random.random,
    ) -> None:
        extras.require("psycopg", extra="postgres", purpose="a pointer store in PostgreSQL")
        engine = create_engine(url.set(drivername="postgresql+psycopg"), pool_size=pool_size, max_overflow=pool_size)
        event.listen(engine, "connect", _configure)
        self._schema, self._everything = schema, _lock(f"{schema} everything")
        self._randomness = randomness
        self._states = _States(engine, reuse_state_s)
        super().__init__(engine, insert=insert, schema=schema, clock=clock, on_call=on_call)

    def state(self, *, since: float | None = None) -> Hashable:
        """A value that every change of the store changes, wherever it is made.

        It is the snapshot that a query would see: the same one has the same content. Writes in other databases of the server
        change it, too.
        """
        return self._states.read(since)

    def close(self) -> None:
        """Close all connections."""
        self._states.close()
        super().close()

    def _transact(self, work: Callable[[Connection], T], *, keys: Sequence[str]) -> T:
        with self._engine.connect() as connection:
            if len(keys) > self.max_batch:  # the database has no room for so many locks
                connection.execute(_LOCK_ALL, {"everything": self._everything})
            else:
                connection.execute(_LOCK, {"locks": self._locks(keys), "everything": self._everything})
            result = work(connection)
            try:
                self._commit(connection)
            finally:
                self._states.has_changed()
            return result

    def _locks(self, keys: Sequence[str]) -> list[int]:
        """The advisory locks for `keys`, sorted, so that two batches never deadlock.

        Row locks are not enough: a batch may depend on the absence of a key.
        """
        return sorted({_lock(f"{self._schema}:{key}") for key in keys or ("",)})

    def _commit(self, connection: Connection) -> None:
        try:
            connection.commit()
        except DBAPIError as error:
            if error.connection_invalidated:
                raise Unavailable(
                    "the connection to the database broke during a commit, so the change may or may not have happened; "
                    "read before you retry",
                    key="store.outcome_unknown",
                    detail=self._name,
                ) from error
            raise

    def _translated(self, attempt: Callable[[], T]) -> T:
        retrying = Retrying(
            retry=retry_if_exception(_retryable), wait=self._pause, stop=stop_after_attempt(ATTEMPTS), reraise=True
        )
        return super()._translated(lambda: retrying(attempt))

    def _pause(self, state: RetryCallState) -> float:
        """Exponential backoff from 5 ms to 200 ms, with jitter."""
        longest: float = min(0.2, 0.005 * 2**state.attempt_number)
        return longest * (0.5 + self._randomness() / 2)

    def _error(self, error: DBAPIError) -> SkiwayError:
        state = _sqlstate(error)
        detail = f"{self._name}: {str(error.orig).strip()}"
        if state in (SERIALIZATION_FAILURE, DEADLOCK, LOCK_NOT_AVAILABLE):
            return Contention("too many concurrent writes to the same keys; try again", key="store.busy", detail=detail)
        if state == DISK_FULL_STATE:
            message = f"the database cannot write: {DISK_FULL.sentence}"
            return Unavailable(message, key=DISK_FULL.key, detail=detail)
        if error.connection_invalidated or not state or state.startswith(UNAVAILABLE_CLASSES):
            return _unavailable(detail)
        return Internal("the database has failed", key="store.failed", detail=detail)


_State: TypeAlias = tuple[int, str]


class _LastState(NamedTuple):
    """A state, when it was requested, and which change of this store was the last one then."""

    at: float
    change: int
    state: _State


class _States:
    """Reads the state of the database on connections of its own: through SQLAlchemy it would take three times as long.

    A state is equal only to one of the same period without errors. After a failover, new transactions may have the numbers of
    transactions that were lost.
    """

    def __init__(self, engine: Engine, reuse_s: float) -> None:
        self._engine, self._reuse_s = engine, reuse_s
        self._idle: deque[Any] = deque()  # append and pop are thread-safe
        self._period = 0
        self._changes, self._change = count(1), 0
        self._last = _LastState(-inf, 0, (0, ""))
        self._closed = False

    def read(self, since: float | None) -> _State:
        """The snapshot of a query that runs now, or has run since, with the number of the period."""
        from psycopg import Error

        now, change, last = monotonic(), self._change, self._last
        if since is not None and last.change == change and last.at >= max(since, now - self._reuse_s):
            return last.state
        try:
            state = self._read()
        except Error:
            self._end_period()  # the server may have been restarted: try once more with a new connection
            try:
                state = self._read()
            except Error as error:
                raise _unavailable(f"{self._engine.url.render_as_string(hide_password=True)}: {error}") from error
        self._last = _LastState(now, change, state)
        return state

    def has_changed(self) -> None:
        """Forget the last state, because this store has changed something."""
        self._change = next(self._changes)

    def close(self) -> None:
        """Close all connections; those in use are closed when they are released."""
        self._closed = True
        self._end_period()

    def _read(self) -> _State:
        from psycopg import connect

        period = self._period
        try:
            connection = self._idle.pop()
        except IndexError:
            arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
            connection = connect(*arguments, **options, autocommit=True)
        try:
            (state,) = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        except BaseException:
            connection.close()
            raise
        if self._closed or period != self._period:
            connection.close()
        else:
            self._idle.append(connection)
        return period, state

    def _end_period(self) -> None:
        self._period += 1
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(
        "the store is unavailable; check that the database is running and can be reached",
        key="store.unavailable",
        detail=detail,
    )


_EVERYTHING = bindparam("everything", type_=BigInteger)
_LOCK = select(
    func.pg_advisory_xact_lock_shared(_EVERYTHING),
    func.pg_advisory_xact_lock(func.unnest(bindparam("locks", type_=ARRAY(BigInteger))).column_valued("lock")),
)
_LOCK_ALL = select(func.pg_advisory_xact_lock(_EVERYTHING))


def _lock(name: str) -> int:
    """The number of an advisory lock."""
    return int.from_bytes(sha256(name.encode()).digest()[:8], "big", signed=True)


def _configure(connection: Any, _entry: ConnectionPoolEntry) -> None:
    # A client that hangs during a write must not block all others forever.
    connection.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_S}s'")
    connection.execute(f"SET idle_in_transaction_session_timeout = '{2 * LOCK_TIMEOUT_S}s'")
    # Pages are read in index order; with stale statistics the planner would sort the whole rest of the table instead.
    connection.execute("SET enable_sort = off")
    connection.commit()


def _sqlstate(error: DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


def _retryable(error: BaseException) -> bool:
    """Is it certain that nothing was changed, and may a retry succeed? A broken commit is Unavailable, see `_commit`."""
    if not isinstance(error, DBAPIError):
        return False
    return error.connection_invalidated or _sqlstate(error) in (SERIALIZATION_FAILURE, DEADLOCK)


def open_pointers(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> PostgresPointerStore:
    """Open the store at `postgresql://user@host/database?schema=skiway`, creating the schema if it does not exist.

    `options` may contain the `password`.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # the latter for an invalid port
        raise InvalidArgument("the URL of the database is invalid; use postgresql://user@host/database") from error
    if unknown := set(options) - {"password"}:
        raise InvalidArgument(
            f"unknown option {', '.join(sorted(unknown))} of a PostgreSQL store; it only has 'password'"
        )
    if password := options.get("password"):
        parsed = parsed.set(password=password)
    schema = str(parsed.query.get("schema", "skiway"))
    return PostgresPointerStore(parsed.difference_update_query(["schema"]), schema=schema, clock=clock, on_call=on_call)
