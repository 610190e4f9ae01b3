"""Counts and times of what a process does, as Prometheus reads them and as OTLP carries them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Protocol, Self

from skiway.config.telemetry import Telemetry
from skiway.errors import Internal
from skiway.telemetry import definitions
from skiway.telemetry.definitions import Metric
from skiway.telemetry.series import Distribution, Family, Observation, Series

__all__ = ["Metrics", "StoreCall", "store_calls"]

log = logging.getLogger(__name__)


class Metrics:
    """The metrics of a process. Switched off, every call returns at once.

    A tag that the metric does not declare is dropped and counted; with `strict`, it is an error.
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
        """As the settings say; with an OTLP endpoint, readings are delivered there until `close`."""
        metrics = cls(enabled=settings.metrics.enabled, strict=settings.metrics.strict)
        if metrics.enabled and settings.otlp.endpoint:
            from skiway.telemetry.otlp import Delivery  # heavy, and seldom needed

            metrics._on_close = Delivery(metrics.collect, settings).close
        return metrics

    def close(self) -> None:
        """Deliver what was not delivered yet, and stop."""
        self._on_close()

    def add(self, metric: Metric, amount: float = 1, /, **tags: str) -> None:
        """Add to a counter, or to a gauge, which may also go down."""
        if self.enabled:
            key = self._key(metric, tags)
            self._checked(metric, self.series(metric).add(key, amount))

    def set(self, metric: Metric, value: float, /, **tags: str) -> None:
        """Set a gauge."""
        if self.enabled:
            key = self._key(metric, tags)
            self._checked(metric, self.series(metric).set(key, value))

    def record(self, metric: Metric, seconds: float, /, **tags: str) -> None:
        """Add a time to a histogram."""
        if self.enabled:
            key = self._key(metric, tags)
            self._checked(metric, self.series(metric).record(key, seconds))

    def observe(self, metric: Metric, read: Callable[[], Iterable[Observation]]) -> None:
        """Ask `read` for values and their tags whenever metrics are collected."""
        with self._lock:
            self._observed.append((metric, read))

    def series(self, metric: Metric) -> Series:
        """The readings of a metric, for hot paths that make their keys themselves."""
        found = self._series.get(metric)
        if found is None:
            with self._lock:
                found = self._series.setdefault(metric, Series(metric))
        return found

    def collect(self) -> list[Family]:
        """Everything as it is now. An observer that fails leaves its metric out, and is logged."""
        with self._lock:
            observed, series = list(self._observed), list(self._series.values())
        for metric, read in observed:
            if fresh := self._fresh(metric, read):
                series.append(fresh)
        return [Family(each.metric, points) for each in series if (points := each.points())]

    def prometheus_text(self) -> str:
        """Everything as it is now, in Prometheus' text format."""
        from skiway.telemetry.prometheus import text

        return text(self.collect())

    def _fresh(self, metric: Metric, read: Callable[[], Iterable[Observation]]) -> Series | None:
        try:
            found = list(read())
        except Exception:  # one reading that fails must not hide the others
            log.exception("metric %s could not be read", metric.name)
            return None
        fresh = Series(metric)
        for value, tags in found:
            fresh.set(self._key(metric, dict(tags)), value)
        return fresh

    def _key(self, metric: Metric, tags: dict[str, str]) -> tuple[str, ...]:
        """The values of the declared tags, in their order; empties `tags` of them."""
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


class StoreCall(Protocol):
    """What a store tells of a call: `skiway.storage.StoreCall` is one."""

    @property
    def store(self) -> str:
        """Which store."""

    @property
    def operation(self) -> str:
        """What was called."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def error(self) -> str | None:
        """The class of the exception, if it failed."""


def store_calls(metrics: Metrics) -> Callable[[StoreCall], None] | None:
    """What `open_stores(..., on_call=)` takes to count and time every call; None where metrics are switched off."""
    if not metrics.enabled:
        return None
    errors = metrics.series(definitions.STORE_ERRORS).add
    latency = metrics.series(definitions.STORE_LATENCY)
    timed = latency.record
    # Every call is timed, so they need not be counted once more.
    metrics.observe(definitions.STORE_REQUESTS, lambda: _counts(latency))
    sizes = metrics.series(definitions.STORE_BYTES).add

    def on_call(call: StoreCall) -> None:
        key = (call.store, call.operation, call.error or "ok")
        timed(key, call.seconds)
        if call.error is not None:
            errors(key, 1)
        if size := getattr(call, "size_bytes", 0):
            sizes(key, size)

    return on_call


def _counts(series: Series) -> Iterator[Observation]:
    """How many values each series of a histogram holds."""
    for point in series.points():
        if isinstance(point.value, Distribution):
            yield point.value.count, dict(zip(series.metric.tags, point.tags, strict=True))
