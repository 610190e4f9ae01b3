"""Time: clocks as arguments, and durations as text.

A clock is a function that returns the current time as an aware datetime. A duration is text such as `500ms`, `30s`, `10m`,
`1h` or `7d`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Final, TypeVar

from skiway.errors import InvalidArgument

T = TypeVar("T")

Clock = Callable[[], datetime]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
JUMP = timedelta(seconds=1)
"""What a clock is put forward by at least, if it is not merely adjusted."""


def utc_now() -> datetime:
    """The current time of the system."""
    return datetime.now(UTC)


def utc_moment(moment: datetime) -> datetime:
    """Convert `moment` to UTC; raises InvalidArgument for a naive datetime, whose meaning depends on the machine."""
    if moment.tzinfo is None:
        raise InvalidArgument(f"{moment.isoformat()} has no time zone; use an aware datetime, such as one in UTC")
    return moment.astimezone(UTC)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970, exactly: the form in which stores keep times."""
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """The inverse of `to_micros`, in UTC."""
    return EPOCH + micros * MICROSECOND


class SettledClock:
    """A clock for comparing ages, which follows a forward jump of the system's clock only after `hold_s` seconds.

    A file that was written just before the jump seems to be as old as the jump is wide. Meanwhile this clock continues
    at its previous pace. It follows a backward jump at once.
    """

    def __init__(self, clock: Clock, hold_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._hold_s, self._monotonic = clock, hold_s, monotonic
        self._origin = self._latest = self._current_origin()
        self._held_until = 0.0

    def __call__(self) -> datetime:
        """The current time, without a forward jump that happened a short time ago."""
        elapsed_s, origin = self._monotonic(), self._current_origin()
        if origin > self._latest + JUMP:
            self._held_until = elapsed_s + self._hold_s
        self._latest = origin
        if origin < self._origin or elapsed_s >= self._held_until:
            self._origin = origin
        return self._origin + timedelta(seconds=elapsed_s)

    def _current_origin(self) -> datetime:
        """The time at which the monotonic clock would have been zero; constant unless the system's clock jumps."""
        return self._clock() - timedelta(seconds=self._monotonic())


DURATION_SYNTAX: Final = "a duration above zero, such as 500ms, 30s, 10m, 1h or 7d"

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
"""Milliseconds by unit."""


def parse_duration(text: object) -> timedelta:
    """The duration that a text stands for; `ValueError` if it stands for none, or for zero."""
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text.strip()) if isinstance(text, str) else None
    if match is None or not int(match[1]):
        raise ValueError("not a duration")
    return timedelta(milliseconds=int(match[1]) * _UNITS[match[2]])


def duration_text(duration: timedelta) -> str:
    """The shortest text for a duration, in whole milliseconds."""
    millis = round(duration.total_seconds() * 1000)
    unit = next(unit for unit in reversed(_UNITS) if millis % _UNITS[unit] == 0)
    return f"{millis // _UNITS[unit]}{unit}"


class TooLate(Exception):
    """A call has not returned in time."""


def call_within(seconds: float, call: Callable[[], T], *, name: str) -> T:
    """Return or raise what `call` does on a thread; raise `TooLate` if it takes longer. Its thread is then left to itself."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    try:
        return result.result(seconds)
    except TimeoutError:
        if result.done():  # the call has raised it
            raise
        raise TooLate from None
