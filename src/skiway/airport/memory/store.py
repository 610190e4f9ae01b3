"""The versions of a catalog: one reference to the newest, and a bounded past.

Readers take the reference and never wait. Writers hand in a change, a function from one snapshot to the next; changes
happen one after the other, each on the newest snapshot.
"""

from __future__ import annotations

import datetime as dt
import threading
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace

from skiway.airport.catalog import TimePoint
from skiway.airport.memory.snapshot import Snapshot
from skiway.errors import InvalidArgument, NotFound

__all__ = ["Change", "Clock", "Store"]

Change = Callable[[Snapshot], Snapshot]
Clock = Callable[[], dt.datetime]


class Store:
    """Keeps the newest `keep` versions; version n is the state after the n-th change, version 0 is empty."""

    def __init__(self, *, clock: Clock, keep: int) -> None:
        if keep < 1:
            raise InvalidArgument(f"at least one version must be kept, not {keep}")
        self._clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._history: tuple[Snapshot, ...] = (Snapshot(0, clock()),)

    @property
    def current(self) -> Snapshot:
        """The newest version."""
        return self._history[-1]

    def commit(self, change: Change) -> Snapshot:
        """Make a change on the newest version; if it raises, nothing happened. No change makes no new version."""
        with self._lock:
            before = self.current
            after = change(before)
            if after is before:
                return before
            # a clock that was set back must not put versions out of order
            moment = max(self._clock(), before.committed_at)
            committed = replace(after, version=before.version + 1, committed_at=moment)
            self._history = (*self._history[-self._keep + 1 :], committed) if self._keep > 1 else (committed,)
            return committed

    def at(self, point: TimePoint) -> Snapshot | None:
        """The version of a moment in the past; None for a time before everything."""
        history = self._history
        if point.unit == "timestamp":
            return _at_time(history, point.timestamp())
        return _numbered(history, point.version())


def _numbered(history: tuple[Snapshot, ...], version: int) -> Snapshot:
    oldest, newest = history[0].version, history[-1].version
    if not oldest <= version <= newest:
        raise NotFound(f"there is no version {version}: versions {oldest} to {newest} are kept")
    return history[version - oldest]


def _at_time(history: tuple[Snapshot, ...], moment: dt.datetime) -> Snapshot | None:
    later = bisect_right(history, moment, key=lambda snapshot: snapshot.committed_at)
    if later:
        return history[later - 1]
    if history[0].version:
        raise NotFound(
            f"what was there at {moment.isoformat()} is no longer kept: the past begins at "
            f"{history[0].committed_at.isoformat()} with version {history[0].version}"
        )
    return None
