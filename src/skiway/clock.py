"""Time as an argument: a clock is a function that returns the current time as an aware datetime."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from skiway.errors import InvalidArgument

__all__ = ["Clock", "from_micros", "to_micros", "utc_moment", "utc_now"]

Clock = Callable[[], datetime]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


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
