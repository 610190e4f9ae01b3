"""Two contestants that take turns, so that both meet the same moods of the machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Medians in seconds, and the median of the ratios of turns made right after each other."""

    ours: float
    peer: float
    ratio: float


def taken_in_turns(ours: Call, peer: Call, rounds: int) -> Times:
    """How long both take; one round before that is not counted."""
    pairs = [(seconds(ours), seconds(peer)) for _ in range(rounds + 1)][1:]
    return Times(
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        statistics.median(mine / theirs for mine, theirs in pairs),
    )


def seconds(call: Call) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
