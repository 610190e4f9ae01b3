"""Retries of calls that lost a race against another writer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tenacity import RetryCallState, Retrying, retry_if_exception_type, stop_after_attempt

from skiway.errors import Contention

__all__ = ["Retries"]


@dataclass(frozen=True, slots=True)
class Retries:
    """How often a call is retried after `Contention`, and how long to wait before: longer each time, with jitter."""

    limit: int = 8
    first_wait_s: float = 0.005
    longest_wait_s: float = 0.2
    jitter: float = 0.5
    sleep: Callable[[float], None] = time.sleep
    random: Callable[[], float] = random.random

    def wait_s(self, attempt: int) -> float:
        """How long to wait after this attempt, counted from 1: the usual time, plus or minus up to `jitter` of it."""
        usual = min(self.longest_wait_s, self.first_wait_s * 2.0 ** (attempt - 1))
        return usual * (1 + self.jitter * (2 * self.random() - 1))

    def retrying(self, *, on_retry: Callable[[RetryCallState], Any]) -> Retrying:
        """Call a function, and again on `Contention` only: waiting does not change other errors."""
        return Retrying(
            retry=retry_if_exception_type(Contention),
            stop=stop_after_attempt(self.limit + 1),
            wait=lambda state: self.wait_s(state.attempt_number),
            before_sleep=on_retry,
            sleep=self.sleep,
            reraise=True,
        )
