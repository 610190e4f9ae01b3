"""The values of metrics, held in memory until they are exported.

Adding a value takes about a microsecond. OpenTelemetry's instruments take ten to twenty, which is too much for code that
runs several times in each call to a store. Its data model and exporters are used where values leave the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

from skiway.telemetry.definitions import Metric

__all__ = ["BOUNDS", "MAX_SERIES", "Distribution", "Family", "Observation", "Point", "Series"]

BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)
"""Upper bounds of the histogram buckets, in seconds."""

MAX_SERIES = 5_000
OTHER = "other"

Tags = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values of a histogram: the count in each bucket of `BOUNDS`, plus one for larger values, and the sum."""

    buckets: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Point:
    """The value of a metric for one combination of tags, in the order of their declaration."""

    tags: Tags
    value: float | Distribution


class Series:
    """All values of one metric. Thread-safe."""

    __slots__ = ("_buckets", "_lock", "_values", "metric")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self._lock = Lock()
        self._values: dict[Tags, float] = {}
        self._buckets: dict[Tags, list[int]] = {}

    def add(self, tags: Tags, amount: float) -> bool:
        """Add to a counter or gauge. Returns False if these tags were counted under `other`."""
        with self._lock:
            known = tags in self._values or len(self._values) < MAX_SERIES
            key = tags if known else (OTHER,) * len(tags)
            self._values[key] = self._values.get(key, 0) + amount
        return known

    def set(self, tags: Tags, value: float) -> bool:
        """Set a gauge. Returns False if these tags were counted under `other`."""
        with self._lock:
            known = tags in self._values or len(self._values) < MAX_SERIES
            self._values[tags if known else (OTHER,) * len(tags)] = value
        return known

    def record(self, tags: Tags, value: float) -> bool:
        """Add a value to a histogram. Returns False if these tags were counted under `other`."""
        with self._lock:
            known = tags in self._buckets or len(self._buckets) < MAX_SERIES
            key = tags if known else (OTHER,) * len(tags)
            buckets = self._buckets.get(key)
            if buckets is None:
                buckets = self._buckets[key] = [0] * (len(BOUNDS) + 1)
            buckets[bisect_left(BOUNDS, value)] += 1
            self._values[key] = self._values.get(key, 0.0) + value
        return known

    def points(self) -> list[Point]:
        """The current values."""
        with self._lock:
            if self.metric.kind != "histogram":
                return [Point(tags, value) for tags, value in self._values.items()]
            return [Point(tags, Distribution(tuple(b), self._values[tags])) for tags, b in self._buckets.items()]


Observation = tuple[float, Mapping[str, str]]
"""A value with its tags."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its values."""

    metric: Metric
    points: list[Point]
