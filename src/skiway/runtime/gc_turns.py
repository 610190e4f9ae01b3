"""Whose turn it is to sweep, and where the sweep goes on: one pointer per sweep, in the store that all servers share.

A pointer has one version at a time, so a turn is taken by one server only; and whoever takes a turn that another kept
for too long moves the version, so that the other cannot give it back any more. The moments in a turn are those of the
clock of whoever wrote it. A moment further ahead than it can be by the present settings is not believed: a clock that
was wrong once must not stop gc for a year.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from skiway.errors import Conflict
from skiway.storage import ABSENT, Clock, Pointer, PointerStore

__all__ = ["Later", "Turn", "Turns"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
log = logging.getLogger("skiway.gc")


@dataclass(frozen=True, slots=True)
class Turn:
    """The right to sweep until it is given back or expires; `token` says where to begin, None at the beginning."""

    key: str
    version: int
    token: str | None


@dataclass(frozen=True, slots=True)
class Later:
    """It is not our turn before this moment."""

    until: datetime


@dataclass(frozen=True, slots=True)
class _State:
    """What the pointer says."""

    token: str | None = None
    due_at: datetime = EPOCH
    held_until: datetime = EPOCH

    @classmethod
    def read(cls, pointer: Pointer | None) -> _State:
        if pointer is None:
            return cls()
        try:
            said = json.loads(pointer.blob_uri)
            due_at, held_until = map(datetime.fromisoformat, (said["due_at"], said["held_until"]))
            return cls(said["token"], due_at.astimezone(UTC), held_until.astimezone(UTC))
        except (ValueError, KeyError, TypeError):
            log.warning("gc: %s cannot be read, so its sweep begins anew", pointer.key)
            return cls()

    def written(self) -> str:
        said = {"token": self.token, "due_at": self.due_at.isoformat(), "held_until": self.held_until.isoformat()}
        return json.dumps(said)

    def free_at(self, now: datetime, *, every: timedelta, hold: timedelta) -> datetime:
        """From when on the turn may be taken."""
        believed = [
            moment
            for moment, longest in ((self.due_at, every), (self.held_until, hold))
            if now < moment <= now + longest
        ]
        return max(believed, default=now)


class Turns:
    """The turns of all sweeps of a store."""

    def __init__(self, pointers: PointerStore, *, clock: Clock) -> None:
        self._pointers = pointers
        self._clock = clock

    def take(self, name: str, *, every_s: float, hold_s: float) -> Turn | Later:
        """The turn of the sweep `name`, for `hold_s` seconds, unless it was done less than `every_s` ago or is held."""
        pointer, now = self._pointers.get(_key(name)), self._clock()
        state, hold = _State.read(pointer), timedelta(seconds=hold_s)
        free_at = state.free_at(now, every=timedelta(seconds=every_s), hold=hold)
        if free_at > now:
            return Later(free_at)
        version = pointer.version if pointer else ABSENT
        held = _State(state.token, state.due_at, now + hold).written()
        try:
            taken = self._pointers.compare_and_set(_key(name), held, expect=version)
        except Conflict:  # another server was faster
            return Later(now + hold)
        return Turn(taken.key, taken.version, state.token)

    def give_back(self, turn: Turn, *, token: str | None, after_s: float) -> None:
        """Let the next turn, in `after_s` seconds, go on at `token`; nothing happens if the turn has passed to another."""
        due_at = self._clock() + timedelta(seconds=after_s)
        try:
            self._pointers.compare_and_set(turn.key, _State(token, due_at).written(), expect=turn.version)
        except Conflict:
            log.warning("gc: %s took longer than its turn, which another server has taken", turn.key)


def _key(name: str) -> str:
    return f"/platform/gc/{name}"
