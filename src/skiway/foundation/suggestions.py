"""What a wrong name probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_SUGGESTIONS: Final = 3


def suggestion(missing: str, names: Iterable[str]) -> str:
    """Return `did you mean …?` with similar names, or the first existing names; "" if there are none."""
    known = list(names)
    lower = {name.lower(): name for name in known}
    similar = get_close_matches(missing.lower(), lower, n=MAX_SUGGESTIONS, cutoff=0.6)
    if similar:
        *others, last = (lower[name] for name in similar)
        return f"did you mean {' or '.join([', '.join(others), last] if others else [last])}?"
    if not known:
        return ""
    return f"existing: {', '.join(known[:MAX_SUGGESTIONS])}{', …' if len(known) > MAX_SUGGESTIONS else ''}"
