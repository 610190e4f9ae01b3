"""Reading ahead: what is asked for next is made while the last is still used."""

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

_DEPTH: Final = 1  # batches; more would only take room
_AT_ONCE: Final = 2  # sources


def read_ahead(sources: Iterable[S], read: Callable[[S], Generator[T]], *, at_once: int = _AT_ONCE) -> Iterator[T]:
    """The items that `read` gives of each source, in order; the source after the present one is begun already."""
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
    """The same items, made by a thread of their own; at most `depth` wait, beside the one that is being made.

    Whoever closes it early does not wait for the thread: it ends, and closes `items`, after its present item.
    """

    def __init__(self, items: Generator[T], *, depth: int = _DEPTH) -> None:
        self._waiting: Queue[T | _End] = Queue(depth)
        self._stopped = Event()
        work = (_make, items, self._waiting, self._stopped)
        Thread(target=copy_context().run, args=work, name="read-ahead", daemon=True).start()

    def __iter__(self) -> Iterator[T]:
        while not isinstance(item := self._waiting.get(), _End):
            yield item
        if item.error is not None:
            raise item.error

    def close(self) -> None:
        """Make no more."""
        self._stopped.set()
        with suppress(Empty):  # room for what the thread may be about to leave
            while True:
                self._waiting.get_nowait()


def _make(items: Generator[T], waiting: Queue[T | _End], stopped: Event) -> None:
    end = _End()
    try:
        for item in items:
            waiting.put(item)
            if stopped.is_set():
                break
    except BaseException as error:  # noqa: BLE001  (raised where the items are used)
        end = _End(error)
    finally:
        items.close()
        if not stopped.is_set():
            waiting.put(end)
