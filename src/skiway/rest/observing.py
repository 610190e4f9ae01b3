"""What is told of every call: metrics, the audit trail, a line in the log where it failed by our fault."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from skiway.errors import Internal, SkiwayError
from skiway.rest.calls import Answer, Call
from skiway.rest.errors import disclosed, failed
from skiway.telemetry import definitions
from skiway.telemetry.audit import AuditEntry, AuditLog
from skiway.telemetry.context import serving
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces

__all__ = ["Observers"]

COMPONENT = "IcebergRest"

log = logging.getLogger("skiway.rest")


@dataclass(frozen=True, slots=True)
class Observers:
    """Who is told; any of them may be missing."""

    metrics: Metrics | None = None
    traces: Traces | None = None
    audit: AuditLog | None = None

    def observed(self, call: Call, act: Callable[[], Answer]) -> Answer:
        """What `act` answers, errors included; told before it leaves."""
        started = time.perf_counter()
        answer, outcome = self._outcome(call, act)
        taken = time.perf_counter() - started
        if self.audit is not None:
            try:
                with serving(call.context):
                    self.audit.record(call.route.category, AuditEntry(call.context.operation, outcome, taken))
            except SkiwayError as error:  # where the trail is required, what cannot be told is not answered
                answer = failed(error, call.context.correlation_id)
        self._count(call, answer, taken)
        return answer

    def _outcome(self, call: Call, act: Callable[[], Answer]) -> tuple[Answer, str]:
        try:
            with serving(call.context):
                if self.traces is None:
                    return act(), call.outcome
                with self.traces.span(COMPONENT, call.route.name, headers=call.headers):
                    return act(), call.outcome
        except Exception as error:
            if disclosed(error) is None:
                with serving(call.context):
                    log.error("%s failed", call.context.operation, exc_info=error)
            code = error.code if isinstance(error, SkiwayError) else Internal.code
            return failed(error, call.context.correlation_id), code

    def _count(self, call: Call, answer: Answer, taken: float) -> None:
        if self.metrics is None or not self.metrics.enabled:
            return
        status = "OK" if answer.status < 400 else str(answer.status)
        key = (call.context.account_id, COMPONENT, call.route.name, status)
        self.metrics.series(definitions.RPC_REQUESTS).add(key, 1)
        self.metrics.series(definitions.RPC_LATENCY).record(key, taken)
        if answer.status >= 400:
            self.metrics.series(definitions.RPC_ERRORS).add(key, 1)
