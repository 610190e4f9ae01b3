"""Spans of what is done for a call, in the trace that the caller began or in one of their own.

Off by default, and then nothing is imported, made or sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Self

from skiway.config.telemetry import Telemetry
from skiway.telemetry.context import call_facts, current_call

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span as OpenSpan
    from opentelemetry.trace import SpanContext, Tracer


class Span:
    """A span that is open; without a tracer, calls on it do nothing."""

    def __init__(self, span: OpenSpan | None = None) -> None:
        self._span = span

    def set(self, **attributes: str | int) -> None:
        """Add attributes; empty ones are left out."""
        if self._span is not None:
            for name, value in attributes.items():
                if value != "":
                    self._span.set_attribute(name, value)

    def end(self, name: str, attributes: Mapping[str, str | int]) -> None:
        """Add what is known at the end: the final name, and more attributes."""
        if self._span is not None:
            self._span.update_name(name)
            self._span.set_attribute("operation", name.rpartition("/")[2])
            self.set(**attributes)


_NO_SPAN = nullcontext(Span())
_current: Callable[[], SpanContext] | None = None


class Traces:
    """Makes spans. Without a tracer it makes none."""

    def __init__(self, tracer: Tracer | None = None, *, on_close: Callable[[], None] = lambda: None) -> None:
        self._tracer = tracer
        self._on_close = on_close

    @classmethod
    def start(cls, settings: Telemetry, *, processor: SpanProcessor | None = None) -> Self:
        """As the settings say; spans go to `processor`, or else to the OTLP endpoint if there is one."""
        if not settings.traces.enabled:
            return cls()
        tracer, shutdown = _provided(settings, processor)
        return cls(tracer, on_close=shutdown)

    @property
    def enabled(self) -> bool:
        """Whether spans are made."""
        return self._tracer is not None

    def close(self) -> None:
        """Deliver what was not delivered yet, and stop."""
        self._on_close()

    def span(
        self, component: str, operation: str, *, headers: Mapping[str, str] | None = None
    ) -> AbstractContextManager[Span]:
        """A span around a block, current inside it. The caller's trace is taken from `headers`, by `traceparent`.

        An exception marks the span with its class; its message, which may hold anything, is left out.
        """
        return _NO_SPAN if self._tracer is None else _span(self._tracer, component, operation, headers)


def current_span_ids() -> tuple[str, str] | None:
    """Trace id and span id of the current span, in hex."""
    if _current is None:
        return None
    context = _current()
    return (f"{context.trace_id:032x}", f"{context.span_id:016x}") if context.is_valid else None


def traceparent() -> str | None:
    """The header that carries the current trace to a service called now."""
    if _current is None or (ids := current_span_ids()) is None:
        return None
    return f"00-{ids[0]}-{ids[1]}-{int(_current().trace_flags):02x}"


def _provided(settings: Telemetry, processor: SpanProcessor | None) -> tuple[Tracer, Callable[[], None]]:
    from opentelemetry import trace
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    from skiway.telemetry.otlp import resource

    global _current
    _current = lambda: trace.get_current_span().get_span_context()  # noqa: E731
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(settings.traces.sample_ratio)),
        resource=resource(settings.service_name),
        shutdown_on_exit=False,
    )
    if processor := processor or _delivering(settings):
        provider.add_span_processor(processor)
    return provider.get_tracer("skiway"), provider.shutdown


def _delivering(settings: Telemetry) -> SpanProcessor | None:
    if settings.otlp.endpoint is None:
        return None
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    from skiway.telemetry.otlp import span_exporter

    return BatchSpanProcessor(span_exporter(settings.otlp))


@contextmanager
def _span(tracer: Tracer, component: str, operation: str, headers: Mapping[str, str] | None) -> Iterator[Span]:
    from opentelemetry.trace import SpanKind, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    parent = TraceContextTextMapPropagator().extract(headers) if headers else None
    facts = {**call_facts(current_call()), "component": component, "operation": operation}
    with tracer.start_as_current_span(
        f"{component}/{operation}",
        context=parent,
        kind=SpanKind.INTERNAL if headers is None else SpanKind.SERVER,
        attributes=facts,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield Span(span)
        except BaseException as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(StatusCode.ERROR)
            raise
