"""Snapshots of the in-memory database, which are immutable, and the sessions and transactions that change it.

A request works on the newest snapshot, or in a transaction.

Readers take the newest snapshot and never wait. Writers pass a change, a function from one snapshot to the next. Changes are
applied one after the other, each to the newest snapshot.

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
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import pyarrow as pa

from skiway.airport.catalog import ColumnStatistics, TransactionManager, TransactionStatus
from skiway.airport.memory.definitions import Sandbox, TableDefinition, fold_case
from skiway.airport.memory.rows import Rows
from skiway.airport.request import current_request
from skiway.airport.tables import TimePoint
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, SkiwayError

# Unique numbers of changes: the stamps of rows and the revisions of definitions.
change_numbers: Final = itertools.count(1)


class RowIds:
    """Allocates the row ids of a table. An id is never reused, in any version of the table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def take(self, count: int) -> int:
        """Allocate `count` consecutive ids and return the first."""
        with self._lock:
            first = self._next
            self._next += count
            return first


@dataclass(frozen=True, slots=True)
class TableState:
    """A version of a table. Every definition has its own `revision`, even if a table is dropped and created again."""

    definition: TableDefinition
    rows: Rows
    row_ids: RowIds
    revision: int
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict, compare=False)  # computed on demand

    @classmethod
    def empty(cls, definition: TableDefinition) -> TableState:
        """A new table without rows."""
        return cls(definition, Rows(definition.schema), RowIds(), next(change_numbers))

    def with_row_ids(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Append a column with new row ids to `rows`."""
        first = self.row_ids.take(rows.num_rows)
        ids = pa.arange(first, first + rows.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, ids], schema=self.definition.schema)

    def with_rows(self, rows: Rows) -> TableState:
        """The table with other rows."""
        return replace(self, rows=rows, statistics={})

    def with_definition(self, definition: TableDefinition, rows: Rows | None = None) -> TableState:
        """The table with another definition. Pass `rows` if the columns change."""
        if rows is None:
            rows = self.rows.rewritten(definition.schema, lambda batch: batch.columns[:-1])
        return replace(self, definition=definition, rows=rows, statistics={})


@dataclass(frozen=True, slots=True)
class SchemaState:
    """A version of a schema. The keys of `tables` are case-folded names."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TableState] = field(default_factory=dict)

    def table(self, name: str) -> TableState | None:
        """The table called `name`, or None. Names are case-insensitive."""
        return self.tables.get(fold_case(name))

    def with_table(self, table: TableState) -> SchemaState:
        """Add a table, or replace the one with the same name."""
        return replace(self, tables={**self.tables, fold_case(table.definition.name): table})

    def without_table(self, name: str) -> SchemaState:
        """Remove the table called `name`."""
        return replace(self, tables={key: table for key, table in self.tables.items() if key != fold_case(name)})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of the catalog. `shape` is the number of the last change of a definition."""

    version: int
    committed_at: dt.datetime
    schemas: Mapping[str, SchemaState] = field(default_factory=dict)
    shape: int = 0

    def schema(self, name: str) -> SchemaState | None:
        """The schema called `name`, or None. Names are case-insensitive."""
        return self.schemas.get(fold_case(name))

    def open_schema(self, name: str) -> SchemaState:
        """The schema called `name`; `NotFound` if there is none."""
        schema = self.schema(name)
        if schema is None:
            raise NotFound(f"schema {name!r} not found", key="schema", schema=name)
        return schema

    def table(self, schema: str, name: str) -> TableState | None:
        """The table called `name`, or None."""
        state = self.schema(schema)
        return state.table(name) if state else None

    def open_table(self, schema: str, name: str) -> TableState:
        """The table called `name`; `NotFound` if there is none."""
        table = self.open_schema(schema).table(name)
        if table is None:
            raise NotFound(f"table {schema}.{name} not found", key="table", table=f"{schema}.{name}")
        return table

    def with_schema(self, schema: SchemaState) -> Snapshot:
        """Add a schema, or replace the one with the same name."""
        return replace(self, schemas={**self.schemas, fold_case(schema.name): schema})

    def without_schema(self, name: str) -> Snapshot:
        """Remove the schema called `name`."""
        return replace(self, schemas={key: schema for key, schema in self.schemas.items() if key != fold_case(name)})

    def with_table(self, schema: str, table: TableState) -> Snapshot:
        """Add a table, or replace the one with the same name."""
        return self.with_schema(self.open_schema(schema).with_table(table))


Change = Callable[[Snapshot], Snapshot]
Clock = Callable[[], dt.datetime]


class Store:
    """Stores the newest `keep` versions. Version n is the state after n changes; version 0 is empty."""

    def __init__(self, *, clock: Clock, keep: int) -> None:
        if keep < 1:
            raise InvalidArgument(f"history must be at least 1, not {keep}")
        self._clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._history: tuple[Snapshot, ...] = (Snapshot(0, clock()),)

    @property
    def current(self) -> Snapshot:
        """The newest version."""
        return self._history[-1]

    def commit(self, change: Change) -> Snapshot:
        """Apply a change to the newest version. If it raises, or returns the same snapshot, there is no new version."""
        with self._lock:
            before = self.current
            after = change(before)
            if after is before:
                return before
            # versions stay in order if the clock is set back
            moment = max(self._clock(), before.committed_at)
            committed = replace(after, version=before.version + 1, committed_at=moment)
            self._history = (*self._history[-self._keep + 1 :], committed) if self._keep > 1 else (committed,)
            return committed

    def at(self, point: TimePoint) -> Snapshot | None:
        """The version at a point in time; None if it is before the first version."""
        history = self._history
        if point.unit == "timestamp":
            return _at_time(history, point.timestamp())
        return _at_version(history, point.version())


def _at_version(history: tuple[Snapshot, ...], version: int) -> Snapshot:
    oldest, newest = history[0].version, history[-1].version
    if not oldest <= version <= newest:
        raise NotFound(f"version {version} does not exist: versions {oldest} to {newest} are available")
    return history[version - oldest]


def _at_time(history: tuple[Snapshot, ...], moment: dt.datetime) -> Snapshot | None:
    later = bisect_right(history, moment, key=lambda snapshot: snapshot.committed_at)
    if later:
        return history[later - 1]
    if history[0].version:
        raise NotFound(
            f"the state at {moment.isoformat()} is no longer available: the history starts at "
            f"{history[0].committed_at.isoformat()} with version {history[0].version}"
        )
    return None


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
