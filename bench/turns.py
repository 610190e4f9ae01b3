"""Measure two functions alternately, so that both run under the same load."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Times:
    """Median seconds of both, and the median ratio of consecutive runs."""

    ours: float
    peer: float
    ratio: float


def taken_in_turns(ours: Call, peer: Call, rounds: int, *, measure: Callable[[Call], float] | None = None) -> Times:
    """Measure both in turns, after one warm-up round. `measure` returns the duration of a call."""
    measure = measure or seconds
    pairs = [(measure(ours), measure(peer)) for _ in range(rounds + 1)][1:]
    return Times(
        statistics.median(mine for mine, _ in pairs),
        statistics.median(theirs for _, theirs in pairs),
        statistics.median(mine / theirs for mine, theirs in pairs),
    )


def seconds(call: Call) -> float:
    """The duration of one call."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started
