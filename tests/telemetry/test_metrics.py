"""Metrics have the right values and only declared tags, and Prometheus can read them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from skiway.config.metastore import StorageUsage
from skiway.config.telemetry import MetricsOutput, Telemetry
from skiway.errors import Internal
from skiway.foundation.cache import CacheStats
from skiway.storage import ABSENT, open_stores
from skiway.telemetry import definitions
from skiway.telemetry.definitions import BOUNDS, METRICS, Metric, Observation, prometheus_name
from skiway.telemetry.metrics import MAX_SERIES, Metrics, Stored, observe_caches, observe_usage, store_calls

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(strict=True)


def samples(metrics: Metrics) -> Samples:
    """The samples that Prometheus' own parser reads."""
    families = text_string_to_metric_families(metrics.prometheus_text())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value for each in families for sample in each.samples
    }


def sample(metrics: Metrics, name: str, **tags: str) -> float | None:
    return samples(metrics).get((name, frozenset(tags.items())))


def test_counter_counts_by_its_tags(metrics: Metrics):
    metrics.add(definitions.GC_REMOVED, 3, collector="cas")
    metrics.add(definitions.GC_REMOVED, 4, collector="cas")
    metrics.add(definitions.GC_REMOVED, collector="pointer")
    assert sample(metrics, "skiway_core_gc_removed_total", collector="cas") == 7
    assert sample(metrics, "skiway_core_gc_removed_total", collector="pointer") == 1


def test_gauge_goes_up_and_down_and_can_be_set(metrics: Metrics):
    metrics.add(definitions.RPC_ACTIVE, 1, component="t", operation="Get")
    metrics.add(definitions.RPC_ACTIVE, 1, component="t", operation="Get")
    metrics.add(definitions.RPC_ACTIVE, -1, component="t", operation="Get")
    metrics.set(definitions.TASK_ENABLED, 1, task="gc")
    metrics.set(definitions.TASK_ENABLED, 0, task="gc")
    assert sample(metrics, "skiway_core_rpc_active", component="t", operation="Get") == 1
    assert sample(metrics, "skiway_core_task_enabled", task="gc") == 0


def test_histogram_has_cumulative_buckets(metrics: Metrics):
    for seconds in (0.0005, 0.0006, 0.3, 100):
        metrics.record(definitions.GC_PAUSE, seconds, collector="cas")
    name = "skiway_core_gc_pause_seconds"
    buckets = {
        dict(tags)["le"]: value for (found, tags), value in samples(metrics).items() if found == f"{name}_bucket"
    }
    assert len(buckets) == len(BOUNDS) + 1
    assert (buckets["0.0005"], buckets["0.001"], buckets["0.25"], buckets["0.5"]) == (1, 2, 2, 3)
    assert (buckets["60.0"], buckets["+Inf"]) == (3, 4)
    assert sample(metrics, f"{name}_count", collector="cas") == 4
    assert sample(metrics, f"{name}_sum", collector="cas") == pytest.approx(100.3011)


def test_every_metric_can_be_recorded_and_read_by_prometheus(metrics: Metrics):
    for metric in METRICS:
        tags = {name: f'{name}\'s "value"\n\\ é' for name in metric.tags}
        (metrics.record if metric.kind == "histogram" else metrics.add)(metric, 1, **tags)
    families = {each.name: each for each in text_string_to_metric_families(metrics.prometheus_text())}
    assert len(families) == len(METRICS)
    for metric in METRICS:
        family = families[prometheus_name(metric)]
        assert (family.type, family.documentation) == (metric.kind, metric.description)
        labels = {name for found in family.samples for name in found.labels} - {"le"}
        assert labels == set(metric.tags)
        assert all(v.endswith("\n\\ é") for found in family.samples for k, v in found.labels.items() if k != "le")


def test_names_follow_the_convention_and_are_unique():
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(set(map(prometheus_name, METRICS))) == len(names) == 39
    assert [name for name in names if not re.fullmatch(r"skiway\.(core|service)(\.[a-z]+)+(\.[a-z.]+)", name)] == []


def test_every_metric_is_used_outside_its_definition():
    """A metric that no code mentions would be documented and never emitted."""
    source = Path(definitions.__file__).parents[1]
    modules = (path for path in source.rglob("*.py") if path != Path(definitions.__file__))
    words = {word for path in modules for word in re.findall(r"\w+", path.read_text())}
    names = {name for name, value in vars(definitions).items() if isinstance(value, Metric)}
    assert len(names) == len(METRICS)
    assert names - words == set()


