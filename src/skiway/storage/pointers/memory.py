"""Pointers in the memory of this process, for tests and demos."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from threading import Lock
from typing import ClassVar

from skiway.errors import InvalidArgument
from skiway.foundation.clock import Clock, utc_now
from skiway.storage.calls import FORMAT_VERSION, OnCall, StoreFormat, require_format
from skiway.storage.pointers.store import Delete, Operation, Pointer, PointerStore, Put, require


class MemoryPointerStore(PointerStore):
    """A dict and a sorted list of its keys, protected by a lock. Python sorts strings like their UTF-8 bytes."""

    max_large_batch: ClassVar[int] = 100_000

    def __init__(self, *, clock: Clock = utc_now, on_call: OnCall | None = None) -> None:
        super().__init__(clock=clock, on_call=on_call)
        self._lock = Lock()
        self._pointers: dict[str, Pointer] = {}
        self._keys: list[str] = []
        self._changes = 0
        self._recorded = StoreFormat(FORMAT_VERSION)
        # A heap. Entries of pointers that have changed since are skipped.
        self._expiries: list[tuple[datetime, str]] = []

    def state(self, *, since: float | None = None) -> Hashable:  # noqa: ARG002 - it takes no request
        """The number of changes so far."""
        with self._lock:
            return self._changes

    def _get(self, key: str) -> Pointer | None:
        with self._lock:
            return self._pointers.get(key)

    def _apply(self, batch: Sequence[Operation]) -> None:
        with self._lock:
            now = self._clock()
            for operation in batch:
                require(operation, self._pointers.get(operation.key), now)
            for operation in batch:
                if isinstance(operation, Put):
                    self._set(Pointer(operation.key, operation.blob_uri, operation.expect + 1, operation.expires_at))
                elif isinstance(operation, Delete):
                    self._drop(operation.key)

    def _scan(self, prefix: str, *, after: str, limit: int, now: datetime) -> Sequence[Pointer]:
        with self._lock:
            return tuple(islice(self._live(prefix, after, now), limit))

    def _count(self, prefix: str, *, now: datetime) -> int:
        with self._lock:
            start = bisect_left(self._keys, prefix)
            end = bisect_right(self._keys, prefix, key=lambda key: key[: len(prefix)])
            # Subtract the expired pointers that have not been purged yet; they are few.
            due = {key for expires_at, key in self._expiries if expires_at <= now and key.startswith(prefix)}
            return end - start - sum(key in self._pointers and self._pointers[key].expired(now) for key in due)

    def _purge(self, limit: int, *, now: datetime) -> int:
        purged = 0
        with self._lock:
            while purged < limit and self._expiries and self._expiries[0][0] <= now:
                expires_at, key = heapq.heappop(self._expiries)
                found = self._pointers.get(key)
                if found is not None and found.expires_at == expires_at:
                    self._drop(key)
                    purged += 1
        return purged

    def _snapshot(self) -> Iterator[Pointer]:
        with self._lock:
            return iter(list(self._pointers.values()))

    def _load(self, puts: Iterable[Put]) -> None:
        loaded = [Pointer(put.key, put.blob_uri, put.expect + 1, put.expires_at) for put in puts]
        with self._lock:
            for pointer in loaded:
                self._set(pointer)

    def _format(self) -> StoreFormat:
        with self._lock:
            return self._recorded

    def _change_format(self, expected: StoreFormat, new: StoreFormat) -> None:
        with self._lock:
            require_format(expected, self._recorded)
            self._recorded = new

    def _live(self, prefix: str, after: str, now: datetime) -> Iterator[Pointer]:
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after))
        for position in range(start, len(self._keys)):
            pointer = self._pointers[self._keys[position]]
            if not pointer.key.startswith(prefix):
                return
            if not pointer.expired(now):
                yield pointer

    def _set(self, pointer: Pointer) -> None:
        self._changes += 1
        if pointer.key not in self._pointers:
            insort(self._keys, pointer.key)
        self._pointers[pointer.key] = pointer
        if pointer.expires_at is not None:
            heapq.heappush(self._expiries, (pointer.expires_at, pointer.key))

    def _drop(self, key: str) -> None:
        self._changes += 1
        del self._pointers[key]
        del self._keys[bisect_left(self._keys, key)]


def open_pointers(
    url: str, *, clock: Clock = utc_now, on_call: OnCall | None = None, options: Mapping[str, str]
) -> MemoryPointerStore:
    """Open an empty store for `memory://`."""
    if url.removeprefix("memory:").strip("/") or options:
        raise InvalidArgument(f"{url} has a path or options, but an in-memory store has neither; use memory://")
    return MemoryPointerStore(clock=clock, on_call=on_call)
