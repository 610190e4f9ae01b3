"""The cache used by all packages."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from skiway.foundation.cache import Cache


def test_value_is_loaded_once() -> None:
    cache, loaded = Cache[str, int](2), []

    def load() -> int:
        loaded.append(1)
        return 7

    assert [cache.get("a", load), cache.get("a", load)] == [7, 7]
    assert len(loaded) == 1
    assert (cache.stats().hits, cache.stats().misses) == (1, 1)


def test_none_is_cached() -> None:
    cache = Cache[str, None](2)
    cache.get("a", lambda: None)
    cache.get("a", lambda: pytest.fail("None was not cached"))


def test_least_recently_used_value_is_evicted_first() -> None:
    cache = Cache[str, str](2)
    for key in "aba":
        cache.get(key, lambda key=key: key)  # type: ignore[misc]
    cache.get("c", lambda: "c")
    assert cache.get("a", lambda: "again") == "a"
    assert cache.get("b", lambda: "again") == "again"


def test_weight_and_count_are_limited() -> None:
    heavy = Cache[int, bytes](10, weigh=len)
    for key in range(4):
        heavy.put(key, b"1234")
    assert (heavy.stats().entries, heavy.stats().weight, heavy.stats().max_weight) == (2, 8, 10)
    few = Cache[int, bytes](1000, weigh=len, max_entries=3)
    for key in range(9):
        few.put(key, b"")
    assert (few.stats().entries, few.stats().max_entries) == (3, 3)
    assert few.get(8, lambda: b"again") == b""


@pytest.mark.parametrize(("limits", "stored"), [({}, 1), ({"max_entry_weight": 5}, 0), ({"max_entry_weight": 99}, 1)])
def test_value_that_is_too_heavy_is_not_stored(limits: dict[str, int], stored: int) -> None:
    cache = Cache[str, bytes](10, weigh=len, **limits)  # type: ignore[arg-type]
    assert cache.get("long", lambda: b"x" * 11) == b"x" * 11
    cache.put("short", b"x" * 6)
    assert cache.stats().entries == stored


def test_cache_without_capacity_stores_nothing() -> None:
    cache = Cache[str, bytes](0, weigh=len)
    assert cache.get("a", lambda: b"abc") == b"abc"
    assert cache.stats().entries == 0


def test_error_is_raised_counted_and_not_cached() -> None:
    cache = Cache[str, int](2)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", lambda: 1 // 0)
    assert cache.stats().errors == 1
    assert cache.get("a", lambda: 5) == 5


def test_existing_value_is_not_replaced() -> None:
    cache = Cache[str, int](2)
    assert [cache.put("a", 1), cache.put("a", 2), cache.get("a", lambda: 3)] == [1, 1, 1]


def test_threads_that_load_the_same_key_get_the_same_value() -> None:
    cache, barrier = Cache[str, object](8), threading.Barrier(4)

    def load() -> object:
        barrier.wait(200)
        return object()

    with ThreadPoolExecutor(4) as threads:
        found = set(threads.map(lambda _: cache.get("a", load), range(4)))
    assert len(found) == 1
    assert (cache.stats().entries, cache.stats().misses) == (1, 4)


def test_limits_hold_with_concurrent_threads() -> None:
    cache = Cache[int, bytes](100, weigh=len, max_entries=10)

    def use(number: int) -> None:
        for key in range(200):
            assert cache.get(key * number % 37, lambda: b"123") == b"123"

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(1, 9)))
    stats = cache.stats()
    assert stats.hits + stats.misses == 1600
    assert stats.entries <= 10
    assert stats.weight == 3 * stats.entries


def test_loads_are_timed() -> None:
    seconds: list[float] = []
    cache = Cache[str, int](2, on_load=seconds.append)
    cache.get("a", lambda: 1)
    cache.get("a", lambda: 1)
    assert len(seconds) == 1
    assert seconds[0] >= 0


def test_entries_that_are_not_used_are_removed() -> None:
    now = 0.0
    cache = Cache[str, int](100, idle_s=10, clock=lambda: now)
    cache.put("used", 1)
    cache.put("idle", 2)
    for now in (6.0, 12.0, 18.0, 24.0):
        assert cache.get("used", lambda: pytest.fail("it was removed")) == 1
        cache.put(f"new at {now}", 3)
    assert cache.get("idle", lambda: 4) == 4
    assert len(cache) == len({"used", "idle", "new at 18.0", "new at 24.0", "new at 12.0"})


def test_values_that_last_for_a_time_are_loaded_again() -> None:
    now = 0.0
    cache = Cache[str, int](100, lasting_s=10, clock=lambda: now)
    assert cache.get("a", lambda: 1) == 1
    now = 9.9
    assert cache.get("a", lambda: 2) == 1, "it is not renewed by its use"
    assert cache.get("b", lambda: 3) == 3
    now = 10.0
    assert cache.get("a", lambda: 4) == 4
    assert cache.get("b", lambda: 5) == 3


def test_keys_of_evicted_entries_are_forgotten() -> None:
    cache = Cache[int, int](10)
    for number in range(5000):
        cache.put(number, number)
    assert len(cache._used) < 1100
