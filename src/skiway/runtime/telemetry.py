"""The telemetry of a process as configured: logs, metrics, traces, the audit log; and the metrics of its parts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from skiway.config import Settings, replaced, without_effect
from skiway.config.metastore import StorageUsage
from skiway.metastore import platform
from skiway.metastore.jobs.attempts import Attempt
from skiway.metastore.jobs.queue import JobQueue
from skiway.request_path import Observers
from skiway.runtime.gc.schedule import Sweep, Tick
from skiway.storage import Stores
from skiway.telemetry import definitions, logs
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.metrics import Metrics, Stored, observe_usage
from skiway.telemetry.traces import Traces

log = logging.getLogger("skiway.runtime")


@contextmanager
def observing(settings: Settings) -> Iterator[Observers]:
    """Collect telemetry for the duration of the block; pending data is written or sent at its end."""
    with ExitStack() as parts:
        parts.enter_context(logging_as_configured(settings))
        metrics = parts.enter_context(measuring(settings))
        traces = Traces.start(settings.telemetry)
        parts.callback(traces.close)
        audit = AuditLog.open(settings.audit, metrics=metrics)
        if audit is not None:
            parts.callback(audit.close)
        yield Observers(metrics, traces, audit)


@contextmanager
def measuring(settings: Settings) -> Iterator[Metrics]:
    """Collect metrics for the duration of the block; the latest values are exported at its end."""
    metrics = Metrics.start(settings.telemetry)
    try:
        yield metrics
    finally:
        metrics.close()


@contextmanager
def logging_as_configured(settings: Settings) -> Iterator[None]:
    """Configure logging for the duration of the block, and warn about settings that have no effect."""
    undo = logs.configure(settings.log)
    try:
        for setting in without_effect(settings):
            log.warning("the setting %s has no effect: %s", setting.key, setting.without_effect)
        for setting in replaced(settings):
            log.warning("the setting %s is replaced by %s: set that instead", setting.key, setting.replaced_by)
        yield
    finally:
        undo()


def measure_usage(metrics: Metrics, stores: Stores, settings: StorageUsage) -> None:
    """Export the storage used by each account."""
    stored = Stored(
        accounts=lambda: platform.account_ids(stores),
        pointers=lambda account: platform.pointer_count(stores, account),
        blob_sizes=lambda account: platform.blob_sizes(stores, account),
    )
    observe_usage(metrics, stored, settings)


def measure_queue(metrics: Metrics, queue: JobQueue) -> None:
    """Export the depth of the job queue, and the age of the oldest job in it."""
    metrics.observe(definitions.JOB_QUEUED, lambda: [(queue.queued(), {})])
    metrics.observe(definitions.JOB_RUNNING, lambda: [(queue.running(), {})])
    metrics.observe(definitions.JOB_OLDEST_AGE, lambda: [(queue.oldest_age_s(), {})])


def count_attempts(metrics: Metrics) -> Callable[[Attempt], None]:
    """An `on_attempt` argument for `JobQueue` that counts and times every attempt."""

    def on_attempt(attempt: Attempt) -> None:
        account, job = attempt.job.account_id, attempt.job
        metrics.add(definitions.JOB_ATTEMPTS, account=account, result=attempt.result)
        metrics.record(definitions.JOB_DURATION, attempt.seconds, account=account, result=attempt.result)
        if job.errors:
            metrics.add(definitions.JOB_FAILED_TABLES, job.errors, account=account)

    return on_attempt


def count_deliveries(metrics: Metrics) -> Callable[[str, str, float], None]:
    """An `on_attempt` argument for `Delivery` that counts and times every attempt to deliver an event."""

    def on_attempt(account_id: str, result: str, seconds: float) -> None:
        metrics.add(definitions.WEBHOOK_ATTEMPTS, account=account_id, result=result)
        metrics.record(definitions.WEBHOOK_DURATION, seconds, account=account_id, result=result)

    return on_attempt


class GcMetrics:
    """The metrics of garbage collection."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def scheduled(self, sweeps: Iterable[Sweep]) -> None:
        """Report which sweeps are enabled."""
        for sweep in sweeps:
            self._metrics.set(definitions.TASK_ENABLED, int(sweep.enabled), task=_task(sweep.name))

    def began(self, sweep: Sweep) -> None:
        """Report the start of a run."""
        self._metrics.set(definitions.TASK_RUNNING, 1, task=_task(sweep.name))

    def ended(self, tick: Tick) -> None:
        """Report the end of a run."""
        started_ms, task = tick.started_at.timestamp() * 1000, _task(tick.sweep)
        self._metrics.set(definitions.TASK_RUNNING, 0, task=task)
        self._metrics.set(definitions.TASK_LAST_START, started_ms, task=task)
        self._metrics.set(definitions.TASK_LAST_END, started_ms + tick.seconds * 1000, task=task)
        self._metrics.add(definitions.GC_COLLECTIONS, collector=tick.sweep)
        self._metrics.add(definitions.GC_REMOVED, tick.done.count, collector=tick.sweep)
        self._metrics.record(definitions.GC_PAUSE, tick.seconds, collector=tick.sweep)
        if tick.error is not None:
            self._metrics.add(definitions.GC_ERRORS, collector=tick.sweep)


def _task(sweep: str) -> str:
    return f"gc.{sweep}"
