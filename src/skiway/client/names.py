"""Dotted names with quoted parts, as both clients accept them: `lake."eu.west".people`."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["split_name"]

_PART: Final = re.compile(r'(?:\s*"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<plain>[^."]*))(?P<end>\.|$)')


def split_name(text: str) -> list[str] | None:
    """Split a name at the dots outside of double quotes; None if a quote is misplaced.

    >>> split_name('lake."eu.west".people')
    ['lake', 'eu.west', 'people']
    """
    parts: list[str] = []
    position, more = 0, True
    while more:
        found = _PART.match(text, position)
        if found is None:
            return None
        quoted = found["quoted"]
        parts.append(found["plain"] if quoted is None else quoted.replace('""', '"'))
        position, more = found.end(), found["end"] == "."
    return parts
