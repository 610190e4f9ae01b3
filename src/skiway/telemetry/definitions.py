"""The definition of every metric, and the form of its values.

A metric has a name, a kind, tags and a description.
`scripts/write_references.py` makes the page docs/reference/metrics.md from the definitions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity, since metrics are dictionary keys on hot paths
class Metric:
    """A metric. A counter only grows, a gauge goes up and down, a histogram collects durations."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    tags: tuple[str, ...]
    description: str
    unit: Literal["1", "s", "ms", "By"] = "1"


_CALL = ("account", "component", "operation", "status")
RPC_REQUESTS = Metric("skiway.core.rpc.requests", "counter", _CALL, "Finished calls.")
RPC_ERRORS = Metric("skiway.core.rpc.errors", "counter", _CALL, "Calls that failed.")
RPC_LATENCY = Metric("skiway.core.rpc.latency", "histogram", _CALL, "Duration of a call.", "s")
RPC_ACTIVE = Metric("skiway.core.rpc.active", "gauge", ("component", "operation"), "Calls in progress.")
RPC_RETRIES = Metric(
    "skiway.core.rpc.retries", "counter", ("component", "operation"), "Retries within calls, after a lost race."
)

_TRANSFER = ("account", "component", "operation", "direction")
RPC_ROWS = Metric("skiway.core.rpc.rows", "counter", _TRANSFER, "Rows received and sent by calls that transfer data.")
RPC_BYTES = Metric("skiway.core.rpc.bytes", "counter", _TRANSFER, "Bytes received and sent by these calls.", "By")

_STORE = ("component", "operation", "result")
STORE_REQUESTS = Metric("skiway.core.store.requests", "counter", _STORE, "Calls to a store.")
STORE_ERRORS = Metric("skiway.core.store.errors", "counter", _STORE, "Failed calls to a store, including lost races.")
STORE_LATENCY = Metric("skiway.core.store.latency", "histogram", _STORE, "Duration of a call to a store.", "s")
STORE_BYTES = Metric("skiway.core.store.bytes", "counter", _STORE, "Bytes of blobs read and written.", "By")

_GC = ("collector",)
GC_COLLECTIONS = Metric("skiway.core.gc.collections", "counter", _GC, "Runs of a garbage collector.")
GC_REMOVED = Metric("skiway.core.gc.removed", "counter", _GC, "Objects that garbage collection deleted.")
GC_ERRORS = Metric("skiway.core.gc.errors", "counter", _GC, "Failed runs.")
GC_PAUSE = Metric("skiway.core.gc.pause", "histogram", _GC, "Duration of a run.", "s")

_TASK = ("task",)
TASK_ENABLED = Metric("skiway.core.task.enabled", "gauge", _TASK, "1 if the background task is enabled.")
TASK_RUNNING = Metric("skiway.core.task.running", "gauge", _TASK, "1 while the task is running.")
TASK_LAST_START = Metric(
    "skiway.core.task.last.tick.start.ms", "gauge", _TASK, "Start of the last run, since 1970.", "ms"
)
TASK_LAST_END = Metric("skiway.core.task.last.tick.end.ms", "gauge", _TASK, "End of the last run, since 1970.", "ms")

_CACHE = ("cache",)
CACHE_ENTRIES = Metric("skiway.core.cache.entries", "gauge", _CACHE, "Entries in the cache.")
CACHE_MAX_ENTRIES = Metric("skiway.core.cache.max.entries", "gauge", _CACHE, "Maximum number of entries.")
CACHE_WEIGHT = Metric("skiway.core.cache.weighted.size.bytes", "gauge", _CACHE, "Size of the entries.", "By")
CACHE_MAX_WEIGHT = Metric("skiway.core.cache.max.weight.bytes", "gauge", _CACHE, "Maximum size of all entries.", "By")
CACHE_HITS = Metric("skiway.core.cache.hits", "counter", _CACHE, "Lookups answered from the cache.")
CACHE_MISSES = Metric("skiway.core.cache.misses", "counter", _CACHE, "Lookups that had to load the entry.")
CACHE_ERRORS = Metric("skiway.core.cache.errors", "counter", _CACHE, "Loads that failed.")