def test_undeclared_tag_is_dropped_and_counted():
    metrics = Metrics()
    metrics.add(definitions.GC_ERRORS, collector="cas", tenant="acme", colour="red")
    assert sample(metrics, "skiway_core_gc_errors_total", collector="cas") == 1
    dropped = sample(metrics, "skiway_core_observability_dropped_tags_total", metric="skiway.core.gc.errors")
    assert dropped == 2


def test_undeclared_tag_is_an_error_in_strict_mode(metrics: Metrics):
    with pytest.raises(Internal) as caught:
        metrics.record(definitions.RPC_LATENCY, 1, component="t", tenant="acme")
    assert caught.value.message == (
        "metric skiway.core.rpc.latency has no tag tenant: it has account, component, operation, status"
    )
    assert metrics.collect() == []


def test_missing_tag_is_empty(metrics: Metrics):
    metrics.add(definitions.RPC_RETRIES, operation="Get")
    assert sample(metrics, "skiway_core_rpc_retries_total", component="", operation="Get") == 1


def test_excess_tag_combinations_share_one_series(metrics: Metrics):
    for number in range(MAX_SERIES + 3):
        metrics.add(definitions.GC_ERRORS, collector=str(number))
    metrics.add(definitions.GC_ERRORS, collector="0")
    found = samples(metrics)
    assert len([key for key in found if key[0] == "skiway_core_gc_errors_total"]) == MAX_SERIES + 1
    assert found["skiway_core_gc_errors_total", frozenset({("collector", "other")})] == 3
    assert found["skiway_core_gc_errors_total", frozenset({("collector", "0")})] == 2
    dropped = ("skiway_core_observability_dropped_metric_total", frozenset({("metric", "skiway.core.gc.errors")}))
    assert found[dropped] == 3


def test_disabled_metrics_record_nothing():
    metrics = Metrics.start(Telemetry(metrics=MetricsOutput(enabled=False, strict=True)))
    metrics.add(definitions.GC_ERRORS, anything="goes")
    metrics.record(definitions.GC_PAUSE, 1)
    metrics.set(definitions.TASK_ENABLED, 1)
    assert metrics.prometheus_text() == ""
    assert store_calls(metrics) is None


def test_concurrent_counts_are_not_lost(metrics: Metrics):
    def count(_: int) -> None:
        for _ in range(2_000):
            metrics.add(definitions.GC_ERRORS, collector="cas")
            metrics.record(definitions.GC_PAUSE, 0.001, collector="cas")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(count, range(8)))
    assert sample(metrics, "skiway_core_gc_errors_total", collector="cas") == 16_000
    assert sample(metrics, "skiway_core_gc_pause_seconds_count", collector="cas") == 16_000


def test_observed_gauge_is_read_on_collection(metrics: Metrics):
    entries = [3]
    metrics.observe(definitions.CACHE_ENTRIES, lambda: [(entries[0], {"cache": "graph"})])
    assert sample(metrics, "skiway_core_cache_entries", cache="graph") == 3
    entries[0] = 4
    assert sample(metrics, "skiway_core_cache_entries", cache="graph") == 4


def test_failing_observer_does_not_hide_other_metrics(metrics: Metrics, caplog: pytest.LogCaptureFixture):
    def fail() -> Iterable[Observation]:
        raise RuntimeError("no")

    metrics.observe(definitions.CACHE_ENTRIES, fail)
    metrics.add(definitions.GC_ERRORS, collector="cas")
    assert sample(metrics, "skiway_core_gc_errors_total", collector="cas") == 1
    assert caplog.messages == ["metric skiway.core.cache.entries could not be read"]


def test_custom_metric_can_be_recorded(metrics: Metrics):
    mine = Metric("skiway.service.mine.things", "counter", ("colour",), "Things.")
    metrics.add(mine, 2, colour="red")
    assert sample(metrics, "skiway_service_mine_things_total", colour="red") == 2


# -- stores


