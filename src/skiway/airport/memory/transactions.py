"""Where a request works: on the newest version, or in a transaction.

A transaction sees the catalog as it was at its first use, and its own changes on top. When it commits, its changes are
made again, in their order, on the version that is newest then, as one new version. Each change notices when what it
builds on has changed in between, and refuses: the first to commit wins.

DuckDB tells neither of commit nor of rollback, and its DDL names no transaction. So a transaction without changes of
its own moves on to the newest version when a definition changed: whoever creates a table inside BEGIN finds it there.
And statements that come with the id of a transaction already committed commit by themselves.
"""

from __future__ import annotations

import datetime as dt
import itertools
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from skiway.airport.catalog import TransactionManager, TransactionStatus
from skiway.airport.memory.sandbox import Sandbox
from skiway.airport.memory.snapshots import Change, Clock, Snapshot, Store
from skiway.airport.request import current_request
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed

__all__ = ["AutoCommit", "Database", "MemoryTransactions", "Session", "Transaction"]

_SWEPT: Final = 8


class Session(Protocol):
    """What a request reads from and writes to."""

    @property
    def snapshot(self) -> Snapshot:
        """What it sees."""

    def apply(self, change: Change) -> None:
        """Make a change."""

    def stay_alive(self) -> None:
        """Tell that a long statement is still at work."""


class AutoCommit:
    """Every change is a version of its own."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def snapshot(self) -> Snapshot:
        """The newest version."""
        return self._store.current

    def apply(self, change: Change) -> None:
        """Commit the change."""
        self._store.commit(change)

    def stay_alive(self) -> None:
        """Nothing ends by itself here."""


class Transaction:
    """Changes that become visible together, or not at all."""

    __slots__ = ("_base", "_changes", "_clock", "_lock", "_store", "_working", "id", "last_used", "status")

    def __init__(self, transaction_id: str, *, store: Store, clock: Clock) -> None:
        self.id = transaction_id
        self.status = TransactionStatus.ACTIVE
        self.last_used = clock()
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._base: Snapshot | None = None
        self._working: Snapshot | None = None
        self._changes: list[Change] = []

    @property
    def snapshot(self) -> Snapshot:
        """The catalog with the changes made here."""
        with self._lock:
            return self._seen()

    @property
    def changes(self) -> int:
        """How many changes wait for the commit."""
        return len(self._changes)

    def apply(self, change: Change) -> None:
        """Make a change, for this transaction only."""
        with self._lock:
            self._working = change(self._seen())
            self._changes.append(change)

    def stay_alive(self) -> None:
        """Put off the end by idleness."""
        self.last_used = self._clock()

    def commit(self) -> None:
        """Make the changes visible to all, or abort if somebody else was faster."""
        with self._lock:
            self._require_active()
            try:
                if self._changes:
                    self._store.commit(self._replayed)
            except BaseException:
                self._end(TransactionStatus.ABORTED)
                raise
            self._end(TransactionStatus.COMMITTED)

    def rollback(self) -> None:
        """Drop the changes."""
        with self._lock:
            self._end(TransactionStatus.ABORTED)

    def _seen(self) -> Snapshot:
        self._require_active()
        self.stay_alive()
        newest = self._store.current
        if self._working is None or (not self._changes and self._working.shape != newest.shape):
            self._base = self._working = newest
        return self._working

    def _replayed(self, newest: Snapshot) -> Snapshot:
        if newest is self._base and self._working is not None:
            return self._working
        for change in self._changes:
            newest = change(newest)
        return newest

    def _require_active(self) -> None:
        if self.status is not TransactionStatus.ACTIVE:
            raise PreconditionFailed(f"transaction {self.id} is {self.status}: begin a new one")

    def _end(self, status: TransactionStatus) -> None:
        self.status = status
        self._base = self._working = None
        self._changes = []


class MemoryTransactions(TransactionManager):
    """Transactions of one catalog. One that is idle for `ttl` is aborted; its end is remembered as long again.

    DuckDB begins one for every statement and ends none. So when there are more than `many`, those that wrote nothing
    are forgotten ten times as soon.
    """

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        ttl: dt.timedelta,
        many: int = 20_000,
        ids: Callable[[], str] | None = None,
    ) -> None:
        if ttl <= dt.timedelta(0):
            raise InvalidArgument(f"the time to live of a transaction must be positive, not {ttl}")
        self._store = store
        self._clock = clock
        self._ttl = ttl
        self._many = many
        self._ids = ids or (lambda: secrets.token_hex(16))
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Transaction] = OrderedDict()

    def begin(self) -> str:
        """A new transaction; it sees what is there when it is first used."""
        transaction = Transaction(self._ids(), store=self._store, clock=self._clock)
        with self._lock:
            self._sweep()
            self._known[transaction.id] = transaction
        return transaction.id

    def commit(self, transaction_id: str) -> None:
        """Make its work visible; once committed, committing again does nothing."""
        transaction = self._open(transaction_id)
        if transaction.status is not TransactionStatus.COMMITTED:
            transaction.commit()

    def rollback(self, transaction_id: str) -> None:
        """Drop its work; `PreconditionFailed` if it was committed."""
        transaction = self._open(transaction_id)
        if transaction.status is TransactionStatus.COMMITTED:
            raise PreconditionFailed(f"transaction {transaction_id} is committed and cannot be rolled back")
        transaction.rollback()

    def status(self, transaction_id: str) -> TransactionStatus | None:
        """Where it is; None for an unknown id, also one that ended long ago."""
        transaction = self._find(transaction_id)
        return transaction.status if transaction else None

    def session(self, transaction_id: str) -> Session:
        """Where a request with this transaction id works; "" is none."""
        if not transaction_id:
            return AutoCommit(self._store)
        transaction = self._open(transaction_id)
        return AutoCommit(self._store) if transaction.status is TransactionStatus.COMMITTED else transaction

    def _open(self, transaction_id: str) -> Transaction:
        transaction = self._find(transaction_id)
        if transaction is None:
            raise NotFound(f"transaction {transaction_id!r} is not known here, or ended long ago: begin a new one")
        if transaction.status is TransactionStatus.ACTIVE:
            transaction.stay_alive()
        return transaction

    def _find(self, transaction_id: str) -> Transaction | None:
        with self._lock:
            self._sweep()
            transaction = self._known.get(transaction_id)
            return transaction if transaction and self._remembers(transaction) else None

    def _sweep(self) -> None:
        """Look after a few transactions, other ones each time: begun one by one, they cannot pile up."""
        for transaction_id in list(itertools.islice(self._known, _SWEPT)):
            if self._remembers(self._known[transaction_id]):
                self._known.move_to_end(transaction_id)
            else:
                del self._known[transaction_id]

    def _remembers(self, transaction: Transaction) -> bool:
        """Abort a transaction that is idle too long; whether its end is still worth knowing."""
        idle = self._clock() - transaction.last_used
        if len(self._known) > self._many and not transaction.changes:
            return idle <= self._ttl / 10
        if idle > self._ttl and transaction.status is TransactionStatus.ACTIVE:
            transaction.rollback()
        return idle <= 2 * self._ttl


class Database:
    """What a catalog, its schemas and its tables share: versions, transactions, and a sandbox for callers' SQL."""

    def __init__(self, store: Store, transactions: MemoryTransactions, sandbox: Sandbox) -> None:
        self.store, self.transactions, self.sandbox = store, transactions, sandbox

    def session(self) -> Session:
        """Where the current request reads and writes: in its transaction if it has one."""
        return self.transactions.session(current_request().transaction_id)
