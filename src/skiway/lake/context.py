"""What all catalogs of a server share: the caller, opened tables, pinned snapshots, and the state of each account."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from copy import copy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from threading import Lock
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
from cachetools import LRUCache, TTLCache
from google.protobuf.message import Message

from skiway.airport.request import ServedCall
from skiway.airport.server.status import code_of
from skiway.cache import Cache
from skiway.config import Settings
from skiway.errors import PermissionDenied
from skiway.lake.columns import Columns
from skiway.lake.creating import FailedCreations
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES, PlanLog
from skiway.lake.spark_sql import SparkSql
from skiway.lake.statistics import StatisticsCache
from skiway.lake.transactions import LakeTransactions
from skiway.lake.usage import UsageLog
from skiway.metastore import Realm
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.policies import Restriction
from skiway.metastore.resources.hierarchy import state_digest
from skiway.model import v1
from skiway.requests import Access, Call, Kind, Observers, Operation, Pipeline, read_context
from skiway.security import NOBODY, Principal
from skiway.sql import QueryEngine

__all__ = [
    "COMPONENT",
    "MAX_LISTED_AT_ONCE",
    "Callers",
    "Context",
    "QueryShapes",
    "RunningCall",
    "Versions",
    "operation_of",
]

T = TypeVar("T")

COMPONENT: Final = "Airport"

MAX_COLUMNS: Final = 500_000
"""How many columns of tables are kept as clients know them."""

MAX_LISTED_AT_ONCE: Final = 1000
"""If an account has more tables and views, ATTACH lists only its schemas, and each schema when it is first used.

