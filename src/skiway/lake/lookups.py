"""Catalogs, schemas and tables that callers have looked up, for as long as they are certain to be the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from skiway.cache import Cache
from skiway.lake.callers import Callers

__all__ = ["Lookups"]

T = TypeVar("T")

_MAX_BYTES: Final = 32 << 20
_OBJECT_BYTES: Final = 1000


class Lookups:
    """Keeps results while neither the store nor the rights of the caller change.

    A statement of DuckDB makes 4 to 24 calls, and all of them look up the same objects. To compare the state of the store takes
    less than half of the time of a lookup. If the store cannot tell its state, nothing is kept.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._kept = Cache[Hashable, Any](_MAX_BYTES, weigh=_weight)

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """The kept result, or else what `read` returns. Callers must not modify it."""
        state = self._callers.state()  # before anything is read
        if state is None:
            return read()
        found: T = self._kept.get((key, state), read)
        return found


def _weight(found: object) -> int:
    return _OBJECT_BYTES + (found.ByteSize() if isinstance(found, Message) else 0)
