"""Time as an argument: a clock is any function that returns the present moment in UTC."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

__all__ = ["Clock", "utc_now"]

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """The system's time."""
    return datetime.now(UTC)
