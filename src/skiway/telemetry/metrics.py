"""The metrics of a process, for Prometheus and OTLP, and the functions that feed them from stores and caches.

`Metrics` holds the values. `store_calls` counts and times calls to the stores, `observe_caches` reads cache statistics, and
`observe_usage` estimates the storage used by each account.

Adding a value takes about a microsecond. OpenTelemetry's instruments take ten to twenty, which is too much for code that
runs several times in each call to a store. Its data model and exporters are used where values leave the process.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from threading import Lock
from typing import TYPE_CHECKING, Protocol, Self

from skiway.config.metastore import StorageUsage
from skiway.config.telemetry import Telemetry
from skiway.errors import Internal
from skiway.telemetry import definitions
from skiway.telemetry.definitions import BOUNDS, Distribution, Family, Metric, Observation, Point, Tags, prometheus_name

if TYPE_CHECKING:
    from prometheus_client.core import Metric as PrometheusMetric

    from skiway.foundation.cache import CacheStats

log = logging.getLogger(__name__)


MAX_SERIES = 5_000
OTHER = "other"


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


class Metrics:
    """The metrics of a process. If disabled, every method returns immediately.

    An undeclared tag is dropped and counted; with `strict`, it is an error.
    """

    def __init__(self, *, enabled: bool = True, strict: bool = False) -> None:
        self.enabled = enabled
        self._strict = strict
        self._lock = Lock()
        self._series: dict[Metric, Series] = {}
        self._observed: list[tuple[Metric, Callable[[], Iterable[Observation]]]] = []
        self._on_close: Callable[[], None] = lambda: None

    @classmethod
    def start(cls, settings: Telemetry) -> Self:
        """The metrics as configured; if there is an OTLP endpoint, they are exported until `close`."""
        metrics = cls(enabled=settings.metrics.enabled, strict=settings.metrics.strict)
        if metrics.enabled and settings.otlp.endpoint:
            from skiway.telemetry.otlp import MetricsExport  # slow to import, and rarely needed

            metrics._on_close = MetricsExport(metrics.collect, settings).close
        return metrics

    def close(self) -> None:
        """Export the latest values, then stop exporting."""
        self._on_close()

    def add(self, metric: Metric, amount: float = 1, /, **tags: str) -> None:
        """Add to a counter or gauge. The amount may be negative for a gauge."""
        if self.enabled:
            self._checked(metric, self.series(metric).add(self._key(metric, tags), amount))

    def set(self, metric: Metric, value: float, /, **tags: str) -> None:
        """Set a gauge."""
        if self.enabled:
            self._checked(metric, self.series(metric).set(self._key(metric, tags), value))

    def record(self, metric: Metric, seconds: float, /, **tags: str) -> None:
        """Add a duration to a histogram."""
        if self.enabled:
            self._checked(metric, self.series(metric).record(self._key(metric, tags), seconds))

    def observe(self, metric: Metric, read: Callable[[], Iterable[Observation]]) -> None:
        """Call `read` for the values and tags of a metric whenever metrics are collected."""
        with self._lock:
            self._observed.append((metric, read))

    def series(self, metric: Metric) -> Series:
        """The values of a metric, for hot paths that build their tag tuples themselves."""
        series = self._series.get(metric)
        if series is None:
            with self._lock:
                series = self._series.setdefault(metric, Series(metric))
        return series

    def collect(self) -> list[Family]:
        """All current values. If an observer fails, its metric is omitted and the error is logged."""
        with self._lock:
            observed, series = list(self._observed), list(self._series.values())
        series += filter(None, (self._observation(metric, read) for metric, read in observed))
        families: dict[Metric, list[Point]] = {}  # several observers may report values of one metric
        for one in series:
            families.setdefault(one.metric, []).extend(one.points())
        return [Family(metric, points) for metric, points in families.items() if points]

    def prometheus_text(self, others: Mapping[str, Iterable[Family]] | None = None) -> str:
        """All current values in the Prometheus text format.

        With the values of `others`, which are processes of the same server, each has the label `process`; this one is 0.
        """
        if others:
            return _prometheus_text({"0": self.collect(), **others}, label="process")
        return _prometheus_text({"": self.collect()})

    def _observation(self, metric: Metric, read: Callable[[], Iterable[Observation]]) -> Series | None:
        try:
            observations = list(read())
        except Exception:  # one failing observer must not hide the other metrics
            log.exception("metric %s could not be read", metric.name)
            return None
        series = Series(metric)
        for value, tags in observations:
            series.set(self._key(metric, dict(tags)), value)
        return series

    def _key(self, metric: Metric, tags: dict[str, str]) -> tuple[str, ...]:
        """The values of the declared tags, in their order. Removes them from `tags`."""
        key = tuple([tags.pop(name, "") for name in metric.tags])
        if tags:
            self._undeclared(metric, tags)
        return key

    def _undeclared(self, metric: Metric, tags: Mapping[str, str]) -> None:
        if self._strict:
            raise Internal(
                f"metric {metric.name} has no tag {', '.join(sorted(tags))}: it has {', '.join(metric.tags)}",
                key="metric.tag",
            )
        self.series(definitions.DROPPED_TAGS).add((metric.name,), len(tags))

    def _checked(self, metric: Metric, had_room: bool) -> None:
        if not had_room:
            self.series(definitions.DROPPED_SERIES).add((metric.name,), 1)


def _prometheus_text(sources: Mapping[str, Iterable[Family]], *, label: str = "") -> str:
    """The text of all families, with `# HELP` and `# TYPE`. With a `label`, it names the source of each value."""
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.registry import Collector

    points: dict[Metric, list[Point]] = {}
    for source, families in sources.items():
        for family in families:
            labelled = (Point((*point.tags, source), point.value) for point in family.points)
            points.setdefault(family.metric, []).extend(labelled if label else family.points)

    class Families(Collector):
        def collect(self) -> Iterator[PrometheusMetric]:
            return (_prometheus_family(Family(metric, values), label) for metric, values in points.items())

        def describe(self) -> Iterable[PrometheusMetric]:
            return ()

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Families())
    return generate_latest(registry).decode()


def _prometheus_family(family: Family, label: str) -> PrometheusMetric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    metric = family.metric
    name, tags = prometheus_name(metric), (*metric.tags, label) if label else metric.tags
    match metric.kind:
        case "counter":
            counter = CounterMetricFamily(name, metric.description, labels=tags)
            for point in family.points:
                counter.add_metric(point.tags, point.number)
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(name, metric.description, labels=tags)
            for point in family.points:
                gauge.add_metric(point.tags, point.number)
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(name, metric.description, labels=tags)
            for point in family.points:
                buckets = list(_cumulative(point.distribution))
                histogram.add_metric(point.tags, buckets=buckets, sum_value=point.distribution.total)
            return histogram


def _cumulative(distribution: Distribution) -> Iterator[tuple[str, float]]:
    return zip((*map(str, BOUNDS), "+Inf"), accumulate(distribution.buckets), strict=True)


class StoreCall(Protocol):
    """A finished call to a store, such as `skiway.storage.StoreCall`."""

    @property
    def store(self) -> str:
        """The store: `pointers` or `blobs`."""

    @property
    def operation(self) -> str:
        """The method that was called."""

    @property
    def seconds(self) -> float:
        """The duration."""

    @property
    def error(self) -> str | None:
        """The class name of the exception, or None if the call succeeded."""

    @property
    def size_bytes(self) -> int:
        """The bytes of blobs read or written; 0 for other calls."""


def store_calls(metrics: Metrics) -> Callable[[StoreCall], None] | None:
    """An `on_call` argument for `open_stores` that counts and times every call; None if metrics are disabled."""
    if not metrics.enabled:
        return None
    errors = metrics.series(definitions.STORE_ERRORS).add
    latency = metrics.series(definitions.STORE_LATENCY)
    timed = latency.record
    # Every call is timed, so the histogram's counts are the numbers of calls.
    metrics.observe(definitions.STORE_REQUESTS, lambda: _counts(latency))
    sizes = metrics.series(definitions.STORE_BYTES).add

    def on_call(call: StoreCall) -> None:
        key = (call.store, call.operation, call.error or "ok")
        timed(key, call.seconds)
        if call.error is not None:
            errors(key, 1)
        if call.size_bytes:
            sizes(key, call.size_bytes)

    return on_call


def _counts(series: Series) -> Iterator[Observation]:
    """The number of values in each series of a histogram."""
    for point in series.points():
        yield point.distribution.count, dict(zip(series.metric.tags, point.tags, strict=True))


def observe_caches(metrics: Metrics, caches: Mapping[str, Callable[[], CacheStats]]) -> None:
    """Export the statistics of these caches, by name. The weight of their entries is in bytes."""
    values: dict[Metric, Callable[[CacheStats], float | None]] = {
        definitions.CACHE_ENTRIES: lambda cache: cache.entries,
        definitions.CACHE_MAX_ENTRIES: lambda cache: cache.max_entries,
        definitions.CACHE_WEIGHT: lambda cache: cache.weight,
        definitions.CACHE_MAX_WEIGHT: lambda cache: cache.max_weight,
        definitions.CACHE_HITS: lambda cache: cache.hits,
        definitions.CACHE_MISSES: lambda cache: cache.misses,
        definitions.CACHE_ERRORS: lambda cache: cache.errors,
    }

    def read(value: Callable[[CacheStats], float | None]) -> Iterator[Observation]:
        for name, statistics in caches.items():
            if (number := value(statistics())) is not None:
                yield number, {"cache": name}

    for metric, value in values.items():
        metrics.observe(metric, partial(read, value))


@dataclass(frozen=True, slots=True)
class Stored:
    """Access to the stores: all accounts, the number of pointers of an account, and the sizes of its blobs, lazily."""

    accounts: Callable[[], Iterable[str]]
    pointers: Callable[[str], int]
    blob_sizes: Callable[[str], Iterable[int]]


def observe_usage(
    metrics: Metrics, stored: Stored, settings: StorageUsage, *, monotonic: Callable[[], float] = time.monotonic
) -> None:
    """Export the storage used by each account. The stores are read at most once per `metrics.storage.refresh`."""
    estimates = _Estimates(stored, settings, monotonic)
    for metric in (definitions.ACCOUNT_POINTERS, definitions.ACCOUNT_BYTES):
        metrics.observe(metric, partial(estimates.observations, metric))


class _Estimates:
    """Cached estimates of each account's storage."""

    def __init__(self, stored: Stored, settings: StorageUsage, monotonic: Callable[[], float]) -> None:
        self._stored = stored
        self._settings = settings
        self._monotonic = monotonic
        self._lock = Lock()
        self._estimated_at = float("-inf")
        self._usages: dict[str, dict[Metric, float]] = {}

    def observations(self, metric: Metric) -> Iterator[Observation]:
        return ((usage[metric], {"account": account}) for account, usage in self._current().items())

    def _current(self) -> dict[str, dict[Metric, float]]:
        with self._lock:
            if self._monotonic() - self._estimated_at >= self._settings.refresh.total_seconds():
                self._usages = {account: self._estimate(account) for account in self._stored.accounts()}
                self._estimated_at = self._monotonic()
            return self._usages

    def _estimate(self, account: str) -> dict[Metric, float]:
        """The number of pointers, and that number times the mean size of the sampled blobs."""
        pointers = self._stored.pointers(account)
        sample = list(islice(self._stored.blob_sizes(account), self._settings.sample_max))
        mean = sum(sample) / len(sample) if sample else self._settings.default_avg_bytes
        return {definitions.ACCOUNT_POINTERS: pointers, definitions.ACCOUNT_BYTES: pointers * mean}
