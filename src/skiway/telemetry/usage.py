"""How much accounts store: pointers counted, bytes estimated from a sample of blobs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from threading import Lock

from skiway.config.metastore import StorageUsage
from skiway.telemetry.definitions import ACCOUNT_BYTES, ACCOUNT_POINTERS
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.series import Observation

__all__ = ["Stored", "Usage", "observe_usage"]


@dataclass(frozen=True, slots=True)
class Stored:
    """What is asked of the stores: the accounts, how many pointers one has, and the sizes of its blobs, lazily."""

    accounts: Callable[[], Iterable[str]]
    pointers: Callable[[str], int]
    blob_sizes: Callable[[str], Iterable[int]]


@dataclass(frozen=True, slots=True)
class Usage:
    """What an account stores."""

    account: str
    pointers: int
    bytes: float


def observe_usage(
    metrics: Metrics, stored: Stored, settings: StorageUsage, *, monotonic: Callable[[], float] = time.monotonic
) -> None:
    """Let `metrics` tell what accounts store, asking the stores at most once in `metrics.storage.refresh`."""
    estimates = _Estimates(stored, settings, monotonic)
    metrics.observe(ACCOUNT_POINTERS, lambda: estimates.observations(lambda usage: usage.pointers))
    metrics.observe(ACCOUNT_BYTES, lambda: estimates.observations(lambda usage: usage.bytes))


class _Estimates:
    """Estimates that are made anew when they are too old."""

    def __init__(self, stored: Stored, settings: StorageUsage, monotonic: Callable[[], float]) -> None:
        self._stored = stored
        self._settings = settings
        self._monotonic = monotonic
        self._lock = Lock()
        self._made_at = float("-inf")
        self._usages: list[Usage] = []

    def observations(self, value: Callable[[Usage], float]) -> Iterator[Observation]:
        return ((value(usage), {"account": usage.account}) for usage in self._fresh())

    def _fresh(self) -> list[Usage]:
        with self._lock:
            if self._monotonic() - self._made_at >= self._settings.refresh.total_seconds():
                self._usages = [self._estimate(account) for account in self._stored.accounts()]
                self._made_at = self._monotonic()
            return self._usages

    def _estimate(self, account: str) -> Usage:
        """Bytes are the number of pointers times the mean size of the sampled blobs."""
        pointers = self._stored.pointers(account)
        sample = list(islice(self._stored.blob_sizes(account), self._settings.sample_max))
        mean = sum(sample) / len(sample) if sample else self._settings.default_avg_bytes
        return Usage(account, pointers, pointers * mean)
