"""Observe stores: one `StoreCall` per public call, for metrics, benchmarks and tests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Literal

__all__ = ["CallCounter", "OnCall", "StoreCall", "Transfer", "reported"]


@dataclass(frozen=True, slots=True)
class StoreCall:
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
    return nullcontext(Transfer()) if on_call is None else _reported(on_call, store, operation, items)


@contextmanager
def _reported(on_call: OnCall, store: Literal["pointers", "blobs"], operation: str, items: int) -> Iterator[Transfer]:
    started, error, transfer = time.perf_counter(), None, Transfer()
    try:
        yield transfer
    except BaseException as raised:
        error = type(raised).__name__
        raise
    finally:
        on_call(StoreCall(store, operation, items, time.perf_counter() - started, error, transfer.size_bytes))
