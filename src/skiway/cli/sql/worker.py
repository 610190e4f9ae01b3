"""A thread that runs statements, so that the main thread can react to Ctrl-C while DuckDB or the server works."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures import TimeoutError as NotYet
from time import monotonic
from typing import Any, Final, TypeVar

__all__ = ["Worker"]

T = TypeVar("T")
END: Final[Any] = object()
PAGE_ROWS: Final = 1000
CANCEL_S: Final = 5.0
CANCEL_AGAIN_S: Final = 0.2
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
        return self._wait(self._submit(function))

    def each(self, items: Iterator[T]) -> Iterator[T]:
        """Yield items that the thread produces."""
        while (item := self.run(lambda: next(items, END))) is not END:
            yield item

    def pages(self, parts: Iterator[list[T]]) -> Iterator[list[T]]:
        """Yield pages, each of them combined from the parts that arrive within a moment."""
        pending: Future[Any] = self._submit(next, parts, END)
        page: list[T] = []
        deadline = None
        while True:
            part = self._wait_until(pending, deadline)
            if part is None:
                yield page
                page, deadline = [], None
                continue
            if part is END:
                break
            page.extend(part)
            pending = self._submit(next, parts, END)
            deadline = deadline or monotonic() + PAGE_S
            if len(page) >= PAGE_ROWS:
                yield page
                page, deadline = [], None
        if page:
            yield page

    def _submit(self, function: Callable[..., T], *arguments: Any) -> Future[T]:
        self._last = pending = self._threads.submit(function, *arguments)
        return pending

    def _wait_until(self, pending: Future[T], deadline: float | None) -> T | None:
        """Return the result, or None if it is not there at the deadline."""
        try:
            return self._wait(pending, None if deadline is None else max(0.0, deadline - monotonic()))
        except NotYet:
            if pending.done():  # the function itself timed out
                raise
            return None

    def _wait(self, pending: Future[T], timeout_s: float | None = None) -> T:
        try:
            return pending.result(timeout_s)
        except KeyboardInterrupt:
            self._end(pending)  # so that the next statement can start
            raise

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
