"""An OTLP receiver on loopback gets metrics and spans."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from skiway.config.fields import Secret
from skiway.config.telemetry import Otlp, Telemetry
from skiway.config.telemetry import Traces as TracesSettings
from skiway.telemetry import definitions
from skiway.telemetry.definitions import BOUNDS
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces
from telemetry.otlp_receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    started = Receiver()
    yield started
    started.close()


def settings(endpoint: str, *, every: timedelta = timedelta(hours=1)) -> Telemetry:
    return Telemetry(
        service_name="lake-1",
        traces=TracesSettings(enabled=True),
        otlp=Otlp(
            endpoint=endpoint, headers=Secret("Authorization=Bearer t,x-b = c"), timeout_seconds=5, metrics_every=every
        ),
    )


def test_receiver_gets_the_metrics_on_close(receiver: Receiver):
    metrics = Metrics.start(settings(receiver.endpoint))
    metrics.add(definitions.GC_REMOVED, 3, collector="cas")
    metrics.set(definitions.TASK_ENABLED, 1, task="gc")
    for seconds in (0.0004, 0.3, 1000):
        metrics.record(definitions.GC_PAUSE, seconds, collector="cas")
    metrics.close()
    path, headers, body = receiver.received.get(timeout=200)
    assert (path, headers["authorization"], headers["x-b"]) == ("/v1/metrics", "Bearer t", "c")
    (sent,) = ExportMetricsServiceRequest.FromString(body).resource_metrics
    attributes = {each.key: each.value.string_value for each in sent.resource.attributes}
    assert attributes["service.name"] == "lake-1"
    found = {each.name: each for each in sent.scope_metrics[0].metrics}

    removed = found["skiway.core.gc.removed"]
    assert removed.sum.is_monotonic
    (point,) = removed.sum.data_points
    assert (point.as_double or point.as_int) == 3
    assert {each.key: each.value.string_value for each in point.attributes} == {"collector": "cas"}
    assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    (point,) = found["skiway.core.task.enabled"].gauge.data_points
    assert (point.as_double or point.as_int) == 1
    pause = found["skiway.core.gc.pause"]
    (distribution,) = pause.histogram.data_points
    assert (pause.unit, distribution.count, distribution.sum) == ("s", 3, pytest.approx(1000.3004))
    assert tuple(distribution.explicit_bounds) == BOUNDS
    assert len(distribution.bucket_counts) == len(BOUNDS) + 1
    assert (distribution.bucket_counts[0], distribution.bucket_counts[-1], sum(distribution.bucket_counts)) == (1, 1, 3)
    assert not distribution.HasField("min")


def test_metrics_are_delivered_periodically(receiver: Receiver):
    metrics = Metrics.start(settings(receiver.endpoint, every=timedelta(milliseconds=20)))
    metrics.add(definitions.GC_REMOVED, collector="cas")
    for _ in range(3):
        assert receiver.received.get(timeout=200)[0] == "/v1/metrics"
    metrics.close()


def test_receiver_gets_the_spans(receiver: Receiver):
    traces = Traces.start(settings(f"{receiver.endpoint}/"))
    with traces.span("rpc", "Get", headers={}):
        pass
    traces.close()
    path, headers, body = receiver.received.get(timeout=200)
    assert (path, headers["authorization"]) == ("/v1/traces", "Bearer t")
    (sent,) = ExportTraceServiceRequest.FromString(body).resource_spans
    (span,) = sent.scope_spans[0].spans
    assert span.name == "rpc/Get"
    assert {each.key: each.value.string_value for each in span.attributes} == {"component": "rpc", "operation": "Get"}


def test_unreachable_receiver_does_not_raise(receiver: Receiver, caplog: pytest.LogCaptureFixture):
    unreachable = Otlp(endpoint="http://127.0.0.1:1", timeout_seconds=0.2)
    metrics = Metrics.start(Telemetry(otlp=unreachable))
    metrics.add(definitions.GC_REMOVED, collector="cas")
    with caplog.at_level(logging.ERROR):
        metrics.close()
    assert "skiway_core_gc_removed_total" in metrics.prometheus_text()
    assert any("Failed to export" in message for message in caplog.messages)
