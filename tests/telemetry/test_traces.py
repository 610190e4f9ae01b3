"""Spans belong to the caller's trace, describe the operation, and cost nothing when disabled."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from skiway.config.telemetry import Telemetry
from skiway.config.telemetry import Traces as TracesSettings
from skiway.telemetry.context import CallContext, serving
from skiway.telemetry.traces import Traces, current_span_ids, traceparent

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter: InMemorySpanExporter) -> Iterator[Traces]:
    started = start(exporter, ratio=1.0)
    yield started
    started.close()


def start(exporter: InMemorySpanExporter, ratio: float) -> Traces:
    settings = Telemetry(traces=TracesSettings(enabled=True, sample_ratio=ratio))
    return Traces.start(settings, processor=SimpleSpanProcessor(exporter))


def only(exporter: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exporter.get_finished_spans()
    return span


def test_span_has_component_operation_and_call(traces: Traces, exporter: InMemorySpanExporter):
    call = CallContext("c-1", account_id="acme", authorization={"authorization": "Bearer hunter2"})
    with serving(call), traces.span("rpc", "TableService/GetTable", headers={}):
        pass
    span = only(exporter)
    assert span.name == "rpc/TableService/GetTable"
    assert span.kind is SpanKind.SERVER
    assert dict(span.attributes or {}) == {
        "component": "rpc",
        "operation": "TableService/GetTable",
        "correlation_id": "c-1",
        "account_id": "acme",
    }
    assert span.resource.attributes["service.name"] == "skiway"


def test_trace_of_the_caller_is_continued(traces: Traces, exporter: InMemorySpanExporter):
    with traces.span("rpc", "Get", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}):
        ids, header = current_span_ids(), traceparent()
    span = only(exporter)
    assert span.parent is not None
    assert f"{span.parent.span_id:016x}" == PARENT
    assert ids == (TRACE, f"{span.context.span_id:016x}")
    assert header == f"00-{TRACE}-{ids[1]}-01"


@pytest.mark.parametrize("header", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"])
def test_malformed_header_starts_a_new_trace(traces: Traces, exporter: InMemorySpanExporter, header: str):
    with traces.span("rpc", "Get", headers={"traceparent": header}):
        pass
    assert only(exporter).parent is None
    assert f"{only(exporter).context.trace_id:032x}" != TRACE


def test_nested_span_is_a_child(traces: Traces, exporter: InMemorySpanExporter):
    with traces.span("rpc", "Get", headers={}), traces.span("store", "get"):
        pass
    inner, outer = exporter.get_finished_spans()
    assert inner.parent is not None
    assert inner.parent.span_id == outer.context.span_id
    assert inner.kind is SpanKind.INTERNAL


def test_error_is_recorded_in_the_span_without_its_message(traces: Traces, exporter: InMemorySpanExporter):
    with pytest.raises(KeyError), traces.span("rpc", "Get"):
        raise KeyError("password=hunter2")
    span = only(exporter)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "KeyError"
    assert "hunter2" not in span.to_json()


def test_trace_not_sampled_by_the_caller_is_not_sampled(traces: Traces, exporter: InMemorySpanExporter):
    with traces.span("rpc", "Get", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"}):
        assert (traceparent() or "").endswith("-00")
    assert exporter.get_finished_spans() == ()


def test_ratio_controls_how_many_traces_are_sampled(exporter: InMemorySpanExporter):
    never = start(exporter, ratio=0.0)
    with never.span("rpc", "Get", headers={}):
        pass
    assert exporter.get_finished_spans() == ()
    with never.span("rpc", "Get", headers={"traceparent": f"00-{TRACE}-{PARENT}-01"}):
        pass
    assert len(exporter.get_finished_spans()) == 1
    never.close()


def test_no_ids_outside_of_a_span(traces: Traces):
    assert traces.enabled
    assert current_span_ids() is None
    assert traceparent() is None


def test_disabled_tracing_creates_no_spans_and_imports_nothing():
    program = """
import sys
from skiway.config import Settings
from skiway.telemetry.traces import Traces, current_span_ids, traceparent
traces = Traces.start(Settings().telemetry)
with traces.span("rpc", "Get", headers={"traceparent": "x"}) as span:
    span.set(rows=1)
    assert current_span_ids() is None and traceparent() is None
assert not traces.enabled
traces.close()
print(*sys.modules)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "opentelemetry" not in run.stdout
