"""Readings as Prometheus' text format says them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from skiway.telemetry.definitions import Metric
from skiway.telemetry.series import BOUNDS, Distribution, Family, Point

__all__ = ["prometheus_name", "text"]

SUFFIX = {"1": "", "ms": "", "s": "_seconds", "By": "_bytes"}


def text(families: Iterable[Family]) -> str:
    """All readings, with `# HELP` and `# TYPE`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Given(families))
    return generate_latest(registry).decode()


def prometheus_name(metric: Metric) -> str:
    """The metric's name there, without the `_total` of counters: `skiway_core_rpc_latency_seconds`."""
    name, suffix = metric.name.replace(".", "_").removesuffix("_total"), SUFFIX[metric.unit]
    return name if name.endswith(suffix) else name + suffix


class _Given(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[PrometheusMetric]:
        return map(_family, self._families)

    def describe(self) -> Iterable[PrometheusMetric]:
        return ()


def _family(family: Family) -> PrometheusMetric:
    metric = family.metric
    name, tags = prometheus_name(metric), metric.tags
    match metric.kind:
        case "counter":
            counter = CounterMetricFamily(name, metric.description, labels=tags)
            for point in family.points:
                counter.add_metric(point.tags, _number(point))
            return counter
        case "gauge":
            gauge = GaugeMetricFamily(name, metric.description, labels=tags)
            for point in family.points:
                gauge.add_metric(point.tags, _number(point))
            return gauge
        case "histogram":
            histogram = HistogramMetricFamily(name, metric.description, labels=tags)
            for point in family.points:
                found = _distribution(point)
                histogram.add_metric(point.tags, buckets=list(_cumulated(found)), sum_value=found.total)
            return histogram


def _number(point: Point) -> float:
    assert not isinstance(point.value, Distribution)
    return point.value


def _distribution(point: Point) -> Distribution:
    assert isinstance(point.value, Distribution)
    return point.value


def _cumulated(found: Distribution) -> Iterator[tuple[str, float]]:
    below = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), found.buckets, strict=True):
        below += count
        yield bound, below
