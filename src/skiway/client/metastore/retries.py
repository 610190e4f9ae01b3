"""Calls that are made again after a failure that the next attempt may not meet."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from skiway.errors import Contention, Unavailable

__all__ = ["Retries", "retried"]

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a failed call is made again, at most, and how long to pause before: twice as long each time.

    Up to the share `jitter` of a pause is left out at random, so that many clients do not come back at once.
    """

    limit: int = 5
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    jitter: float = 0.5
    random: Callable[[], float] = random.random

    def pauses(self) -> Iterator[float]:
        """The pauses before each further attempt."""
        for number in range(self.limit):
            pause = min(self.longest_pause_s, self.first_pause_s * 2**number)
            yield pause * (1 - self.jitter * self.random())


def retried(attempt: Callable[[float | None], R], *, retries: Retries, timeout_s: float | None, repeatable: bool) -> R:
    """What `attempt` returns, which is told how many seconds are left for it.

    After `Contention` nothing was changed, so any call is made again. After `Unavailable` the server may have done what
    it was asked to, so only a `repeatable` call is: one that changes nothing, or one with a key. Nothing else is.
    """
    ends_at = math.inf if timeout_s is None else time.monotonic() + timeout_s
    pauses = retries.pauses()
    while True:
        left = ends_at - time.monotonic()
        try:
            return attempt(None if timeout_s is None else max(left, 0.0))
        except (Contention, Unavailable) as error:
            pause = next(pauses, math.inf)
            too_late = time.monotonic() + pause >= ends_at  # also when there are no pauses left
            if too_late or (isinstance(error, Unavailable) and not repeatable):
                raise
        time.sleep(pause)
