"""Catalogs, schemas and tables that callers have looked up, for as long as they are certain to be the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final, NamedTuple, TypeVar

from skiway.cache import Cache
from skiway.lake.callers import Callers

__all__ = ["Lookups"]

T = TypeVar("T")

_MAX_OBJECTS: Final = 5000
"""An opened table takes some 20 KB."""


class _Kept(NamedTuple):
    """Results of one state of the store, by what was looked up and by the rights of the caller."""

    stored: Hashable
    results: Cache[Hashable, Any]


class Lookups:
    """Keeps results while neither the store nor the rights of the caller change.

    A statement of DuckDB makes 4 to 24 calls, and all of them look up the same objects. To compare the state of the store takes
    less than half of the time of a lookup. If the store cannot tell its state, nothing is kept.
    """

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._kept = _Kept(None, Cache(_MAX_OBJECTS))

    def get(self, key: Hashable, read: Callable[[], T]) -> T:
        """The kept result, or else what `read` returns. Callers must not modify it."""
        state = self._callers.state()  # before anything is read
        if state is None:
            return read()
        stored, rights = state
        kept = self._kept
        if kept.stored != stored:  # results of older states are never looked up again
            kept = self._kept = _Kept(stored, Cache(_MAX_OBJECTS))
        found: T = kept.results.get((key, rights), read)
        return found
