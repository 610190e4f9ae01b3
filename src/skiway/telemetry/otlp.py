"""Export of metrics and spans by OTLP over HTTP. Imported only if an endpoint is configured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from threading import Event, Thread
from typing import cast

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Metric as OtlpMetric
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from skiway import __version__
from skiway.config.telemetry import Otlp, Telemetry
from skiway.telemetry.definitions import BOUNDS, Family, Point

CUMULATIVE = AggregationTemporality.CUMULATIVE


def resource(service_name: str) -> Resource:
    """The resource that identifies this process."""
    return Resource.create({"service.name": service_name, "service.version": __version__})


def span_exporter(settings: Otlp) -> OTLPSpanExporter:
    """The exporter of spans."""
    return OTLPSpanExporter(
        endpoint=f"{_base(settings)}/v1/traces", headers=_headers(settings), timeout=settings.timeout_seconds
    )


class MetricsExport:
    """Exports all metrics periodically, on a thread of its own, and once more when it is closed."""

    def __init__(self, collect: Callable[[], list[Family]], settings: Telemetry) -> None:
        self._collect = collect
        self._resource = resource(settings.service_name)
        self._started_ns = time.time_ns()
        self._exporter = OTLPMetricExporter(
            endpoint=f"{_base(settings.otlp)}/v1/metrics",
            headers=_headers(settings.otlp),
            timeout=settings.otlp.timeout_seconds,
        )
        self._every_s = settings.otlp.metrics_every.total_seconds()
        self._stop = Event()
        self._thread = Thread(target=self._run, name="skiway-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Export once more, then stop."""
        self._stop.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self._export()
        self._export()

    def _export(self) -> None:
        """Export all metrics. The exporter logs a failure; values are cumulative, so the next export makes up for it."""
        families = self._collect()
        if families:
            self._exporter.export(self._data(families))

    def _data(self, families: Iterable[Family]) -> MetricsData:
        now = time.time_ns()
        metrics = [_metric(family, self._started_ns, now) for family in families]
        scope = ScopeMetrics(InstrumentationScope("skiway", __version__), metrics, "")
        return MetricsData([ResourceMetrics(self._resource, [scope], "")])


def _base(settings: Otlp) -> str:
    assert settings.endpoint is not None
    return settings.endpoint.rstrip("/")


def _headers(settings: Otlp) -> dict[str, str]:
    text = settings.headers.reveal() if settings.headers else ""
    pairs = (pair.partition("=") for pair in text.split(",") if "=" in pair)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _metric(family: Family, started_ns: int, now_ns: int) -> OtlpMetric:
    metric, data = family.metric, _data(family, started_ns, now_ns)
    return OtlpMetric(metric.name, metric.description, metric.unit, data)


def _data(family: Family, started_ns: int, now_ns: int) -> Sum | Gauge | Histogram:
    tags = family.metric.tags
    match family.metric.kind:
        case "counter":
            points = [_number(point, tags, started_ns, now_ns) for point in family.points]
            return Sum(points, aggregation_temporality=CUMULATIVE, is_monotonic=True)
        case "gauge":
            return Gauge([_number(point, tags, started_ns, now_ns) for point in family.points])
        case "histogram":
            distributions = [_distribution(point, tags, started_ns, now_ns) for point in family.points]
            return Histogram(distributions, aggregation_temporality=CUMULATIVE)


def _number(point: Point, tags: tuple[str, ...], started_ns: int, now_ns: int) -> NumberDataPoint:
    return NumberDataPoint(dict(zip(tags, point.tags, strict=True)), started_ns, now_ns, point.number)


def _distribution(point: Point, tags: tuple[str, ...], started_ns: int, now_ns: int) -> HistogramDataPoint:
    return HistogramDataPoint(
        attributes=dict(zip(tags, point.tags, strict=True)),
        start_time_unix_nano=started_ns,
        time_unix_nano=now_ns,
        count=point.distribution.count,
        sum=point.distribution.total,
        bucket_counts=point.distribution.buckets,
        explicit_bounds=BOUNDS,
        min=cast(float, None),  # not recorded; None omits the field from the message
        max=cast(float, None),
    )
