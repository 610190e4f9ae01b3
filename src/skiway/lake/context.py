"""What all catalogs of a lake server share: callers, open tables, transactions, caches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from threading import Lock
from typing import Final

from skiway.airport.request import ServedCall
from skiway.airport.server.status import code_of
from skiway.formats.cache import Kept
from skiway.lake.columns import Columns
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES, PlanLog
from skiway.lake.transactions import LakeTransactions
from skiway.metastore import Realm
from skiway.metastore.records import keys
from skiway.requests import Access, Call, Observers, Operation, Pipeline, read_context
from skiway.security import NOBODY, Principal

__all__ = ["COMPONENT", "Callers", "Context", "Versions", "operation_of"]

COMPONENT: Final = "Airport"

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

_call: ContextVar[Call | None] = ContextVar("skiway_lake_call", default=None)


def operation_of(name: str) -> Operation:
    """The operation that the request pipeline knows an operation of Airport by.

    It has no permissions of its own: the catalog, its schemas and its tables ask for them with `Callers.require`.
    """
    return Operation(COMPONENT, name, _CATEGORIES.get(name, "table"))


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

    @contextmanager
    def observe(self, served: ServedCall) -> Iterator[None]:
        """Run a call of the Airport server inside the pipeline."""
        headers = {name: value for name, value in served.request.metadata if isinstance(value, str)}
        context, _ = read_context(headers, COMPONENT, ids=lambda: served.correlation_id)
        call = Call(operation_of(served.operation), headers, replace(context, correlation_id=served.correlation_id))
        with self._pipeline.observe(call):
            _call.set(call)
            try:
                yield
            finally:
                call.operation = operation_of(served.operation)
                call.context = replace(call.context, operation=call.operation.full_name)
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
    def principal(self) -> Principal:
        """The caller of the current call."""
        call = _call.get()
        return NOBODY if call is None or call.principal is None else call.principal

    def realm(self) -> Realm:
        """What the caller's account holds."""
        return self._pipeline.access.realm_of(self.principal)

    def require(self, *any_of: str) -> None:
        """Raise unless the caller has one of these permissions."""
        self._pipeline.access.authorizer.require(self.principal, *any_of)

    def may(self, permission: str) -> bool:
        """Whether the caller has the permission, for what is merely not shown to those without."""
        return permission in self.principal.permissions


def _details(served: ServedCall) -> dict[str, str | int]:
    """What an audit record tells about a call: the statement, its table, and how much was transferred."""
    where = {"catalog": served.request.catalog, "schema": served.schema, "table": served.name}
    amounts = {
        "rows_in": served.rows_in,
        "rows_out": served.rows_out,
        "bytes_in": served.bytes_in,
        "bytes_out": served.bytes_out,
    }
    return {"statement": served.operation, **{name: value for name, value in where.items() if value}, **amounts}


# --------------------
# A number for the state of an account's catalogs, so that listings can be kept as long as nothing changed.
#
# It is made of the versions of all pointers to catalogs, namespaces, tables and views: read in pages of a thousand, no blob
# is opened. It is kept for a moment, because clients ask for it with every statement; a change made by this server is seen
# at once. Statistics come and go without touching a table, so the number also changes every minute.


_KINDS: Final = (keys.catalog, keys.namespace, keys.table, keys.view)


class Versions:
    """The state of each account, by number."""

    def __init__(
        self, *, kept_s: float = 1.0, renewed_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept_s = kept_s
        self._renewed_s = renewed_s
        self._clock = clock
        self._lock = Lock()
        self._known: dict[str, tuple[float, int]] = {}

    def of(self, realm: Realm) -> int:
        """The number of now, or of a moment ago."""
        now = self._clock()
        with self._lock:
            read_at, number = self._known.get(realm.account_id, (-self._kept_s, 0))
        if now - read_at < self._kept_s:
            return number
        number = self._read(realm, now)
        with self._lock:
            self._known[realm.account_id] = (now, number)
        return number

    def changed(self, realm: Realm) -> None:
        """Something was changed by this server: the next one who asks gets another number."""
        with self._lock:
            self._known.pop(realm.account_id, None)

    def _read(self, realm: Realm, now: float) -> int:
        digest = blake2b(str(now // self._renewed_s).encode(), digest_size=8)
        for kind in _KINDS:
            for pointer in realm.stores.pointers.scan(kind(realm.account_id, "")):
                digest.update(f"{pointer.key}\0{pointer.version}\0{pointer.blob_uri}\n".encode())
        return int.from_bytes(digest.digest()) >> 1


# --------------------
# What all catalogs of a server share.


@dataclass(frozen=True)
class Context:
    """Who calls, what is open, what is pinned, what is known."""

    callers: Callers
    handles: Handles
    transactions: LakeTransactions
    versions: Versions = field(default_factory=Versions)
    plans: PlanLog = field(default_factory=PlanLog)
    bound_columns: Kept[tuple[str, str], Columns] = field(default_factory=lambda: Kept(10_000))
    part_bytes: int = PART_BYTES
    max_parts: int = MAX_PARTS

    def columns(self, table_id: str, columns_id: str, find: Callable[[], Columns]) -> Columns:
        """The columns of a table that a client knows, found where they are not at hand."""
        return self.bound_columns.get((table_id, columns_id), find)
