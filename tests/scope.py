"""How much runs: the tests of `make test`, or every case of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

import pytest

ALL = os.environ.get("SKIWAY_TESTS") == "all"
"""Every case: `make test-all`."""

FAULTS = os.environ.get("SKIWAY_FAULTS") == "all"
"""A fault at every step: `make faults`."""


def sample(cases: Iterable[Any], *, every: int, keep: Callable[[Any], bool] = lambda _: False) -> list[Any]:
    """Mark all cases but each `every`-th one, and those to `keep`, as `full`: `make test` runs a sample of them."""
    return [
        case if number % every == 0 or keep(case) else pytest.param(*_values(case), marks=pytest.mark.full)
        for number, case in enumerate(cases)
    ]


def _values(case: Any) -> tuple[Any, ...]:
    return case if isinstance(case, tuple) else (case,)
