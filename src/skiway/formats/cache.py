"""What was once read of immutable files, kept as long as there is room."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

__all__ = ["Kept"]

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """The values used last, up to a total size. Safe to use from several threads."""

    def __init__(self, size: int, *, size_of: Callable[[V], int] = lambda _: 1) -> None:
        self._size = size
        self._size_of = size_of
        self._used = 0
        self._values: dict[K, V] = {}  # the one used longest ago comes first
        self._lock = Lock()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, made if it is not there; two threads may make it at once, which costs time only."""
        with self._lock:
            if key in self._values:
                self._values[key] = value = self._values.pop(key)
                return value
        value = make()
        with self._lock:
            self._put(key, value)
        return value

    def _put(self, key: K, value: V) -> None:
        if key in self._values:
            self._used -= self._size_of(self._values.pop(key))
        self._values[key] = value
        self._used += self._size_of(value)
        while self._used > self._size:
            oldest = next(iter(self._values))
            self._used -= self._size_of(self._values.pop(oldest))
