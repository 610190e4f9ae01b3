"""What all catalogs of a server share: the caller, opened tables, pinned snapshots, and the state of each account."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from threading import Lock
from typing import Final

import pyarrow as pa
from cachetools import LRUCache, TTLCache

from skiway.cache import Cache
from skiway.config import Settings
from skiway.lake.callers import Callers
from skiway.lake.columns import Columns
from skiway.lake.creating import FailedCreations
from skiway.lake.lookups import Lookups
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES, PlanLog
from skiway.lake.spark_sql import SparkSql
from skiway.lake.statistics import StatisticsCache
from skiway.lake.transactions import LakeTransactions
from skiway.lake.usage import UsageLog
from skiway.metastore import Realm
from skiway.metastore.resources.hierarchy import state_digest
from skiway.sql import QueryEngine

__all__ = ["MAX_LISTED_AT_ONCE", "Context", "QueryShapes", "Versions"]

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
        self._digests: LRUCache[str, tuple[Hashable, bytes]] = LRUCache(10_000)

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
        with self._lock:
            known = self._digests.get(realm.account_id)
        if known is not None and state is not None and known[0] == state:
            return known[1]
        digest = state_digest(realm)
        with self._lock:
            self._digests[realm.account_id] = state, digest
        return digest


class QueryShapes:
    """The columns of queries that were planned lately: DuckDB plans a query, asks for its endpoints, and then reads it."""

    def __init__(self, size: int = 1000, known_s: float = 60.0) -> None:
        self._lock = Lock()
        self._known: TTLCache[tuple[str, ...], pa.Schema] = TTLCache(size, known_s)

    def get(self, key: tuple[str, ...] | None, find: Callable[[], pa.Schema]) -> pa.Schema:
        """The columns that are known under a key, or else those that `find` returns."""
        with self._lock:
            known = None if key is None else self._known.get(key)
        if known is not None:
            return known
        found = find()
        if key is not None:
            with self._lock:
                self._known[key] = found
        return found

    def forget(self, key: tuple[str, ...] | None) -> None:
        """Forget columns that have changed."""
        if key is not None:
            with self._lock:
                self._known.pop(key, None)


@dataclass(frozen=True)
class Context:
    """The state that all catalogs of a server share."""

    callers: Callers
    handles: Handles
    transactions: LakeTransactions
    queries: QueryEngine
    query_shapes: QueryShapes = field(default_factory=QueryShapes)
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

    @cached_property
    def lookups(self) -> Lookups:
        """What callers have looked up."""
        return Lookups(self.callers)

    def columns(self, table_id: str, known_as: str, find: Callable[[], Columns]) -> Columns:
        """The columns of a table that a client knows, from the cache or from `find`; `known_as` says which they are."""
        return self.bound_columns.get((table_id, blake2b(known_as.encode(), digest_size=16).digest()), find)
