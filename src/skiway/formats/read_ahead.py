"""Produce items on other threads before they are needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass
from itertools import islice
from queue import Empty, Queue
from threading import Event, Thread
from typing import Final, Generic, TypeVar

__all__ = ["ReadAhead", "read_ahead"]

T = TypeVar("T")
S = TypeVar("S")

_DEPTH: Final = 1  # batches to read ahead per file; more would only use memory
_AT_ONCE: Final = 2  # files


def read_ahead(sources: Iterable[S], read: Callable[[S], Generator[T]], *, at_once: int = _AT_ONCE) -> Iterator[T]:
    """Yield the items that `read` yields for each source, in order; the next source is started in advance."""
    coming = (ReadAhead(read(source)) for source in sources)
    begun = deque(islice(coming, at_once))
    try:
        while begun:
            yield from begun[0]
            begun.popleft()
            begun.extend(islice(coming, 1))
    finally:
        for each in begun:
            each.close()


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None = None


class ReadAhead(Generic[T]):
    """Produces `items` on a thread of its own; at most `depth` are queued, besides the one in production.

    `close` does not wait for the thread, which ends after its current item and then closes `items`.
    """

    def __init__(self, items: Generator[T], *, depth: int = _DEPTH) -> None:
        self._queue: Queue[T | _End] = Queue(depth)
        self._stopped = Event()
        work = (_produce, items, self._queue, self._stopped)
        Thread(target=copy_context().run, args=work, name="read-ahead", daemon=True).start()

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._queue.get(), _End):
            yield item
        if item.error is not None:
            raise item.error

    def close(self) -> None:
        """Stop producing items."""
        self._stopped.set()
        with suppress(Empty):  # so that the thread is not blocked on a full queue
            while True:
                self._queue.get_nowait()


def _produce(items: Generator[T], queue: Queue[T | _End], stopped: Event) -> None:
    end = _End()
    try:
        for item in items:
            queue.put(item)
            if stopped.is_set():
                break
    except BaseException as error:  # noqa: BLE001  (raised by the consumer)
        end = _End(error)
    finally:
        items.close()
        if not stopped.is_set():
            queue.put(end)
