"""`SettledClock` while the system's clock jumps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from skiway.foundation.clock import SettledClock

DAY = timedelta(days=1)


@dataclass
class System:
    """A system's two clocks."""

    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    elapsed_s: float = 5000.0

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.elapsed_s += seconds


@pytest.fixture
def system() -> System:
    return System()


@pytest.fixture
def settled(system: System) -> SettledClock:
    return SettledClock(lambda: system.now, hold_s=30.0, monotonic=lambda: system.elapsed_s)


def test_clock_follows_the_system(system: System, settled: SettledClock) -> None:
    for seconds in (0.0, 0.5, 100_000.0):
        system.advance(seconds)
        assert settled() == system.now


def test_forward_jump_is_followed_after_the_hold(system: System, settled: SettledClock) -> None:
    system.now += DAY
    for _ in range(3):
        assert settled() == system.now - DAY
        system.advance(9.9)
    system.advance(0.4)
    assert settled() == system.now


def test_each_jump_starts_the_hold_again(system: System, settled: SettledClock) -> None:
    system.now += DAY
    assert settled() == system.now - DAY
    system.advance(20.0)
    system.now += DAY
    assert settled() == system.now - 2 * DAY
    system.advance(20.0)
    assert settled() == system.now - 2 * DAY
    system.advance(10.0)
    assert settled() == system.now


def test_backward_jump_is_followed_at_once(system: System, settled: SettledClock) -> None:
    system.now -= DAY
    assert settled() == system.now


def test_jump_forward_and_back_leaves_no_trace(system: System, settled: SettledClock) -> None:
    system.now += DAY
    assert settled() == system.now - DAY
    system.now -= DAY
    assert settled() == system.now
    system.advance(1.0)
    assert settled() == system.now


def test_small_adjustments_are_followed(system: System, settled: SettledClock) -> None:
    for _ in range(100):
        system.advance(1.0)
        system.now += timedelta(milliseconds=5)
        assert settled() == system.now
