"""Time as an argument: a clock is any function that returns the present moment, aware of its zone."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from skiway.errors import InvalidArgument

__all__ = ["Clock", "from_micros", "to_micros", "utc_moment", "utc_now"]

Clock = Callable[[], datetime]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def utc_now() -> datetime:
    """The system's time."""
    return datetime.now(UTC)


def utc_moment(moment: datetime) -> datetime:
    """The same moment in UTC; a time without a zone is refused, because machines would read it differently."""
    if moment.tzinfo is None:
        raise InvalidArgument(f"{moment.isoformat()} has no time zone: give an aware datetime, such as one in UTC")
    return moment.astimezone(UTC)


def to_micros(moment: datetime) -> int:
    """Microseconds since 1970, exactly: what stores keep, as it sorts and loses nothing."""
    return (moment - EPOCH) // MICROSECOND


def from_micros(micros: int) -> datetime:
    """The moment `to_micros` was given, in UTC."""
    return EPOCH + micros * MICROSECOND


# --------------------
# Time as an argument: a clock is any function that returns the present moment in UTC.
