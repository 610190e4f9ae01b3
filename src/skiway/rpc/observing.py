"""What is told of every call: a span, a line in the log where it failed by our fault, metrics, the audit trail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

import grpc

from skiway.errors import Internal, SkiwayError
from skiway.rpc.calls import Call, Handler
from skiway.rpc.methods import Method
from skiway.rpc.status import code_of, disclosed
from skiway.telemetry import definitions
from skiway.telemetry.audit import AuditEntry, AuditLog
from skiway.telemetry.context import serving
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces

__all__ = ["audited", "counted", "logged", "retry_counter", "traced"]

OK: Final = grpc.StatusCode.OK


def traced(inner: Handler, traces: Traces | None) -> Handler:
    """A span around each call, in the caller's trace if there is one."""
    if traces is None or not traces.enabled:
        return inner

    def handle(call: Call, request: object) -> bytes:
        with traces.span(*_where(call.method), headers=call.headers):
            return inner(call, request)

    return handle


def logged(inner: Handler, log: logging.Logger) -> Handler:
    """Log in full what is the server's fault: callers are told nothing of it but where to look."""

    def handle(call: Call, request: object) -> bytes:
        try:
            return inner(call, request)
        except Exception as error:
            if disclosed(error) is None:
                with serving(call.context):
                    log.error("%s failed", call.method.operation, exc_info=error)
            raise

    return handle


def counted(inner: Handler, metrics: Metrics) -> Handler:
    """Count and time calls, by account, service, method and outcome."""
    if not metrics.enabled:
        return inner
    active = metrics.series(definitions.RPC_ACTIVE).add
    requests = metrics.series(definitions.RPC_REQUESTS).add
    errors = metrics.series(definitions.RPC_ERRORS).add
    latency = metrics.series(definitions.RPC_LATENCY).record

    def handle(call: Call, request: object) -> bytes:
        where, status, started = _where(call.method), OK, time.perf_counter()
        active(where, 1)
        try:
            return inner(call, request)
        except Exception as error:
            status = code_of(error)
            raise
        finally:
            key = (call.context.account_id, *where, status.name)
            active(where, -1)
            requests(key, 1)
            latency(key, time.perf_counter() - started)
            if status is not OK:
                errors(key, 1)

    return handle


def retry_counter(metrics: Metrics) -> Callable[[Call], None]:
    """What to call before every attempt but the first."""

    def count(call: Call) -> None:
        component, operation = _where(call.method)
        metrics.add(definitions.RPC_RETRIES, component=component, operation=operation)

    return count


def audited(inner: Handler, audit: AuditLog | None) -> Handler:
    """Record each call before its answer leaves, also one that is refused."""
    if audit is None:
        return inner

    def handle(call: Call, request: object) -> bytes:
        started = time.perf_counter()
        try:
            answer = inner(call, request)
        except Exception as error:
            _record(audit, call, _outcome(error), time.perf_counter() - started)
            raise
        _record(audit, call, OK.name, time.perf_counter() - started)
        return answer

    return handle


def _record(audit: AuditLog, call: Call, outcome: str, duration_s: float) -> None:
    with serving(call.context):  # which says by now who called
        audit.record(
            call.method.service.category, AuditEntry(call.method.operation, outcome, duration_s, call.resources)
        )


def _outcome(error: Exception) -> str:
    return error.code if isinstance(error, SkiwayError) else Internal.code


def _where(method: Method) -> tuple[str, str]:
    """Component and operation, as telemetry calls them."""
    return method.service.name, method.name
