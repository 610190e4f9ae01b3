"""Whose turn it is to sweep, and where the sweep goes on: one pointer per sweep, in the store that all servers share.

A pointer has one version at a time, so a turn is taken by one server only; and whoever takes a turn that another kept
for too long moves the version, so that the other cannot give it back any more. The moments in a turn are those of the
clock of whoever wrote it. A moment further ahead than it can be by the present settings is not believed: a clock that
was wrong once must not stop gc for a year.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from skiway.errors import Conflict, InvalidArgument
from skiway.metastore.records import keys
from skiway.storage import ABSENT, Clock, Pointer, PointerStore, utc_now

__all__ = ["Later", "Observer", "Progress", "Schedule", "Sweep", "Tick", "Turn", "Turns"]

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
        pointer, now = self._pointers.get(keys.gc_turn(name)), self._clock()
        state, hold = _State.read(pointer), timedelta(seconds=hold_s)
        free_at = state.free_at(now, every=timedelta(seconds=every_s), hold=hold)
        if free_at > now:
            return Later(free_at)
        version = pointer.version if pointer else ABSENT
        held = _State(state.token, state.due_at, now + hold).written()
        try:
            taken = self._pointers.compare_and_set(keys.gc_turn(name), held, expect=version)
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


# --------------------
# The sweeps of gc at their times, in slices, on one server of a store at a time.
#
# Schedule.run       a thread: tick, wait until the next sweep is due, tick
# tick             every sweep that is due and whose turn can be taken
# sweep.step     one page after the other, until the end, the time slice, the batch limit or the stop
#
# What was not reached goes on at the next tick, on whichever server. An error ends the tick of its sweep, is logged and
# reported, and never ends the server.


GRACE_S = 120.0
"""How long a turn is held beyond its time slice: what one page may take in a slow store."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What was done so far, and where to go on; without a token, the sweep has come round."""

    looked_at: int = 0
    removed: int = 0
    damaged: tuple[str, ...] = ()
    next_token: str | None = None

    def followed_by(self, other: Progress) -> Progress:
        """Both as one."""
        return Progress(
            self.looked_at + other.looked_at,
            self.removed + other.removed,
            (*self.damaged, *other.damaged),
            other.next_token,
        )


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep and its times. `step` does one page from a token on."""

    name: str
    step: Callable[[str | None], Progress]
    every_s: float
    slice_s: float
    batch_limit: int | None = None
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """One turn of a sweep, for metrics. `error` is the name of the exception's class, or None when all went well."""

    sweep: str
    started_at: datetime
    seconds: float
    progress: Progress
    error: str | None = None


class Observer(Protocol):
    """Told of every tick, on the thread of the schedule."""

    def began(self, sweep: Sweep) -> None:
        """A turn of the sweep was taken."""

    def ended(self, tick: Tick) -> None:
        """That is what was done in it, or how it failed."""


class Schedule:
    """Runs sweeps when they are due. `tick` may be called by hand; `run` calls it until told to stop."""

    def __init__(
        self,
        pointers: PointerStore,
        sweeps: Sequence[Sweep],
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        self._turns = Turns(pointers, clock=clock)
        self._sweeps = [sweep for sweep in sweeps if sweep.enabled]
        self._clock = clock
        self._monotonic = monotonic
        self._observer = observer

    def run(self, stop: threading.Event) -> None:
        """Tick until `stop` is set, which is looked at between slices."""
        while self._sweeps and not stop.is_set():
            stop.wait(self.tick(stopping=stop.is_set))

    def tick(self, *, stopping: Callable[[], bool] = lambda: False) -> float:
        """Do what is due; in how many seconds something is due again."""
        waits = [self._attend(sweep, stopping) for sweep in self._sweeps if not stopping()]
        return min(waits, default=0.0)

    def _attend(self, sweep: Sweep, stopping: Callable[[], bool]) -> float:
        """Do the sweep if it is our turn; in how many seconds to ask again."""
        started_at, started = self._clock(), self._monotonic()
        try:
            turn = self._turns.take(sweep.name, every_s=sweep.every_s, hold_s=sweep.slice_s + GRACE_S)
            if isinstance(turn, Later):
                return (turn.until - started_at).total_seconds()
            if self._observer is not None:
                self._observer.began(sweep)
            done, error = self._sweep(sweep, turn, stopping), None
        except Exception as raised:  # noqa: BLE001 - whatever the store did, the next tick tries again
            done, error = Progress(), type(raised).__name__
            log.error("gc %s failed and tries again in %.0f s: %s", sweep.name, sweep.every_s, raised)
        _log(sweep, done)
        if self._observer is not None:
            self._observer.ended(Tick(sweep.name, started_at, self._monotonic() - started, done, error))
        return sweep.every_s

    def _sweep(self, sweep: Sweep, turn: Turn, stopping: Callable[[], bool]) -> Progress:
        token = turn.token
        try:
            done = self._work(sweep, token, stopping)
            token = done.next_token
        except InvalidArgument:  # a token of another time or layout: begin anew
            token = None
            raise
        finally:
            self._turns.give_back(turn, token=token, after_s=sweep.every_s)
        return done

    def _work(self, sweep: Sweep, token: str | None, stopping: Callable[[], bool]) -> Progress:
        """At least one page."""
        deadline = self._monotonic() + sweep.slice_s
        done = sweep.step(token)
        while done.next_token is not None and self._monotonic() < deadline and not stopping():
            if sweep.batch_limit is not None and done.removed >= sweep.batch_limit:
                break
            done = done.followed_by(sweep.step(done.next_token))
        return done


def _log(sweep: Sweep, done: Progress) -> None:
    for key in done.damaged:
        log.error("gc %s: the content of %s is lost: restore it from a backup, or delete the resource", sweep.name, key)
    if done.removed:
        log.info("gc %s: removed %d of %d", sweep.name, done.removed, done.looked_at)
