"""Durations as text, such as `500ms`, `30s`, `10m`, `1h` or `7d`."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Final

__all__ = ["SYNTAX", "duration_text", "parse_duration"]

SYNTAX: Final = "a duration above zero, such as 500ms, 30s, 10m, 1h or 7d"

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
