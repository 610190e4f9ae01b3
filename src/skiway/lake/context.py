"""What all catalogs of a server share: the caller, opened tables, pinned snapshots, and the state of each account.

`UsageLog` collects what statements read and write, and stores it every few seconds.

A table is written from others if they were read in the transaction, or in the call, of the write. DuckDB has a transaction
for each statement outside of BEGIN … COMMIT, so these are the tables of INSERT … SELECT and CREATE TABLE … AS.

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
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

import pyarrow as pa
from cachetools import FIFOCache, LRUCache, TTLCache

from skiway.airport import Request, Statement, TransactionStatus, current_request
from skiway.airport.request import call_of
from skiway.config import Settings
from skiway.errors import NotFound, PreconditionFailed, SkiwayError
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.cache import Cache
from skiway.lake.callers import BranchCallers, Callers, Lookups
from skiway.lake.history import EVERY_S, Collector
from skiway.lake.reading.columns import Columns, StatisticsCache
from skiway.lake.reading.opened_tables import Handles
from skiway.lake.reading.scans import MAX_PARTS, PART_BYTES, PlanLog
from skiway.lake.transactions import LakeTransactions, TransactionLeases
from skiway.metastore import Realm
from skiway.metastore.resources.hierarchy import state_digest
from skiway.metastore.transactions import api, staged_writes
from skiway.metastore.transactions.staged_writes import NewWrite, TransactionState
from skiway.metastore.usage import Usage, add_usage
from skiway.model import v1
from skiway.security import Principal, utc_now
from skiway.security.signed_tokens import QueryTokens
from skiway.spark_queries.engine import SparkEngine
from skiway.sql import QueryEngine


@dataclass(frozen=True, slots=True)
class SparkSql:
    """The engine, the tokens with which its processes read tables, and where they reach this server."""

    engine: SparkEngine
    tokens: QueryTokens = field(repr=False)
    location: Callable[[], str]
    lifetime_s: float = 600.0
    root_certificates: str = ""

    def token_of(self, principal: Principal) -> str:
        """A token with which a query reads what this caller may read, for as long as it may take."""
        return self.tokens.issue(principal, self.lifetime_s)


log = logging.getLogger("skiway.lake")

_TRANSACTIONS: Final = 1000
_MAX_SOURCES: Final = 100


def unit_of_work(request: Request) -> str:
    """What identifies the reads and writes that belong together: the transaction or, without one, the call."""
    return request.transaction_id or call_of(request).correlation_id


class UsageLog(Collector):
    """Collects the use of tables by the statements of this server."""

    def __init__(self, *, every_s: float = EVERY_S, clock: Callable[[], datetime] = utc_now) -> None:
        super().__init__("usage", every_s)
        self._clock = clock
        self._pending: dict[tuple[str, str, date], tuple[Realm, Usage]] = {}
        self._read_in: LRUCache[str, set[str]] = LRUCache(_TRANSACTIONS)  # tables by unit of work

    def read(
        self, realm: Realm, table_id: str, *, caller: str, unit: str, columns: Sequence[str], size_bytes: int
    ) -> None:
        """Record a scan."""
        with self._lock:
            usage = self._usage(realm, table_id)
            usage.reads += 1
            usage.bytes_read += size_bytes
            usage.columns.update(columns)
            usage.callers[caller] += 1
            if unit:
                tables: set[str] = self._read_in.setdefault(unit, set())
                if len(tables) < _MAX_SOURCES:
                    tables.add(table_id)

    def written(self, realm: Realm, table_id: str, *, caller: str, unit: str) -> None:
        """Record a commit."""
        with self._lock:
            usage = self._usage(realm, table_id)
            usage.writes += 1
            usage.callers[caller] += 1
            usage.sources.update(self._read_in.get(unit, set()) - {table_id})

    def flush(self) -> None:
        """Store what was collected. What cannot be stored is lost: it must not fill the memory."""
        with self._lock:
            pending, self._pending = self._pending, {}
        for (_, table_id, day), (realm, usage) in pending.items():
            try:
                add_usage(realm, table_id, day, usage)
            except SkiwayError:
                log.warning("the use of table %s could not be stored", table_id, exc_info=True)

    def _usage(self, realm: Realm, table_id: str) -> Usage:
        self.begin()
        key = (realm.account_id, table_id, self._clock().date())
        return self._pending.setdefault(key, (realm, Usage()))[1]


class IgnoredUsage(UsageLog):
    """Collects nothing: what happens on a branch of the lake says nothing about tables of main."""

    def read(self, *of: Any, **how: Any) -> None:
        """Ignore a scan."""

    def written(self, *of: Any, **how: Any) -> None:
        """Ignore a commit."""


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


MAX_COLUMNS: Final = 500_000
"""How many columns of tables are kept as clients know them."""

MAX_LISTED_AT_ONCE: Final = 1000
"""If an account has more tables and views, ATTACH lists only its schemas, and each schema when it is first used.

