"""The schedule of garbage collection: sweeps run periodically, in limited runs, on one server of a store at a time.

    Schedule.run   a thread: tick, wait until a sweep is due, tick
    tick           runs every sweep that is due and whose lease is free
    Sweep.step     processes one page; repeated until the end, the time limit, the batch limit or shutdown

The next run continues where the last one stopped, on any server. An error ends the run; it is logged and reported.

A server leases a sweep through a pointer in the shared store, which also records where to continue. Compare-and-set gives the
lease to one server only. A server that takes over an expired lease changes the pointer's version, so that the previous holder
can no longer write to it. Times in the pointer come from the writer's clock. A time further in the future than the settings
allow is ignored, so that one wrong clock does not stop garbage collection.
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
from skiway.metastore.gc import Slice
from skiway.metastore.records import keys
from skiway.storage import ABSENT, Clock, Pointer, PointerStore, utc_now

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
log = logging.getLogger("skiway.gc")

GRACE_S: Final = 120.0
"""How long a lease outlasts the time limit of a run: the time that one page may take in a slow store."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease of a sweep. `token` says where to continue; None means at the beginning."""

    key: str
    version: int
    token: str | None


@dataclass(frozen=True, slots=True)
class NotDue:
    """The sweep cannot be leased before this time."""

    until: datetime


@dataclass(frozen=True, slots=True)
class _State:
    """The content of the pointer."""

    token: str | None = None
    due_at: datetime = EPOCH
    held_until: datetime = EPOCH

    @classmethod
    def read(cls, pointer: Pointer | None) -> _State:
        if pointer is None:
            return cls()
        try:
            content = json.loads(pointer.blob_uri)
            due_at, held_until = map(datetime.fromisoformat, (content["due_at"], content["held_until"]))
            return cls(content["token"], due_at.astimezone(UTC), held_until.astimezone(UTC))
        except (ValueError, KeyError, TypeError):
            log.warning("gc: %s is not readable; its sweep starts from the beginning", pointer.key)
            return cls()

    def written(self) -> str:
        content = {"token": self.token, "due_at": self.due_at.isoformat(), "held_until": self.held_until.isoformat()}
        return json.dumps(content)

    def free_at(self, now: datetime, *, every: timedelta, hold: timedelta) -> datetime:
        """The time from which the lease is free."""
        plausible = [
            moment
            for moment, longest in ((self.due_at, every), (self.held_until, hold))
            if now < moment <= now + longest
        ]
        return max(plausible, default=now)


