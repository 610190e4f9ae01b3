"""Metrics in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as PrometheusMetric
from prometheus_client.registry import Collector

from skiway.telemetry.definitions import BOUNDS, Distribution, Family, Metric, Point, prometheus_name


def text(sources: Mapping[str, Iterable[Family]], *, label: str = "") -> str:
    """The text of all families, with `# HELP` and `# TYPE`. With a `label`, it names the source of each value."""
    points: dict[Metric, list[Point]] = {}
    for source, families in sources.items():
        for family in families:
            labelled = (Point((*point.tags, source), point.value) for point in family.points)
            points.setdefault(family.metric, []).extend(labelled if label else family.points)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Families([Family(metric, found) for metric, found in points.items()], label))
    return generate_latest(registry).decode()


class _Families(Collector):
    """The families as a collector, which is what a registry takes."""

    def __init__(self, families: Iterable[Family], label: str) -> None:
        self._families, self._label = families, label

    def collect(self) -> Iterator[PrometheusMetric]:
        return (_family(family, self._label) for family in self._families)

    def describe(self) -> Iterable[PrometheusMetric]:
        return ()


def _family(family: Family, label: str) -> PrometheusMetric:
    metric = family.metric
    name, tags = prometheus_name(metric), (*metric.tags, label) if label else metric.tags
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
                histogram.add_metric(point.tags, buckets=list(_cumulative(found)), sum_value=found.total)
            return histogram


def _number(point: Point) -> float:
    assert not isinstance(point.value, Distribution)
    return point.value


def _distribution(point: Point) -> Distribution:
    assert isinstance(point.value, Distribution)
    return point.value


def _cumulative(found: Distribution) -> Iterator[tuple[str, float]]:
    below = 0
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), found.buckets, strict=True):
        below += count
        yield bound, below
