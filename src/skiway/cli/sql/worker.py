"""A thread that runs statements, so that the main thread can react to Ctrl-C while DuckDB or the server works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from math import inf
from time import monotonic
from typing import Any, Final, TypeVar

__all__ = ["Worker"]

T = TypeVar("T")
END: Final[Any] = object()
PAGE_ROWS: Final = 1000
CANCEL_S: Final = 5.0
CANCEL_AGAIN_S: Final = 0.2
SIGNAL_S: Final = 0.2
"""How often the main thread looks for Ctrl-C: the signal does not wake it if another thread receives it."""
PAGE_S: Final = 0.25
"""How long a table waits for more rows after the first ones, to align them."""


class Worker:
    """Runs functions in one thread. Ctrl-C calls `cancel`, which must make the running function end."""

    def __init__(self, cancel: Callable[[], None]) -> None:
        self._cancel = cancel
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="sql")
        self._last: Future[Any] | None = None

    def run(self, function: Callable[[], T]) -> T:
        """Run a function and return its result."""
        pending = self._submit(function)
        self._has_ended(pending)
        return pending.result()

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items that the thread produces."""
        while (item := self.run(lambda: next(items, END))) is not END:
            yield item

    def pages(self, parts: Iterator[list[T]]) -> Iterator[list[T]]:
        """Yield pages, each of them combined from the parts that arrive within a moment."""
        pending: Future[Any] = self._submit(next, parts, END)
        page: list[T] = []
        deadline = inf
        while True:
            if not self._has_ended(pending, deadline):
                yield page
                page, deadline = [], inf
                continue
            part = pending.result()
            if part is END:
                break
            page.extend(part)
            pending = self._submit(next, parts, END)
            deadline = min(deadline, monotonic() + PAGE_S)
            if len(page) >= PAGE_ROWS:
                yield page
                page, deadline = [], inf
        if page:
            yield page

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        self._last = pending = self._threads.submit(function, *arguments)
        return pending

    def _has_ended(self, pending: Future[Any], deadline: float = inf) -> bool:
        """Wait until the function has ended, or for the deadline; return whether it has ended."""
        try:
            while not pending.done() and (left_s := deadline - monotonic()) > 0:
                wait([pending], min(left_s, SIGNAL_S))
        except KeyboardInterrupt:
            self._end(pending)  # so that the next statement can start
            raise
        return pending.done()

    def _end(self, pending: Future[Any]) -> None:
        """Cancel until the function has ended, for a few seconds: one that is between two steps does not notice it."""
        until = monotonic() + CANCEL_S
        while not pending.done() and monotonic() < until:
            self._cancel()
            wait([pending], CANCEL_AGAIN_S)

    def close(self) -> None:
        """Cancel the running function, if there is one, and end the thread."""
        if self._last is not None:
            self._end(self._last)
        self._threads.shutdown(wait=False)
