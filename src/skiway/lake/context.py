"""What all catalogs of a server share: the caller, opened tables, pinned snapshots, and the state of each account."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock

from cachetools import TTLCache

from skiway.airport import current_request
from skiway.formats.cache import Kept
from skiway.lake.columns import Columns
from skiway.lake.opened_tables import Handles
from skiway.lake.scans import MAX_PARTS, PART_BYTES, PlanLog
from skiway.lake.transactions import LakeTransactions
from skiway.metastore import Realm
from skiway.metastore.resources.hierarchy import state_digest
from skiway.security import NOBODY, Authenticator, Authorizer, Principal

__all__ = ["Callers", "Context", "Versions"]

_principal: ContextVar[Principal] = ContextVar("skiway_lake_principal", default=NOBODY)


@dataclass(frozen=True)
class Callers:
    """Identifies the caller from the request headers; the Airport server uses it as its authenticator."""

    authenticator: Authenticator
    authorizer: Authorizer
    realm_of: Callable[[Principal], Realm]

    def authenticate(self, token: str | None) -> str:  # noqa: ARG002 - all headers count, not the token alone
        """Return the subject of the caller, or raise `Unauthorized`."""
        sent = {name: value for name, value in current_request().metadata if isinstance(value, str)}
        principal = self.authenticator.authenticate(sent)
        _principal.set(principal)
        return principal.subject

    @property
    def principal(self) -> Principal:
        """The current caller."""
        return _principal.get()

    def realm(self) -> Realm:
        """The metastore of the caller's account."""
        return self.realm_of(self.principal)

    def require(self, *any_of: str) -> None:
        """Raise unless the caller has one of these permissions."""
        self.authorizer.require(self.principal, *any_of)

    def may(self, permission: str) -> bool:
        """Whether the caller has the permission. Used for what is hidden from others rather than rejected."""
        return permission in self.principal.permissions


class Versions:
    """A number for the state of each account's catalogs, so that listings can be cached while nothing changes.

    The number is a digest of the versions of all catalogs, namespaces, tables and views, which reads no blobs. It is
    cached for a moment, because clients request it with every statement; a change made by this server is visible at
    once. Statistics change without changing a table, so the number also changes every minute.
    """

    def __init__(
        self, *, cached_s: float = 1.0, renewed_s: float = 60.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._renewed_s = renewed_s
        self._clock = clock
        self._lock = Lock()
        self._numbers: TTLCache[str, int] = TTLCache(10_000, cached_s, timer=clock)

    def of(self, realm: Realm) -> int:
        """The number, which may be a moment old."""
        with self._lock:
            cached: int | None = self._numbers.get(realm.account_id)
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
        return int.from_bytes(blake2b(minute + state_digest(realm), digest_size=8).digest()) >> 1


@dataclass(frozen=True)
class Context:
    """The state that all catalogs of a server share."""

    callers: Callers
    handles: Handles
    transactions: LakeTransactions
    versions: Versions = field(default_factory=Versions)
    plans: PlanLog = field(default_factory=PlanLog)
    bound_columns: Kept[tuple[str, str], Columns] = field(default_factory=lambda: Kept(10_000))
    part_bytes: int = PART_BYTES
    max_parts: int = MAX_PARTS

    def columns(self, table_id: str, columns_id: str, find: Callable[[], Columns]) -> Columns:
        """The columns of a table that a client knows, from the cache or from `find`."""
        return self.bound_columns.get((table_id, columns_id), find)