To list a table for the first time takes 0.2 to 0.5 ms.
"""


class Versions:
    """A number for the state of each account's catalogs, so that listings can be cached while nothing changes.

    The number is a digest of the versions of all catalogs, namespaces, tables and views, which reads no blobs. It is
    cached for a moment, because clients request it with every statement; a change by a statement of this server is
    visible at once, and one made elsewhere (over REST, by another server) to the next ATTACH. Statistics change without
    changing a table, so the number also changes every minute.
    """

    def __init__(
        self, *, cached_s: float = 1.0, renewed_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._renewed_s = renewed_s
        self._clock = clock
        self._lock = Lock()
        self._numbers: TTLCache[str, int] = TTLCache(10_000, cached_s, timer=clock)
        self._digests = Cache[tuple[str, Hashable], bytes](10_000)

    def of(self, realm: Realm, *, fresh: bool = False) -> int:
        """The number, which may be a moment old unless it must be `fresh`."""
        with self._lock:
            cached: int | None = None if fresh else self._numbers.get(realm.account_id)
        if cached is not None:
            return cached
        number = self._read(realm)
        with self._lock:
            self._numbers[realm.account_id] = number
        return number

    def changed(self, realm: Realm) -> None:
        """Discard the number of an account after this server has changed something."""
        with self._lock:
            self._numbers.pop(realm.account_id, None)

    def _read(self, realm: Realm) -> int:
        minute = str(self._clock() // self._renewed_s).encode()
        return int.from_bytes(blake2b(minute + self._digest(realm), digest_size=8).digest()) >> 1

    def _digest(self, realm: Realm) -> bytes:
        """The digest of the account, which takes 5 ms per thousand tables, unless the store can tell that nothing has changed."""
        state = realm.stored_state()  # before the digest is read
        if state is None:
            return state_digest(realm)
        return self._digests.get((realm.account_id, state), lambda: state_digest(realm))


_STATUS = {
    v1.TX_OPEN: TransactionStatus.ACTIVE,
    v1.TX_COMMITTED: TransactionStatus.COMMITTED,
    v1.TX_ABORTED: TransactionStatus.ABORTED,
    v1.TX_EXPIRED: TransactionStatus.ABORTED,
}


class StagedStatements:
    """What callers have written in transactions which they commit themselves."""

    def __init__(self, callers: Callers, warehouse: Warehouse, versions: Versions, usage: UsageLog) -> None:
        self._callers, self._warehouse, self._versions, self._usage = callers, warehouse, versions, usage

    def add(self, transaction_id: str, write: NewWrite, *, until: datetime) -> None:
        """Add a write to a transaction, which expires at a time unless it is committed or rolled back before.

        The statement has checked whether the caller may make the change, under its policies, too.
        """
        realm = self._callers.realm().without_policies()
        staged_writes.opened(realm, transaction_id, until=until)
        staged_writes.stage(realm, transaction_id, write)

    def state(self, transaction_id: str, table_id: str, *, read: int | None) -> TransactionState:
        """A table as a transaction sees it, which reads the snapshot `read`, or none."""
        try:
            found = staged_writes.find(self._callers.realm(), transaction_id).value
        except NotFound:
            found = v1.Transaction(transaction_id=transaction_id)
        return TransactionState.of(found, table_id, read=read)

    def status(self, transaction_id: str) -> TransactionStatus | None:
        """The status of a transaction; None if it has written nothing."""
        try:
            transaction = staged_writes.find(self._callers.realm(), transaction_id)
        except NotFound:
            return None
        return _STATUS[transaction.value.state]

    def commit(self, transaction_id: str, *, until: datetime) -> None:
        """Make all writes of a transaction visible at once. The end of one without writes is stored, too."""
        realm = self._callers.realm()
        found = staged_writes.opened(realm.without_policies(), transaction_id, until=until)
        if found.value.state == v1.TX_COMMITTED:  # repeating a commit changes nothing
            return
        done = api.commit_transaction(realm, self._warehouse, transaction_id)
        self._versions.changed(realm)
        for table_id in dict.fromkeys(each.table_id.id for each in done.committed):
            self._usage.written(realm, table_id, caller=self._callers.principal.subject, unit=transaction_id)

    def abort(self, transaction_id: str, *, until: datetime) -> None:
        """Discard all writes of a transaction. The end of one without writes is stored, too."""
        realm = self._callers.realm()
        staged_writes.opened(realm.without_policies(), transaction_id, until=until)
        api.abort_transaction(realm, self._warehouse, transaction_id)


@dataclass(frozen=True)
class Context:
    """The state that all catalogs of a server share."""

    callers: Callers
    handles: Handles
    transactions: LakeTransactions
    queries: QueryEngine
    query_shapes: Cache[tuple[str, ...], pa.Schema] = field(default_factory=lambda: Cache(1000, lasting_s=60.0))
    """The columns of queries that were planned lately: DuckDB plans a query, asks for its endpoints, and then reads it."""
    versions: Versions = field(default_factory=Versions)
    plans: PlanLog = field(default_factory=PlanLog)
    failed_creations: FailedCreations = field(default_factory=FailedCreations)
    statistics: StatisticsCache = field(default_factory=StatisticsCache)
    view_columns: Cache[tuple[str, ...], pa.Schema] = field(
        default_factory=lambda: Cache(MAX_COLUMNS, weigh=lambda columns: 1 + len(columns))
    )
    bound_columns: Cache[tuple[str, bytes], Columns] = field(
        default_factory=lambda: Cache(MAX_COLUMNS, weigh=lambda known: 1 + len(known.stored) + len(known.wanted))
    )
    usage: UsageLog = field(default_factory=UsageLog)
    part_bytes: int = PART_BYTES
    max_parts: int = MAX_PARTS
    max_listed_at_once: int = MAX_LISTED_AT_ONCE
    key: bytes = b""
    """The key of the server, from which those of masks are derived."""
    settings: Settings = field(default_factory=Settings)
    """The settings of the process."""
    spark: SparkSql | None = None
    """Runs queries on Spark, if the operator allows it."""
    main: Context | None = None
    """Of a branch of the lake: the context of all other catalogs."""

    def on_branch(self, callers: BranchCallers) -> Context:
        """The context of a branch of the lake, which shares nothing that is kept about tables."""
        versions, usage = Versions(), IgnoredUsage()
        handles = self.handles.apart()
        staged = StagedStatements(callers, handles.warehouse, versions, usage)
        leases = TransactionLeases(callers.own_realm)
        return Context(
            callers,
            handles,
            self.transactions.apart(staged=staged, leases=leases),
            self.queries,
            versions=versions,
            usage=usage,
            part_bytes=self.part_bytes,
            max_parts=self.max_parts,
            max_listed_at_once=self.max_listed_at_once,
            key=self.key,
            settings=self.settings,
            spark=None,
            main=self,
        )

    @cached_property
    def lookups(self) -> Lookups:
        """What callers have looked up."""
        return Lookups(self.callers)

    def columns(self, table_id: str, known_as: str, find: Callable[[], Columns]) -> Columns:
        """The columns of a table that a client knows, from the cache or from `find`; `known_as` says which they are."""
        return self.bound_columns.get((table_id, blake2b(known_as.encode(), digest_size=16).digest()), find)