To list a table for the first time takes 0.2 to 0.5 ms.
"""

_CATEGORIES: Final = {
    "create_schema": "namespace",
    "drop_schema": "namespace",
    "list_schemas": "catalog",
    "list_catalogs": "catalog",
    "list_flights": "catalog",
    "catalog_version": "catalog",
    "create_transaction": "query",
    "get_transaction_status": "query",
    "commit_transaction": "query",
    "rollback_transaction": "query",
    "column_statistics": "statistics",
    "handshake": "system",
    "list_actions": "system",
}
"""Under which category an operation of Airport is audited; the others are about a table."""

_KINDS: Final[dict[str, Kind]] = {
    "scan": "scans",
    "exchange": "exchanges",
    "put": "exchanges",
    "handshake": "handshakes",
}
"""What a call counts as in the quotas, by what is known of it when it begins."""

_call: ContextVar[Call | None] = ContextVar("skiway_lake_call", default=None)
_acting: ContextVar[Call | None] = ContextVar("skiway_lake_acting", default=None)
"""The call with the rights of the definer of a view, while the view is read."""


@lru_cache(maxsize=1000)
def operation_of(name: str) -> Operation:
    """The operation that the request pipeline knows an operation of Airport by.

    It has no permissions of its own: the catalog, its schemas and its tables ask for them with `Callers.require`.
    Operations of Flight SQL begin with the name of that protocol.
    """
    protocol, _, own = name.rpartition("/")
    if protocol:
        category = "catalog" if own.startswith("Get") else "query"
        return Operation(protocol, own, category)
    return Operation(COMPONENT, name, _CATEGORIES.get(name, "table"), counts_as=_KINDS.get(name, "calls"))


class RunningCall(NamedTuple):
    """A call that is being served, and when it began."""

    served: ServedCall
    call: Call
    began: datetime


class Callers:
    """Runs the calls of the Airport server through the request pipeline, and tells the lake who calls.

    It is the authenticator and the observer of the Airport server.
    """

    def __init__(self, access: Access, observers: Observers | None = None) -> None:
        self._pipeline = Pipeline(
            access,
            observers or Observers(),
            log=logging.getLogger("skiway.airport"),
            status_of=lambda error: code_of(error).name,
        )
        self._lock = Lock()
        self._running: dict[int, RunningCall] = {}

    def running(self) -> list[RunningCall]:
        """The calls that this server is serving for the caller's account, from old to new."""
        with self._lock:
            calls = list(self._running.values())
        account_id = self.authenticated.account_id
        return [each for each in calls if each.call.principal and each.call.principal.account_id == account_id]

    @contextmanager
    def observe(self, served: ServedCall) -> Iterator[None]:
        """Run a call of the Airport server inside the pipeline."""
        headers = {name: value for name, value in served.request.metadata if isinstance(value, str)}
        context, _ = read_context(headers, COMPONENT, ids=lambda: served.correlation_id)
        call = Call(operation_of(served.operation), headers, context)
        with self._pipeline.observe(call):
            _call.set(call)
            running = RunningCall(served, call, datetime.now(UTC))
            with self._lock:
                self._running[id(running)] = running
            try:
                yield
            finally:
                with self._lock:
                    del self._running[id(running)]
                call.operation = operation_of(served.operation)
                call.details = _details(served)
                self._pipeline.count_transfer(
                    call, rows=(served.rows_in, served.rows_out), sizes=(served.bytes_in, served.bytes_out)
                )

    def authenticate(self, token: str | None) -> str:  # noqa: ARG002 - every header counts, not only the token
        """The subject of the caller; raises `Unauthorized`."""
        call = _call.get()
        assert call is not None, "the Airport server enters `observe` before it authenticates"
        return self._pipeline.authenticate(call).subject

    @property
    def authenticated(self) -> Principal:
        """The caller of the current call."""
        return _principal(_call.get())

    @property
    def principal(self) -> Principal:
        """The principal that permissions are checked for: the caller or, while a view with definer rights is read, its definer."""
        return _principal(_acting.get() or _call.get())

    def acting_as(self, principal: Principal, rows: Callable[[], Iterator[T]]) -> Iterator[T]:
        """What `rows` yields with the rights of another one in the same account."""
        call = _call.get()
        assert call is not None, "the Airport server enters `observe` before a view is read"
        assert principal.account_id == self.authenticated.account_id, "rights end with the account"
        acting = copy(call)
        acting.principal, acting.decision, acting.realm = principal, self._pipeline.access.decide(principal), None
        context = copy_context()
        context.run(_acting.set, acting)
        found = context.run(rows)
        try:
            while True:
                try:
                    row = context.run(next, found)
                except StopIteration:
                    return
                yield row
        finally:
            if isinstance(found, Generator):
                context.run(found.close)

    def own_realm(self) -> Realm:
        """The realm of the caller, also while a view with definer rights is read."""
        return self._realm(_call.get())

    def realm(self) -> Realm:
        """What the caller may see and change of its account."""
        return self._realm(_acting.get() or _call.get())

    def _realm(self, call: Call | None) -> Realm:
        if call is None:
            return self._pipeline.access.realm_of(NOBODY)
        call.is_narrowed = True  # operations have no permissions of their own, so the decision holds for all of them
        return self._pipeline.realm(call)

    def require(self, permission: str, on: Message | None = None) -> None:
        """Raise unless the caller has the permission: on an object, or on some object in the account."""
        decision = self._decision()
        if decision is None or not decision.somewhere(permission):
            self._pipeline.access.authorizer.require(self.principal, permission)
        elif on is not None:
            decision.require(permission, on)

    def refuse_query_tokens(self, what: str) -> None:
        """Raise if the caller is a query, with the token that it got to read tables."""
        if self.authenticated.read_only:
            raise PermissionDenied(f"a query on Spark cannot {what}", key="token.read_only")

    def may(self, permission: str) -> bool:
        """Whether the caller has the permission in the whole account, or on some object in it.

        Used for what is hidden from others rather than rejected.
        """
        decision = self._decision()
        return decision is not None and decision.somewhere(permission)

    def restriction(self, on: v1.Table | v1.View) -> Restriction | None:
        """What policies leave of a table or view for the caller; None if none restricts it."""
        decision = self._decision()
        return None if decision is None or decision.policies is None else decision.policies.of(on)

    @property
    def is_under_policies(self) -> bool:
        """Whether a policy of the account names the caller, on whichever tables."""
        decision = self._decision()
        return decision is not None and decision.policies is not None and decision.policies.restrict_anything

    @property
    def claims(self) -> Mapping[str, object]:
        """What `caller('…')` returns in the expressions of policies."""
        decision = self._decision()
        return {} if decision is None or decision.policies is None else decision.policies.subject.values

    @property
    def visibility(self) -> Hashable:
        """Equal for callers who see the same objects."""
        decision = self._decision()
        return None if decision is None else decision.visibility

    @property
    def rights(self) -> Hashable:
        """Equal for calls that, in the same state of the store, may see the same: grants and policies are stored."""
        decision, caller = self._decision(), self.principal
        by_roles = None if decision is None else decision.by_roles
        of_job = (caller.table_id, caller.reads)
        return (caller.account_id, caller.subject, caller.roles, caller.groups, repr(caller.claims), by_roles, of_job)

    def _decision(self) -> AccessDecision | None:
        call = _acting.get() or _call.get()
        return None if call is None else call.decision


def _principal(call: Call | None) -> Principal:
    return NOBODY if call is None or call.principal is None else call.principal


def _details(served: ServedCall) -> dict[str, str | int]:
    """The details of a call in its audit record: the statement, its table, and how much was transferred."""
    where = {"catalog": served.request.catalog, "schema": served.schema, "table": served.name}
    amounts = {
        "rows_in": served.rows_in,
        "rows_out": served.rows_out,
        "bytes_in": served.bytes_in,
        "bytes_out": served.bytes_out,
    }
    return {"statement": served.operation, **{name: value for name, value in where.items() if value}, **amounts}


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

    def columns(self, table_id: str, known_as: str, find: Callable[[], Columns]) -> Columns:
        """The columns of a table that a client knows, from the cache or from `find`; `known_as` says which they are."""
        return self.bound_columns.get((table_id, blake2b(known_as.encode(), digest_size=16).digest()), find)