def test_every_store_call_is_counted_and_timed(metrics: Metrics):
    with open_stores("memory://", on_call=store_calls(metrics)) as stores:
        uri = stores.blobs.put(b"a", folder="f")
        stores.pointers.compare_and_set("/a", uri, expect=ABSENT)
        for _ in range(3):
            stores.pointers.get("/a")
        with pytest.raises(Exception, match="/a"):
            stores.pointers.compare_and_set("/a", uri, expect=ABSENT)
    tags = {"component": "pointers", "operation": "get", "result": "ok"}
    assert sample(metrics, "skiway_core_store_requests_total", **tags) == 3
    assert sample(metrics, "skiway_core_store_latency_seconds_count", **tags) == 3
    assert 0 < (sample(metrics, "skiway_core_store_latency_seconds_sum", **tags) or 0) < 10
    failed = [key for key in samples(metrics) if key[0] == "skiway_core_store_errors_total"]
    assert [dict(tags)["result"] for _, tags in failed] == ["AlreadyExists"]


def test_bytes_are_counted_if_a_store_reports_them(metrics: Metrics):
    @dataclass
    class Call:
        store: str = "blobs"
        operation: str = "put"
        seconds: float = 0.1
        error: str | None = None
        size_bytes: int = 500

    on_call = store_calls(metrics)
    assert on_call is not None
    on_call(Call())
    tags = {"component": "blobs", "operation": "put", "result": "ok"}
    assert sample(metrics, "skiway_core_store_bytes_total", **tags) == 500


def test_bytes_of_blobs_are_counted(metrics: Metrics):
    with open_stores("memory://", on_call=store_calls(metrics)) as stores:
        uri = stores.blobs.put(b"12345", folder="f")
        for _ in range(3):
            stores.blobs.get(uri)
    put, get = ({"component": "blobs", "operation": each, "result": "ok"} for each in ("put", "get"))
    assert sample(metrics, "skiway_core_store_bytes_total", **put) == 5
    assert sample(metrics, "skiway_core_store_bytes_total", **get) == 15


# -- caches


def test_cache_statistics_are_exported(metrics: Metrics):
    now = CacheStats(entries=1, weight=2, max_weight=6, max_entries=5, hits=3, misses=4, errors=7)
    observe_caches(metrics, {"a": lambda: now})
    observe_caches(metrics, {"b": lambda: CacheStats(7, 8, 9, None, 10, 11, 0)})
    assert sample(metrics, "skiway_core_cache_entries", cache="a") == 1
    assert sample(metrics, "skiway_core_cache_weighted_size_bytes", cache="a") == 2
    assert sample(metrics, "skiway_core_cache_hits_total", cache="a") == 3
    assert sample(metrics, "skiway_core_cache_misses_total", cache="a") == 4
    assert sample(metrics, "skiway_core_cache_max_entries", cache="a") == 5
    assert sample(metrics, "skiway_core_cache_max_weight_bytes", cache="a") == 6
    assert sample(metrics, "skiway_core_cache_errors_total", cache="a") == 7
    assert sample(metrics, "skiway_core_cache_entries", cache="b") == 7
    now = CacheStats(entries=0, weight=0, max_weight=6, max_entries=5, hits=30, misses=40, errors=0)
    assert sample(metrics, "skiway_core_cache_hits_total", cache="a") == 30
    assert sample(metrics, "skiway_core_cache_max_entries", cache="b") is None


# -- usage


def test_usage_is_counted_sampled_and_cached(metrics: Metrics):
    now, counted, sampled = [0.0], [], []

    def sizes(account: str) -> Iterator[int]:
        for size in (100, 300, 10_000):
            sampled.append(account)
            yield size

    def pointers(account: str) -> int:
        counted.append(account)
        return 10

    stored = Stored(lambda: ["acme", "blank"], pointers, lambda account: sizes(account) if account == "acme" else [])
    settings = StorageUsage(refresh=timedelta(seconds=30), default_avg_bytes=200, sample_max=2)
    observe_usage(metrics, stored, settings, monotonic=lambda: now[0])
    assert sample(metrics, "skiway_service_storage_account_pointers", account="acme") == 10
    assert sample(metrics, "skiway_service_storage_account_bytes", account="acme") == 2_000
    assert sample(metrics, "skiway_service_storage_account_bytes", account="blank") == 2_000
    assert (counted, sampled) == (["acme", "blank"], ["acme", "acme"])
    now[0] = 29.9
    metrics.collect()
    assert len(counted) == 2
    now[0] = 30.0
    metrics.collect()
    assert len(counted) == 4
