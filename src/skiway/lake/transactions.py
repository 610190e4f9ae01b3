"""Transactions as DuckDB uses them: an id for some statements, whose end the server never learns.

Beginning a transaction costs nothing: its id is a signed token with the time it began. The signature covers the caller, so the
id of another caller is as unknown as an invented one.
All reads of a transaction see the tables as of its begin, on every server, except for tables that it has written itself: of
these, they see what the last write has committed. The server pins the snapshots that it finds in memory for some minutes, so that
later reads need no lookup. Without its pin, a table is looked up as of the begin again.

A transaction with more than one statement has a lease, which is shown in `skiway.queries` and can be ended. DuckDB begins a
transaction for each statement, and nothing is stored for one with a single statement. From the second one on, a lease lists what the
transaction reads.

A client may also say that it ends its transactions itself. Then INSERT, UPDATE and DELETE only stage rows, and the
action `commit_transaction` makes all of them visible at once. Only the transaction itself sees them before.

A call with the id of a transaction that is unknown, has expired or was ended fails (`check`).
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from sys import intern
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar

from cachetools import LRUCache

from skiway.airport import Request, TransactionManager, TransactionStatus, current_request
from skiway.airport.request import call_of
from skiway.airport.wire import protocol
from skiway.errors import NotFound, PreconditionFailed
from skiway.metastore import Realm
from skiway.metastore.queries import TransactionUse, check_transaction, end, use_in_transaction
from skiway.metastore.transactions.staged_writes import NewWrite, TransactionState
from skiway.model import v1
from skiway.security import utc_now

_PLANNING: Final = ("column_statistics", "flight_info")
"""Calls that a client makes for all tables of a statement, before it executes the statement."""
_TRACES: Final = 100
_PINS: Final = 1000
"""A transaction remembers this many of its latest trace ids, and pins of tables."""
RECENT: Final = timedelta(minutes=2)
"""For so long after its last call, a server remembers everything about a transaction."""
T = TypeVar("T")


@dataclass(slots=True)
class _Use:
    """What the lease of a transaction needs. There are many transactions, and tuples take the least memory."""

    statements: int = 0
    traces: tuple[str, ...] = ()
    bound: int | None = None
    """How many tables the session had bound when the current statement was executed; None before that."""
    snapshots: tuple[tuple[str, int], ...] = ()
    is_stored: bool = False


@dataclass(slots=True)
class _Transaction:
    """What this server knows about a transaction."""

    is_unended: bool = False
    """Whether this server has begun it, and no client has ended it here."""
    writes: int = 0
    pins: tuple[tuple[str, str, int | None], ...] = ()
    """Tables, points in time, and the snapshots that the transaction reads of them."""

    def pin_of(self, table_id: str, point: str) -> tuple[str, str, int | None] | None:
        """The pin of a table as of a point in time, if there is one."""
        return next((pin for pin in self.pins if pin[0] == table_id and pin[1] == point), None)

    def pin(self, table_id: str, point: str, snapshot_id: int | None) -> None:
        """Pin a snapshot, instead of the one that was pinned before."""
        others = [pin for pin in self.pins if pin[0] != table_id or pin[1] != point]
        self.pins = (*others[1 - _PINS :], (intern(table_id), intern(point), snapshot_id))


class Remembered(Generic[T]):
    """What a server remembers of transactions: of all for two minutes, and then only what it could not find again.

    DuckDB begins a transaction for each statement and ends none, so those of an hour would take hundreds of megabytes.
    """

    def __init__(
        self, keep: int, *, is_needed: Callable[[T], bool], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._size, self._is_needed, self._clock = keep, is_needed, clock
        self._recent: OrderedDict[str, tuple[float, T]] = OrderedDict()
        self._older: LRUCache[str, T] = LRUCache(keep)

    def get(self, transaction_id: str) -> T | None:
        """What is remembered of a transaction, if anything."""
        entry = self._recent.get(transaction_id)
        if entry is None:
            older: T | None = self._older.get(transaction_id)
            return older
        return self.add(transaction_id, entry[1])

    def add(self, transaction_id: str, value: T) -> T:
        """Remember a transaction, and forget others."""
        now = self._clock()
        self._recent[transaction_id] = (now, value)
        self._recent.move_to_end(transaction_id)
        oldest, (used, old) = next(iter(self._recent.items()))
        while now - used > RECENT.total_seconds() or len(self._recent) > self._size:
            del self._recent[oldest]
            if self._is_needed(old):
                self._older[oldest] = old
            oldest, (used, old) = next(iter(self._recent.items()))
        return value

    def pop(self, transaction_id: str) -> T | None:
        """Forget a transaction, and return what was remembered."""
        entry = self._recent.pop(transaction_id, None)
        older: T | None = self._older.pop(transaction_id, None)
        return older if entry is None else entry[1]

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)


class Statements:
    """Counts the statements of transactions.

    No call says to which statement it belongs. Each use of a table has a trace id, and DuckDB requests the version of the
    catalog whenever it binds a table. So a new trace id after such a request belongs to another statement, if the current
    one is executed already. Sessions are processes, so statements of other connections can be counted, too: then a
    transaction has a lease although it has only one statement, which is harmless. For clients that request no versions, each
    use of a table counts.
    """

    def __init__(self, keep: int = 10_000) -> None:
        self._lock = Lock()
        self._bound: LRUCache[str, int] = LRUCache(keep)

    def bind(self, session_id: str) -> None:
        """Record that a session has bound a table."""
        with self._lock:
            self._bound[session_id] = self._bound.get(session_id, 0) + 1

    def count(self, use: _Use, request: Request) -> bool:
        """Count the statement that a request belongs to, unless it is known; return whether it is a new one."""
        with self._lock:
            bound = self._bound.get(request.session_id, 0)
            is_new = request.trace_id not in use.traces and (
                use.statements == 0 or (use.bound is not None and (bound == 0 or bound > use.bound))
            )
            if request.trace_id not in use.traces:
                use.traces = (*use.traces[1 - _TRACES :], request.trace_id)
            if is_new:
                use.statements += 1
                use.bound = None
            if use.bound is None and call_of(request).operation not in _PLANNING:
                use.bound = bound
            return is_new


class TransactionLeases:
    """The leases of the transactions that this server has seen. `realm` is that of the current caller."""

    def __init__(self, realm: Callable[[], Realm], *, keep: int = 100_000) -> None:
        self._realm = realm
        self.statements = Statements()
        self._lock = Lock()
        self._uses: Remembered[_Use] = Remembered(keep, is_needed=lambda use: use.is_stored)

    def begun(self, transaction_id: str) -> None:
        """Remember a transaction of this server, for which no other server can have stored a lease yet."""
        with self._lock:
            self._uses.add(transaction_id, _Use())

    def enter(self, transaction_id: str, request: Request, *, began: datetime, until: datetime) -> None:
        """Count the statement of a call. Raise `PreconditionFailed` if the transaction was ended."""
        use = self._use(transaction_id, began)
        is_new = self.statements.count(use, request)
        if use.statements > 1 and (is_new or not use.is_stored):
            self._store(transaction_id, use, began=began, until=until)
        elif use.is_stored:
            check_transaction(self._realm(), transaction_id)

    def reads(self, transaction_id: str, table_id: str, snapshot_id: int, *, began: datetime, until: datetime) -> None:
        """Record the snapshot of a table that the transaction reads from now on."""
        use = self._use(transaction_id, began)
        if (table_id, snapshot_id) not in use.snapshots:
            use.snapshots += ((intern(table_id), snapshot_id),)
            if use.is_stored:
                self._store(transaction_id, use, began=began, until=until)

    def release(self, transaction_id: str) -> None:
        """Release the snapshots of a transaction that its client has ended."""
        with self._lock:
            use = self._uses.pop(transaction_id)
        if use is None or use.is_stored:
            with suppress(NotFound):  # it has no lease
                end(self._realm(), v1.EndQueryRequest(query_id=transaction_id, commit=True))

    def _use(self, transaction_id: str, began: datetime) -> _Use:
        with self._lock:
            use = self._uses.get(transaction_id)
        if (
            use is None
        ):  # another server has begun it and may have stored a lease, or this one has forgotten a statement
            is_stored = check_transaction(self._realm(), transaction_id)
            is_later = utc_now() - began > RECENT
            new = _Use(statements=1, bound=0, is_stored=is_stored) if is_later else _Use(is_stored=is_stored)
            with self._lock:
                use = self._uses.get(transaction_id) or self._uses.add(transaction_id, new)
        return use

    def _store(self, transaction_id: str, use: _Use, *, began: datetime, until: datetime) -> None:
        use_in_transaction(self._realm(), TransactionUse(transaction_id, began, until, use.snapshots, use.statements))
        use.is_stored = True


log = logging.getLogger("skiway.lake")
_MAC: Final = 24  # hexadecimal digits
_AGAIN: Final = "COMMIT or ROLLBACK, then begin a new one"
_ABOUT_TRANSACTIONS: Final = ("get_transaction_status", "commit_transaction", "rollback_transaction")


class Staged(Protocol):
    """The rows that wait for the end of a transaction."""

    def add(self, transaction_id: str, write: NewWrite, *, until: datetime) -> None:
        """Add a write to a transaction, which expires at a time."""

    def state(self, transaction_id: str, table_id: str, *, read: int | None) -> TransactionState:
        """A table as a transaction sees it, which reads the snapshot `read`, or none."""

    def status(self, transaction_id: str) -> TransactionStatus | None:
        """The status of a transaction; None if it has written nothing."""

    def commit(self, transaction_id: str, *, until: datetime) -> None:
        """Make the rows of a transaction visible, which expires at a time."""

    def abort(self, transaction_id: str, *, until: datetime) -> None:
        """Discard the rows of a transaction, which expires at a time."""


class LakeTransactions(TransactionManager):
    """Transaction ids and pins. `caller` identifies who makes the current call: the account and the subject.

    Statements of DuckDB commit by themselves, so commit and rollback only concern rows that other clients have `staged`.
    """

    def __init__(
        self,
        key: bytes,
        *,
        caller: Callable[[], tuple[str, str]] = lambda: ("", ""),
        ttl: timedelta = timedelta(hours=1),
        keep: int = 100_000,
        clock: Callable[[], datetime] = utc_now,
        staged: Staged | None = None,
        leases: TransactionLeases | None = None,
    ) -> None:
        self._key = key
        self._staged = staged
        self._leases = leases
        self._caller = caller
        self._ttl = ttl
        self._clock = clock
        self._lock = Lock()
        self._known: Remembered[_Transaction] = Remembered(keep, is_needed=lambda known: known.writes > 0)

    def apart(self, *, staged: Staged, leases: TransactionLeases) -> LakeTransactions:
        """The transactions of the same callers in a state of the lake of its own, where others see nothing of them."""
        return LakeTransactions(
            self._key, caller=self._caller, ttl=self._ttl, clock=self._clock, staged=staged, leases=leases
        )

    def begin(self) -> str:
        """Return a new transaction id."""
        micros = int(self._clock().timestamp() * 1_000_000)
        body = f"{micros:x}.{secrets.token_hex(8)}"
        transaction_id = f"{body}.{self._mac(body)}"
        with self._lock:
            self._known.add(transaction_id, _Transaction(is_unended=True))
        if self._leases is not None:
            self._leases.begun(transaction_id)
        return transaction_id

    def check(self) -> None:
        """Raise an error if the current call is part of a transaction that is unknown, has expired or was ended."""
        transaction_id = current_request().transaction_id
        if not transaction_id or _is_called(*_ABOUT_TRANSACTIONS):
            return
        began = self._began(transaction_id)
        if began is None:
            raise NotFound(f"transaction {transaction_id!r} is unknown: {_AGAIN}", key="transaction")
        self._check_age(began)
        status = self._stored_status(transaction_id)
        if status not in (None, TransactionStatus.ACTIVE):
            raise PreconditionFailed(
                f"transaction {transaction_id!r} has ended, it is {status}: {_AGAIN}", key="transaction.ended"
            )

    def bind(self) -> None:
        """Record that the client of the current call has bound a table, which begins a statement or continues its planning."""
        if self._leases is not None:
            self._leases.statements.bind(current_request().session_id)

    def commit(self, transaction_id: str) -> None:
        """Commit the staged rows, if the client ends the transaction. A statement that commits by itself ends nothing."""
        if self._staged is not None and _is_called("commit_transaction"):
            self._staged.commit(transaction_id, until=self._end_of(transaction_id))
            self._release(transaction_id)

    def rollback(self, transaction_id: str) -> None:
        """Discard the staged rows, if the client ends the transaction. A failed statement has left nothing behind."""
        if self._staged is not None and _is_called("rollback_transaction"):
            self._staged.abort(transaction_id, until=self._end_of(transaction_id))
            self._release(transaction_id)

    def _release(self, transaction_id: str) -> None:
        if self._leases is not None:
            self._leases.release(transaction_id)

    def _end_of(self, transaction_id: str) -> datetime:
        """When a transaction expires that the client ends now."""
        with self._lock:
            self._transaction(transaction_id).is_unended = False
        until = self.expiry(transaction_id)
        assert until is not None, "the server has checked the status"
        return until

    def status(self, transaction_id: str) -> TransactionStatus | None:
        """Active until the transaction ends or is too old; None for an unknown id."""
        began = self._began(transaction_id)
        if began is None or self._clock() - began > self._ttl:
            return None
        return self._stored_status(transaction_id) or TransactionStatus.ACTIVE

    def _stored_status(self, transaction_id: str) -> TransactionStatus | None:
        """The stored status; None if nothing is stored. DuckDB stores nothing, so nothing is looked up for its statements."""
        if self._staged is None:
            return None
        with self._lock:
            is_unended = self._transaction(transaction_id).is_unended
        if is_unended and not is_explicit() and not _is_called(*_ABOUT_TRANSACTIONS):
            return None
        return self._staged.status(transaction_id)

    def stage(self, transaction_id: str, write: NewWrite) -> None:
        """Add a write to a transaction that the client ends itself."""
        began = self._began(transaction_id) if transaction_id else None
        if began is None or self._staged is None:
            raise PreconditionFailed(
                "the statement is part of an explicit transaction, but names none: begin one with create_transaction",
                key="transaction.missing",
            )
        self._staged.add(transaction_id, write, until=began + self._ttl)

    def state(self, transaction_id: str, table_id: str, *, read: int | None) -> TransactionState:
        """A table as the transaction of the current call sees it, which reads the snapshot `read`, or none."""
        if self._staged is None or not is_explicit() or self._began(transaction_id) is None:
            return TransactionState(transaction_id, read, ())
        return self._staged.state(transaction_id, table_id, read=read)

    def pinned(
        self, transaction_id: str, table_id: str, point: str, *, find: Callable[[datetime | None], int | None]
    ) -> int | None:
        """The snapshot of a table that a transaction reads. `find` returns the one as of its begin, or the current one.

        `point` is the time travel clause of the statement, if any. Without a transaction, every call finds the snapshot
        again.
        """
        began = self._began(transaction_id) if transaction_id else None
        if began is None:
            return find(None)
        self._check_age(began)
        until = began + self._ttl
        if self._leases is not None:
            self._leases.enter(transaction_id, current_request(), began=began, until=until)
        with self._lock:
            if (pin := self._transaction(transaction_id).pin_of(table_id, point)) is not None:
                return pin[2]
        pinned = find(began)
        with self._lock:
            transaction = self._transaction(transaction_id)
            if (pin := transaction.pin_of(table_id, point)) is not None:  # another call was faster
                pinned = pin[2]
            else:
                transaction.pin(table_id, point, pinned)
        if self._leases is not None and pinned is not None:
            self._leases.reads(transaction_id, table_id, pinned, began=began, until=until)
        return pinned

    def repin(self, transaction_id: str, table_id: str, snapshot_id: int | None) -> None:
        """Pin the snapshot that the transaction has just written. Log a warning if it has written before."""
        began = self._began(transaction_id) if transaction_id else None
        if began is None:
            return
        with self._lock:
            transaction = self._transaction(transaction_id)
            transaction.pin(table_id, "", snapshot_id)
            transaction.writes += 1
            is_second = transaction.writes == 2
        if is_second:
            log.warning(
                "a transaction has written twice: each statement has committed by itself, and ROLLBACK will undo neither of "
                "them; write to several tables at once with AirportClient.transaction()"
            )
        if self._leases is not None:
            until = began + self._ttl
            with suppress(PreconditionFailed):  # it has ended since, which does not undo the write
                self._leases.enter(transaction_id, current_request(), began=began, until=until)
                if snapshot_id is not None:
                    self._leases.reads(transaction_id, table_id, snapshot_id, began=began, until=until)

    def _transaction(self, transaction_id: str) -> _Transaction:
        known = self._known.get(transaction_id)
        if known is None:  # another server has begun it, or this one has forgotten it
            known = self._known.add(transaction_id, _Transaction())
        return known

    def expiry(self, transaction_id: str) -> datetime | None:
        """When a transaction expires; None without a valid transaction."""
        began = self._began(transaction_id) if transaction_id else None
        return None if began is None else began + self._ttl

    def began_before(self, transaction_id: str, moment: datetime) -> bool:
        """Whether a transaction began before `moment`; False without a valid transaction."""
        began = self._began(transaction_id) if transaction_id else None
        return began is not None and began <= moment

    def _check_age(self, began: datetime) -> None:
        if self._clock() - began > self._ttl:
            raise PreconditionFailed(
                f"this transaction began more than {self._ttl} ago and has expired: {_AGAIN}", key="transaction.expired"
            )

    def _began(self, transaction_id: str) -> datetime | None:
        body, _, mac = transaction_id.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(body).encode()):
            return None
        return datetime.fromtimestamp(int(body.partition(".")[0], 16) / 1_000_000, UTC)

    def _mac(self, body: str) -> str:
        # Lengths keep the parts apart, because subjects may contain any character.
        signed = "".join(f"{len(part)}:{part}" for part in ("transaction", *self._caller(), body))
        return hmac.digest(self._key, signed.encode(), "sha256").hex()[:_MAC]


def _is_called(*actions: str) -> bool:
    """Whether the current call is one of these actions."""
    return call_of(current_request()).operation in actions


def is_explicit() -> bool:
    """Whether the client of the current call ends its transaction itself."""
    return current_request().header(protocol.AUTO_COMMIT) == "0"
