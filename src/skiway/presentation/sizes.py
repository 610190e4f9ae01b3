"""Numbers of bytes with units, and numbers of rows."""

from __future__ import annotations

from typing import Final

__all__ = ["AtMost", "format_size", "row_count"]

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


class AtMost(int):
    """A number that is an upper bound."""

    def __format__(self, spec: str) -> str:
        return f"at most {int(self):{spec}}"


def row_count(count: int | None, *, is_bound: bool) -> int | None:
    """A number of rows, which is marked if the table has at most that many.

    >>> f"{row_count(1500, is_bound=True):,}", f"{row_count(1500, is_bound=False):,}"
    ('at most 1,500', '1,500')
    """
    return AtMost(count) if count is not None and is_bound else count