class Leases:
    """The leases of all sweeps of a store."""

    def __init__(self, pointers: PointerStore, *, clock: Clock) -> None:
        self._pointers = pointers
        self._clock = clock

    def acquire(self, name: str, *, every_s: float, hold_s: float) -> Lease | NotDue:
        """Lease the sweep `name` for `hold_s` seconds, unless it ran less than `every_s` seconds ago or is leased."""
        pointer, now = self._pointers.get(keys.gc_turn(name)), self._clock()
        state, hold = _State.read(pointer), timedelta(seconds=hold_s)
        free_at = state.free_at(now, every=timedelta(seconds=every_s), hold=hold)
        if free_at > now:
            return NotDue(free_at)
        version = pointer.version if pointer else ABSENT
        held = _State(state.token, state.due_at, now + hold).written()
        try:
            taken = self._pointers.compare_and_set(keys.gc_turn(name), held, expect=version)
        except Conflict:  # another server was faster
            return NotDue(now + hold)
        return Lease(taken.key, taken.version, state.token)

    def release(self, lease: Lease, *, token: str | None, after_s: float) -> None:
        """Release the lease; the next run continues at `token` in `after_s` seconds. Has no effect if the lease was lost."""
        due_at = self._clock() + timedelta(seconds=after_s)
        try:
            self._pointers.compare_and_set(lease.key, _State(token, due_at).written(), expect=lease.version)
        except Conflict:
            log.warning("gc: %s took longer than its lease, which another server has taken over", lease.key)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep with its interval and limits. `step` processes one page, starting at a token."""

    name: str
    step: Callable[[str | None], Slice]
    every_s: float
    slice_s: float
    batch_limit: int | None = None
    enabled: bool = True


@dataclass(frozen=True, slots=True)
class Tick:
    """A finished run of a sweep, for metrics. `error` is the class name of the exception, `failed records`, or None."""

    sweep: str
    started_at: datetime
    seconds: float
    done: Slice
    error: str | None = None


class Observer(Protocol):
    """Receives the start and end of every run, on the thread of the schedule."""

    def began(self, sweep: Sweep) -> None:
        """A run starts."""

    def ended(self, tick: Tick) -> None:
        """A run has ended or failed."""


class Schedule:
    """Runs sweeps when they are due. `run` calls `tick` until it is stopped; tests may call `tick` directly."""

    def __init__(
        self,
        pointers: PointerStore,
        sweeps: Sequence[Sweep],
        *,
        clock: Clock = utc_now,
        monotonic: Callable[[], float] = time.monotonic,
        observer: Observer | None = None,
    ) -> None:
        self._leases = Leases(pointers, clock=clock)
        self._sweeps = [sweep for sweep in sweeps if sweep.enabled]
        self._clock = clock
        self._monotonic = monotonic
        self._observer = observer

    def run(self, stop: threading.Event) -> None:
        """Call `tick` until `stop` is set, which is checked between pages."""
        while self._sweeps and not stop.is_set():
            stop.wait(self.tick(stopping=stop.is_set))

    def tick(self, *, stopping: Callable[[], bool] = lambda: False) -> float:
        """Run the sweeps that are due. Returns the seconds until the next one is."""
        waits = [self._run_if_due(sweep, stopping) for sweep in self._sweeps if not stopping()]
        return min(waits, default=0.0)

    def _run_if_due(self, sweep: Sweep, stopping: Callable[[], bool]) -> float:
        """Run the sweep if it can be leased. Returns the seconds until the next attempt."""
        started_at, started = self._clock(), self._monotonic()
        try:
            lease = self._leases.acquire(sweep.name, every_s=sweep.every_s, hold_s=sweep.slice_s + GRACE_S)
            if isinstance(lease, NotDue):
                return (lease.until - started_at).total_seconds()
            if self._observer is not None:
                self._observer.began(sweep)
            done = self._sweep(sweep, lease, stopping)
            error = "failed records" if done.failed else None
        except Exception as raised:  # noqa: BLE001 - whatever the store raised, the next tick retries
            done, error = Slice(), type(raised).__name__
            log.error("gc %s failed, retrying in %.0f s: %s", sweep.name, sweep.every_s, raised)
        _log(sweep, done)
        if self._observer is not None:
            self._observer.ended(Tick(sweep.name, started_at, self._monotonic() - started, done, error))
        return sweep.every_s

    def _sweep(self, sweep: Sweep, lease: Lease, stopping: Callable[[], bool]) -> Slice:
        token = lease.token
        try:
            done = self._work(sweep, token, stopping)
            token = done.next_token
        except InvalidArgument:  # a token of an older layout: start from the beginning
            token = None
            raise
        finally:
            self._leases.release(lease, token=token, after_s=sweep.every_s)
        return done

    def _work(self, sweep: Sweep, token: str | None, stopping: Callable[[], bool]) -> Slice:
        """Process pages, at least one, until a limit is reached."""
        deadline = self._monotonic() + sweep.slice_s
        done = sweep.step(token)
        while done.next_token is not None and self._monotonic() < deadline and not stopping():
            if sweep.batch_limit is not None and done.count >= sweep.batch_limit:
                break
            done = done.followed_by(sweep.step(done.next_token))
        return done


def _log(sweep: Sweep, done: Slice) -> None:
    for key in done.damaged:
        log.error(
            "gc %s: the content of %s is missing: restore it from a backup, or delete the resource", sweep.name, key
        )
    for text in done.failed:
        log.error("gc %s: one record cannot be processed, and is tried again in the next run: %s", sweep.name, text)
    if done.count:
        log.info("gc %s: deleted %d of %d", sweep.name, done.count, done.looked_at)
