"""Numbers of bytes with units."""

from __future__ import annotations

from typing import Final

__all__ = ["format_size"]

UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_size(count: float) -> str:
    """Format a number of bytes.

    >>> format_size(1536), format_size(12)
    ('1.5 KiB', '12 B')
    """
    number, unit = float(count), 0
    while number >= 1024 and unit < len(UNITS) - 1:
        number, unit = number / 1024, unit + 1
    return f"{number:.1f} {UNITS[unit]}" if unit else f"{count:.0f} B"
