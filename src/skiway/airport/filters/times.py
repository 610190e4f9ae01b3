"""Dates and times as text. Constants have them as integers, which also hold what Python's types cannot represent."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Final

__all__ = ["MICROS_PER_SECOND", "date_text", "time_text", "timestamp_text"]

MICROS_PER_SECOND: Final = 10**6

_EPOCH: Final = date(1970, 1, 1)
_FIRST_DAY: Final = (date.min - _EPOCH).days
_LAST_DAY: Final = (date.max - _EPOCH).days


def date_text(days: int) -> str | None:
    """The date so many days after 1970-01-01; None outside of the years 1 to 9999."""
    return str(_EPOCH + timedelta(days=days)) if _FIRST_DAY <= days <= _LAST_DAY else None


def timestamp_text(micros: int) -> str | None:
    """The date and time so many microseconds after 1970-01-01; None outside of the years 1 to 9999."""
    days, rest = divmod(micros, 86400 * MICROS_PER_SECOND)
    if not _FIRST_DAY <= days <= _LAST_DAY:
        return None
    moment = datetime.fromtimestamp(0, UTC) + timedelta(days=days, microseconds=rest)
    return str(moment.replace(tzinfo=None))


def time_text(count: int, per_second: int = MICROS_PER_SECOND) -> str:
    """The time of day after `count` parts of a second."""
    seconds, fraction = divmod(count, per_second)
    digits = len(str(per_second)) - 1
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{digits}d}"
