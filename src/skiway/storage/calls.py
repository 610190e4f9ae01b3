"""Observe stores: one `StoreCall` per public call, for metrics, benchmarks and tests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from types import TracebackType
from typing import Literal, NamedTuple

__all__ = ["CallCounter", "OnCall", "StoreCall", "Transfer", "reported"]


class StoreCall(NamedTuple):  # made on every call, and cheaper so than as a frozen dataclass
    """One finished call. `error` is the name of the exception's class, or None when the call succeeded.

    `size_bytes` is the size of the blob that was read or written, 0 for other calls.
    """

    store: Literal["pointers", "blobs"]
    operation: str
    items: int
    seconds: float
    error: str | None
    size_bytes: int = 0


OnCall = Callable[[StoreCall], None]


class CallCounter:
    """An `OnCall` that counts calls by `store.operation`. Stores and threads may share it.

    >>> counter = CallCounter()
    >>> counter(StoreCall("pointers", "get", items=1, seconds=0.001, error=None))
    >>> counter.counts
    Counter({'pointers.get': 1})
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def __call__(self, call: StoreCall) -> None:
        """Count a call."""
        with self._lock:
            self._counts[f"{call.store}.{call.operation}"] += 1

    @property
    def counts(self) -> Counter[str]:
        """A copy of the counts so far."""
        with self._lock:
            return self._counts.copy()

    @property
    def total(self) -> int:
        """The number of calls so far."""
        return self.counts.total()

    def reset(self) -> None:
        """Reset all counts to zero."""
        with self._lock:
            self._counts.clear()


class Transfer:
    """The number of bytes that a call read or wrote, set while it runs."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


def reported(
    on_call: OnCall | None, store: Literal["pointers", "blobs"], operation: str, *, items: int = 1
) -> AbstractContextManager[Transfer]:
    """Report the block to `on_call` when it ends, whether or not it fails. Without `on_call`, it costs nothing."""
    return nullcontext(Transfer()) if on_call is None else _Reported(on_call, store, operation, items)


class _Reported:  # a class, because a generator takes three times as long
    __slots__ = ("_items", "_on_call", "_operation", "_started", "_store", "_transfer")

    def __init__(self, on_call: OnCall, store: Literal["pointers", "blobs"], operation: str, items: int) -> None:
        self._on_call, self._store, self._operation, self._items = on_call, store, operation, items

    def __enter__(self) -> Transfer:
        self._started, self._transfer = time.perf_counter(), Transfer()
        return self._transfer

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        seconds, error = time.perf_counter() - self._started, None if kind is None else kind.__name__
        self._on_call(StoreCall(self._store, self._operation, self._items, seconds, error, self._transfer.size_bytes))
