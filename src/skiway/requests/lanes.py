"""Which lane of the threads a call waits in: that of its caller's account.

The lane is needed before anybody is authenticated, so it is remembered which account each credential belongs to. All calls
with unknown credentials share one lane: inventing tokens gains nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Final

from cachetools import FIFOCache

__all__ = ["Lanes"]

UNKNOWN: Final = "unknown"
_REMEMBERED: Final = 10_000


class Lanes:
    """The account of each credential that was used lately; `credentials` are the headers that callers authenticate with."""

    def __init__(self, credentials: Iterable[str] = ("authorization",)) -> None:
        self._credentials = tuple(credentials)
        self._accounts: FIFOCache[bytes, str] = FIFOCache(_REMEMBERED)
        self._lock = threading.Lock()

    def of(self, headers: Mapping[str, str | bytes]) -> str:
        """The lane of a call with these headers."""
        digest = self._digest(headers)
        with self._lock:
            return self._accounts.get(digest, UNKNOWN)

    def learn(self, headers: Mapping[str, str | bytes], account_id: str) -> None:
        """Remember the account of the caller who was authenticated by these headers."""
        digest, lane = self._digest(headers), f"account {account_id}"
        with self._lock:
            if self._accounts.get(digest) != lane:
                self._accounts[digest] = lane

    def _digest(self, headers: Mapping[str, str | bytes]) -> bytes:
        given = repr([headers.get(name) for name in self._credentials])
        return blake2b(given.encode("utf-8", "replace"), digest_size=16).digest()