AUDIT_ERRORS = Metric("skiway.core.audit.errors", "counter", ("category",), "Audit records that could not be written.")
DROPPED_TAGS = Metric(
    "skiway.core.observability.dropped.tags.total",
    "counter",
    ("metric",),
    "Dropped tags, which the metric does not declare.",
)
DROPPED_SERIES = Metric(
    "skiway.core.observability.dropped.metric.total",
    "counter",
    ("metric",),
    "Values counted under `other`, because the metric has too many tag combinations.",
)

_ACCOUNT = ("account",)
ACCOUNT_POINTERS = Metric("skiway.service.storage.account.pointers", "gauge", _ACCOUNT, "Pointers in an account.")
ACCOUNT_BYTES = Metric(
    "skiway.service.storage.account.bytes",
    "gauge",
    _ACCOUNT,
    "Estimated size of an account's blobs, from a sample.",
    "By",
)

JOB_QUEUED = Metric("skiway.service.jobs.queued", "gauge", (), "Jobs in the queue of the store, of all accounts.")
JOB_RUNNING = Metric("skiway.service.jobs.running", "gauge", (), "Jobs that workers of the store hold.")
JOB_OLDEST_AGE = Metric(
    "skiway.service.jobs.oldest.age",
    "gauge",
    (),
    "How long the job that is due longest has been waiting for a worker; 0 if none is due.",
    "s",
)
_JOB = ("account", "result")
JOB_ATTEMPTS = Metric(
    "skiway.service.jobs.attempts",
    "counter",
    _JOB,
    "Attempts of this process: `succeeded`, `partial`, `failed`, `cancelled`, `retried` or `released`.",
)
JOB_DURATION = Metric("skiway.service.jobs.duration", "histogram", _JOB, "Duration of these attempts.", "s")
JOB_FAILED_TABLES = Metric(
    "skiway.service.jobs.failed.tables", "counter", _ACCOUNT, "Tables that failed in these attempts."
)

_WEBHOOK = ("account", "result")
WEBHOOK_ATTEMPTS = Metric(
    "skiway.service.webhooks.attempts",
    "counter",
    _WEBHOOK,
    "Attempts of this process to deliver events: `accepted`, `failed`, or `given_up` with the last failed one.",
)
WEBHOOK_DURATION = Metric("skiway.service.webhooks.duration", "histogram", _WEBHOOK, "Duration of these attempts.", "s")

METRICS: tuple[Metric, ...] = tuple(value for value in list(vars().values()) if isinstance(value, Metric))

SUFFIX = {"1": "", "ms": "", "s": "_seconds", "By": "_bytes"}


def prometheus_name(metric: Metric) -> str:
    """The metric's name in Prometheus, without the `_total` of counters: `skiway_core_rpc_latency_seconds`."""
    name, suffix = metric.name.replace(".", "_").removesuffix("_total"), SUFFIX[metric.unit]
    return name if name.endswith(suffix) else name + suffix


BOUNDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0)
"""Upper bounds of the histogram buckets, in seconds."""

Tags = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Distribution:
    """The values of a histogram: the count in each bucket of `BOUNDS`, plus one for larger values, and the sum."""

    buckets: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.buckets)


@dataclass(frozen=True, slots=True)
class Point:
    """The value of a metric for one combination of tags, in the order of their declaration."""

    tags: Tags
    value: float | Distribution

    @property
    def number(self) -> float:
        """The value of a counter or gauge."""
        assert not isinstance(self.value, Distribution)
        return self.value

    @property
    def distribution(self) -> Distribution:
        """The value of a histogram."""
        assert isinstance(self.value, Distribution)
        return self.value


Observation = tuple[float, Mapping[str, str]]
"""A value with its tags."""


@dataclass(frozen=True, slots=True)
class Family:
    """A metric with all its values."""

    metric: Metric
    points: list[Point]
