"""How much runs: the quick tests of `make test`, the slow ones of `make test-slow`, or every case of all.

pytest without a setting runs quick and slow tests, but not those that are marked `full`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

WANTED = os.environ.get("SKIWAY_TESTS", "")
ALL = WANTED == "all"
"""Every case: `make test-all`."""

SLOW_TESTS = frozenset(
    line
    for line in (Path(__file__).parent / "slow_tests.txt").read_text().splitlines()
    if line and not line.startswith("#")
)
"""Tests that take long, as measured by `cpu_times`, and those that add little to quicker ones."""

FAULTS = os.environ.get("SKIWAY_FAULTS") == "all"
"""A fault at every step: `make faults`."""


def is_wanted(item: pytest.Item) -> bool:
    """Whether the setting `SKIWAY_TESTS` includes a test."""
    if not (ALL or FAULTS) and item.get_closest_marker("full"):
        return False
    is_slow = item.nodeid.partition("[")[0] in SLOW_TESTS
    return {"quick": not is_slow, "slow": is_slow}.get(WANTED, True)


def sample(cases: Iterable[Any], *, every: int, keep: Callable[[Any], bool] = lambda _: False) -> list[Any]:
    """Mark all cases but each `every`-th one, and those to `keep`, as `full`: `make test` runs a sample of them."""
    return [
        case if number % every == 0 or keep(case) else pytest.param(*_values(case), marks=pytest.mark.full)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
