"""The cache that the whole project uses: least recently used entries go first, with a limit on weight and on count.

    blobs = Cache[str, bytes](256 << 20, weigh=len)
    content = blobs.get(uri, lambda: store.read(uri))

Values stay valid for as long as their key, such as the contents of an immutable file, or for a time. A caller that caches other
values must `discard` them itself. Entries that were not used for some minutes are removed, so a cache does not keep the metadata of
every old snapshot until it is full.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Any, Final, Generic, TypeVar

from cachetools import LRUCache

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MISSING: Final[Any] = object()
IDLE_S: Final = 300.0
"""Entries are removed after they were not used for this time, or up to twice as long."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """The state of a cache and its counters since it was created; what the metrics `skiway.core.cache.*` report."""

    entries: int
    weight: int
    max_weight: int
    max_entries: int | None
    hits: int
    misses: int
    errors: int


class Cache(Generic[K, V]):
    """Keeps the most recently used values. Safe to use from several threads.

    `max_weight` limits the sum of `weigh(value)` over all entries; by default every value weighs 1, so that it limits
    their number. `max_entries` limits the number in addition. A value heavier than `max_entry_weight`, by default
    `max_weight`, is returned but not stored. `on_load` is called with the seconds that each load took. Entries that were
    not used for `idle_s` are removed when another value is stored, and each is loaded again after `lasting_s`.
    """

    def __init__(
        self,
        max_weight: int,
        *,
        weigh: Callable[[V], int] = lambda _: 1,
        max_entries: int | None = None,
        max_entry_weight: int | None = None,
        on_load: Callable[[float], None] | None = None,
        idle_s: float = IDLE_S,
        lasting_s: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._weigh = weigh
        self._max_entries = max_entries
        self._max_entry_weight = max_weight if max_entry_weight is None else min(max_entry_weight, max_weight)
        self._on_load = on_load
        self._lock = Lock()
        self._entries: LRUCache[K, V] = LRUCache(max_weight, getsizeof=weigh)
        self._idle_s, self._lasting_s, self._clock = idle_s, lasting_s, clock
        self._stored_at: dict[K, float] = {}
        self._used: set[K] = set()
        self._checked_at = clock()
        self._hits = self._misses = self._errors = 0

    def get(self, key: K, load: Callable[[], V]) -> V:
        """Return the value of `key`, calling `load` if it is not cached.

        `load` runs outside the lock, so several threads may load the same key at once. The first to finish fills the
        cache, and all of them return its value. An exception of `load` is raised and not cached.
        """
        with self._lock:
            self._remove_old(key)
            entry: V = self._entries.get(key, _MISSING)
            if entry is not _MISSING:
                self._hits += 1
                self._used.add(key)
                return entry
            self._misses += 1
        value = self._load(load)
        return self.put(key, value)

    def put(self, key: K, value: V) -> V:
        """Store `value` unless `key` is cached already; return the cached value."""
        with self._lock:
            entry: V = self._entries.get(key, _MISSING)
            if entry is not _MISSING:
                return entry
            if self._weigh(value) <= self._max_entry_weight:
                self._remove_idle()
                self._entries[key] = value
                self._used.add(key)
                if self._lasting_s is not None:
                    self._stored_at[key] = self._clock()
                if self._max_entries is not None and len(self._entries) > self._max_entries:
                    self._entries.popitem()
        return value

    def _remove_old(self, key: K) -> None:
        if self._lasting_s is not None and self._clock() - self._stored_at.get(key, 0.0) >= self._lasting_s:
            self._entries.pop(key, None)

    def _remove_idle(self) -> None:
        now = self._clock()
        if now - self._checked_at >= self._idle_s:
            for key in [key for key in self._entries if key not in self._used]:
                del self._entries[key]
            self._used, self._checked_at = set(), now
            self._stored_at = {key: at for key, at in self._stored_at.items() if key in self._entries}
        elif len(self._used) > 2 * len(self._entries) + 1000:  # keys that were evicted since
            self._used.intersection_update(self._entries)

    def discard(self, key: K) -> None:
        """Remove the entry of `key`, if there is one."""
        with self._lock:
            self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)

    def stats(self) -> CacheStats:
        """Return the current size and the counters."""
        with self._lock:
            return CacheStats(
                entries=len(self._entries),
                weight=int(self._entries.currsize),
                max_weight=int(self._entries.maxsize),
                max_entries=self._max_entries,
                hits=self._hits,
                misses=self._misses,
                errors=self._errors,
            )

    def _load(self, load: Callable[[], V]) -> V:
        started = time.perf_counter()
        try:
            value = load()
        except BaseException:
            with self._lock:
                self._errors += 1
            raise
        if self._on_load is not None:
            self._on_load(time.perf_counter() - started)
        return value
