"""A number for the state of an account's catalogs, so that listings can be kept as long as nothing changed.

It is made of the versions of all pointers to catalogs, namespaces, tables and views: read in pages of a thousand, no blob
is opened. It is kept for a moment, because clients ask for it with every statement; a change made by this server is seen
at once. Statistics come and go without touching a table, so the number also changes every minute.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from hashlib import blake2b
from threading import Lock
from typing import Final

from skiway.metastore import Realm, keys

__all__ = ["Versions"]

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
