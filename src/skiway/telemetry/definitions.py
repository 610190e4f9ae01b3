"""Every metric there is: its name, its tags, what it tells.

Names are `skiway.core.<area>.<metric>` and `skiway.service.<area>.<metric>`. A tag that is not declared here is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ACCOUNT_BYTES",
    "ACCOUNT_POINTERS",
    "AUDIT_ERRORS",
    "CACHE_ACCOUNTS",
    "CACHE_ENABLED",
    "CACHE_ENTRIES",
    "CACHE_ERRORS",
    "CACHE_HITS",
    "CACHE_LATENCY",
    "CACHE_MAX_ENTRIES",
    "CACHE_MAX_WEIGHT",
    "CACHE_MISSES",
    "CACHE_WEIGHT",
    "DROPPED_SERIES",
    "DROPPED_TAGS",
    "GC_COLLECTIONS",
    "GC_ERRORS",
    "GC_PAUSE",
    "GC_REMOVED",
    "GC_RETRIES",
    "METRICS",
    "RPC_ACTIVE",
    "RPC_BYTES",
    "RPC_ERRORS",
    "RPC_LATENCY",
    "RPC_REQUESTS",
    "RPC_RETRIES",
    "RPC_ROWS",
    "STORE_BYTES",
    "STORE_ERRORS",
    "STORE_LATENCY",
    "STORE_REQUESTS",
    "STORE_RETRIES",
    "TASK_ENABLED",
    "TASK_LAST_END",
    "TASK_LAST_START",
    "TASK_RUNNING",
    "Metric",
]


@dataclass(frozen=True, slots=True, eq=False)  # known by identity: metrics are keys on hot paths
class Metric:
    """A metric: a counter only grows, a gauge goes up and down, a histogram collects times."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    tags: tuple[str, ...]
    description: str
    unit: Literal["1", "s", "ms", "By"] = "1"


_CALL = ("account", "component", "operation", "status")
RPC_REQUESTS = Metric("skiway.core.rpc.requests", "counter", _CALL, "Calls that were answered.")
RPC_ERRORS = Metric("skiway.core.rpc.errors", "counter", _CALL, "Calls that were answered with an error.")
RPC_LATENCY = Metric("skiway.core.rpc.latency", "histogram", _CALL, "Time from a call to its answer.", "s")
RPC_ACTIVE = Metric("skiway.core.rpc.active", "gauge", ("component", "operation"), "Calls being served.")
RPC_RETRIES = Metric(
    "skiway.core.rpc.retries", "counter", ("component", "operation"), "Attempts after a lost race, within calls."
)

_TRANSFER = ("account", "component", "operation", "direction")
RPC_ROWS = Metric("skiway.core.rpc.rows", "counter", _TRANSFER, "Rows received and sent by calls that transfer data.")
RPC_BYTES = Metric("skiway.core.rpc.bytes", "counter", _TRANSFER, "Bytes received and sent by these calls.", "By")

_STORE = ("component", "operation", "result")
STORE_REQUESTS = Metric("skiway.core.store.requests", "counter", _STORE, "Calls to a store.")
STORE_ERRORS = Metric("skiway.core.store.errors", "counter", _STORE, "Calls to a store that failed; lost races too.")
STORE_LATENCY = Metric("skiway.core.store.latency", "histogram", _STORE, "Time of a call to a store.", "s")
STORE_BYTES = Metric("skiway.core.store.bytes", "counter", _STORE, "Bytes read from and written to a store.", "By")
STORE_RETRIES = Metric("skiway.core.store.retries", "counter", _STORE, "Attempts after the first, within calls.")

_GC = ("collector",)
GC_COLLECTIONS = Metric("skiway.core.gc.collections", "counter", _GC, "Slices of garbage collection.")
GC_REMOVED = Metric("skiway.core.gc.removed", "counter", _GC, "What garbage collection removed.")
GC_ERRORS = Metric("skiway.core.gc.errors", "counter", _GC, "Slices that failed.")
GC_PAUSE = Metric("skiway.core.gc.pause", "histogram", _GC, "Time of a slice.", "s")
GC_RETRIES = Metric("skiway.core.gc.retries", "counter", _GC, "Slices tried again.")

_TASK = ("task",)
TASK_ENABLED = Metric("skiway.core.task.enabled", "gauge", _TASK, "1 if the task is switched on.")
TASK_RUNNING = Metric("skiway.core.task.running", "gauge", _TASK, "1 while the task runs.")
TASK_LAST_START = Metric("skiway.core.task.last.tick.start.ms", "gauge", _TASK, "When it last began, since 1970.", "ms")
TASK_LAST_END = Metric("skiway.core.task.last.tick.end.ms", "gauge", _TASK, "When it last ended, since 1970.", "ms")

_CACHE = ("cache",)
CACHE_ENABLED = Metric("skiway.core.cache.enabled", "gauge", _CACHE, "1 if the cache is switched on.")
CACHE_ENTRIES = Metric("skiway.core.cache.entries", "gauge", _CACHE, "Entries it holds.")
CACHE_MAX_ENTRIES = Metric("skiway.core.cache.max.entries", "gauge", _CACHE, "Entries it may hold.")
CACHE_WEIGHT = Metric("skiway.core.cache.weighted.size.bytes", "gauge", _CACHE, "Bytes it holds.", "By")
CACHE_MAX_WEIGHT = Metric("skiway.core.cache.max.weight.bytes", "gauge", _CACHE, "Bytes it may hold.", "By")
CACHE_ACCOUNTS = Metric("skiway.core.cache.accounts", "gauge", _CACHE, "Accounts with entries in it.")
CACHE_HITS = Metric("skiway.core.cache.hits", "counter", _CACHE, "Lookups that found an entry.")
CACHE_MISSES = Metric("skiway.core.cache.misses", "counter", _CACHE, "Lookups that did not.")
CACHE_ERRORS = Metric("skiway.core.cache.errors", "counter", _CACHE, "Entries that could not be loaded.")
CACHE_LATENCY = Metric("skiway.core.cache.latency", "histogram", _CACHE, "Time to load an entry.", "s")

AUDIT_ERRORS = Metric("skiway.core.audit.errors", "counter", ("category",), "Audit records that were not written.")
DROPPED_TAGS = Metric(
    "skiway.core.observability.dropped.tags.total", "counter", ("metric",), "Tags dropped as undeclared."
)
DROPPED_SERIES = Metric(
    "skiway.core.observability.dropped.metric.total",
    "counter",
    ("metric",),
    "Readings put under `other`, because a metric had too many combinations of tags.",
)

_ACCOUNT = ("account",)
ACCOUNT_POINTERS = Metric("skiway.service.storage.account.pointers", "gauge", _ACCOUNT, "Pointers of an account.")
ACCOUNT_BYTES = Metric(
    "skiway.service.storage.account.bytes", "gauge", _ACCOUNT, "Bytes of an account's blobs, from a sample.", "By"
)

METRICS: tuple[Metric, ...] = tuple(each for each in list(vars().values()) if isinstance(each, Metric))
