"""Transactions and sessions: a request works on the newest version, or in a transaction.

A transaction sees the catalog as of its first use, plus its own changes. When it commits, its changes are replayed in order
on the newest version, as one new version. A change fails if the rows or definitions it depends on have changed in the
meantime: the first commit wins.

DuckDB reports neither COMMIT nor ROLLBACK, and sends its DDL without a transaction id. A transaction without changes
therefore moves on to the newest version if a definition changes, so that a table created after BEGIN is visible. Statements
with the id of a committed transaction commit on their own.
"""

from __future__ import annotations

import datetime as dt
import itertools
import secrets
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from skiway.airport.catalog import TransactionManager, TransactionStatus
from skiway.airport.memory.sandbox import Sandbox
from skiway.airport.memory.snapshots import Change, Clock, Snapshot, Store
from skiway.airport.request import current_request
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, SkiwayError

__all__ = ["AutoCommit", "Database", "MemoryTransactions", "Session", "Transaction"]

_SWEEP_SIZE: Final = 8  # how many transactions each call checks for expiry


class Session(Protocol):
    """The view of the catalog that a request reads and writes."""

    @property
    def snapshot(self) -> Snapshot:
        """The visible version of the catalog."""

    def apply(self, change: Change) -> None:
        """Apply a change."""

    def stay_alive(self) -> None:
        """Reset the idle timeout during a long statement."""


class AutoCommit:
    """A session in which every change is committed at once."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def snapshot(self) -> Snapshot:
        """The newest version."""
        return self._store.current

    def apply(self, change: Change) -> None:
        """Commit a change as a new version."""
        self._store.commit(change)

    def stay_alive(self) -> None:
        """Do nothing: this session has no timeout."""


class Transaction:
    """A session whose changes are committed together."""

    __slots__ = ("_base", "_cause", "_changes", "_clock", "_lock", "_store", "_working", "id", "last_used", "status")

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
        self._cause = ""

    @property
    def snapshot(self) -> Snapshot:
        """The catalog with the changes of this transaction."""
        with self._lock:
            return self._visible()

    @property
    def changes(self) -> int:
        """The number of uncommitted changes."""
        return len(self._changes)

    def apply(self, change: Change) -> None:
        """Apply a change that only this transaction sees."""
        with self._lock:
            self._working = change(self._visible())
            self._changes.append(change)

    def stay_alive(self) -> None:
        """Reset the idle timeout."""
        self.last_used = self._clock()

    def commit(self) -> None:
        """Commit the changes. Abort the transaction if they conflict with another commit."""
        with self._lock:
            self._require_active()
            try:
                if self._changes:
                    self._store.commit(self._replay)
            except BaseException as error:
                self._end(TransactionStatus.ABORTED, error)
                raise
            self._end(TransactionStatus.COMMITTED)

    def rollback(self) -> None:
        """Discard the changes. In the handler of an exception, remember it as the cause."""
        with self._lock:
            self._end(TransactionStatus.ABORTED, sys.exception())

    def _visible(self) -> Snapshot:
        self._require_active()
        self.stay_alive()
        newest = self._store.current
        if self._working is None or (not self._changes and self._working.shape != newest.shape):
            self._base = self._working = newest
        return self._working

    def _replay(self, newest: Snapshot) -> Snapshot:
        if newest is self._base and self._working is not None:
            return self._working
        for change in self._changes:
            newest = change(newest)
        return newest

    def _require_active(self) -> None:
        if self.status is not TransactionStatus.ACTIVE:
            # DuckDB reports this instead of the cause if a scan of the failed statement is still running.
            cause = f"{self._cause}; " if self._cause else ""
            raise PreconditionFailed(f"{cause}transaction {self.id} is {self.status}: begin a new one")

    def _end(self, status: TransactionStatus, cause: BaseException | None = None) -> None:
        if isinstance(cause, SkiwayError) and not self._cause:
            self._cause = cause.message
        self.status = status
        self._base = self._working = None
        self._changes = []


class MemoryTransactions(TransactionManager):
    """The transactions of a catalog. A transaction that is idle for `ttl` is aborted, and forgotten after another `ttl`.

    DuckDB begins a transaction for every statement and never ends one. If there are more than `many`, transactions
    without changes are forgotten after a tenth of `ttl`.
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
            raise InvalidArgument(f"the time to live of transactions must be positive, not {ttl}")
        self._store = store
        self._clock = clock
        self._ttl = ttl
        self._many = many
        self._ids = ids or (lambda: secrets.token_hex(16))
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Transaction] = OrderedDict()

    def begin(self) -> str:
        """Begin a transaction. It sees the catalog as of its first use."""
        transaction = Transaction(self._ids(), store=self._store, clock=self._clock)
        with self._lock:
            self._sweep()
            self._known[transaction.id] = transaction
        return transaction.id

    def commit(self, transaction_id: str) -> None:
        """Commit a transaction. Committing it again does nothing."""
        transaction = self._open(transaction_id)
        if transaction.status is not TransactionStatus.COMMITTED:
            transaction.commit()

    def rollback(self, transaction_id: str) -> None:
        """Roll back a transaction; `PreconditionFailed` if it is committed."""
        transaction = self._open(transaction_id)
        if transaction.status is TransactionStatus.COMMITTED:
            raise PreconditionFailed(f"transaction {transaction_id} is committed and cannot be rolled back")
        transaction.rollback()

    def status(self, transaction_id: str) -> TransactionStatus | None:
        """The status; None if the id is unknown or the transaction ended long ago."""
        transaction = self._find(transaction_id)
        return transaction.status if transaction else None

    def session(self, transaction_id: str) -> Session:
        """The session for a transaction id; "" means no transaction."""
        if not transaction_id:
            return AutoCommit(self._store)
        transaction = self._open(transaction_id)
        return AutoCommit(self._store) if transaction.status is TransactionStatus.COMMITTED else transaction

    def _open(self, transaction_id: str) -> Transaction:
        transaction = self._find(transaction_id)
        if transaction is None:
            raise NotFound(f"transaction {transaction_id!r} is unknown or ended long ago: begin a new one")
        if transaction.status is TransactionStatus.ACTIVE:
            transaction.stay_alive()
        return transaction

    def _find(self, transaction_id: str) -> Transaction | None:
        with self._lock:
            self._sweep()
            transaction = self._known.get(transaction_id)
            return transaction if transaction and self._remembers(transaction) else None

    def _sweep(self) -> None:
        """Forget expired transactions. Each call checks a few of them in turn, so they cannot pile up."""
        for transaction_id in list(itertools.islice(self._known, _SWEEP_SIZE)):
            if self._remembers(self._known[transaction_id]):
                self._known.move_to_end(transaction_id)
            else:
                del self._known[transaction_id]

    def _remembers(self, transaction: Transaction) -> bool:
        """Abort a transaction that is idle for too long. Return whether it is still remembered."""
        idle = self._clock() - transaction.last_used
        if len(self._known) > self._many and not transaction.changes:
            return idle <= self._ttl / 10
        if idle > self._ttl and transaction.status is TransactionStatus.ACTIVE:
            transaction.rollback()
        return idle <= 2 * self._ttl


class Database:
    """The state that a catalog shares with its schemas and tables: versions, transactions, and the SQL sandbox."""

    def __init__(self, store: Store, transactions: MemoryTransactions, sandbox: Sandbox) -> None:
        self.store, self.transactions, self.sandbox = store, transactions, sandbox

    def session(self) -> Session:
        """The session of the current request."""
        return self.transactions.session(current_request().transaction_id)
