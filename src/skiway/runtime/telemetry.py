"""What a process tells of itself: the log, metrics, traces, the audit trail; each as the settings say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from skiway.config import Settings
from skiway.config.metastore import StorageUsage
from skiway.metastore.records import keys
from skiway.requests import Observers
from skiway.runtime.gc.schedule import Sweep, Tick
from skiway.storage import Stores
from skiway.telemetry import definitions, logs
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces
from skiway.telemetry.usage import Stored, observe_usage

__all__ = ["GcMetrics", "measure_usage", "observing"]


@contextmanager
def observing(settings: Settings) -> Iterator[Observers]:
    """All of them, while inside; what they still hold at the end is written or sent."""
    with ExitStack() as parts:
        parts.callback(logs.configure(settings.log))
        metrics = Metrics.start(settings.telemetry)
        parts.callback(metrics.close)
        traces = Traces.start(settings.telemetry)
        parts.callback(traces.close)
        audit = AuditLog.open(settings.audit, metrics=metrics)
        if audit is not None:
            parts.callback(audit.close)
        yield Observers(metrics, traces, audit)


def measure_usage(metrics: Metrics, stores: Stores, settings: StorageUsage) -> None:
    """Let metrics tell how much each account stores."""

    def accounts() -> Iterable[str]:
        names = stores.pointers.scan(keys.account(""))
        return (pointer.key.rpartition("/")[2] for pointer in names)

    def blob_sizes(account: str) -> Iterable[int]:
        return (head.size_bytes for head in stores.blobs.scan(keys.folder(keys.of_account(account)).rstrip("/")))

    def pointers(account: str) -> int:
        return stores.pointers.count(keys.of_account(account))

    observe_usage(metrics, Stored(accounts, pointers, blob_sizes), settings)


class GcMetrics:
    """Counts and times what the schedule of gc does."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def scheduled(self, sweeps: Iterable[Sweep]) -> None:
        """These are the sweeps, on or off."""
        for sweep in sweeps:
            self._metrics.set(definitions.TASK_ENABLED, int(sweep.enabled), task=_task(sweep.name))

    def began(self, sweep: Sweep) -> None:
        """A tick of the sweep begins."""
        self._metrics.set(definitions.TASK_RUNNING, 1, task=_task(sweep.name))

    def ended(self, tick: Tick) -> None:
        """That is what it did."""
        started_ms, task = tick.started_at.timestamp() * 1000, _task(tick.sweep)
        self._metrics.set(definitions.TASK_RUNNING, 0, task=task)
        self._metrics.set(definitions.TASK_LAST_START, started_ms, task=task)
        self._metrics.set(definitions.TASK_LAST_END, started_ms + tick.seconds * 1000, task=task)
        self._metrics.add(definitions.GC_COLLECTIONS, collector=tick.sweep)
        self._metrics.add(definitions.GC_REMOVED, tick.progress.removed, collector=tick.sweep)
        self._metrics.record(definitions.GC_PAUSE, tick.seconds, collector=tick.sweep)
        if tick.error is not None:
            self._metrics.add(definitions.GC_ERRORS, collector=tick.sweep)


def _task(sweep: str) -> str:
    return f"gc.{sweep}"
