"""The load test itself: what counts as a violation, and a short run of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from load.__main__ import run
from load.figures import Figures, percentile, report

MIB = 1 << 20


def figures(**changes: object) -> Figures:
    made = Figures(clients=2, seconds=10.0, memory=[300 * MIB] * 30)
    made.add("north", {"seconds": {"read": [0.1, 0.2, 0.3]}, "refused": {"Conflict": 3}, "violations": []})
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_run_with_conflicts_only_passes() -> None:
    made = figures(fairness=[(0.010, 0.050), (0.010, 0.020)])
    assert made.failures() == []
    printed = report(made)
    assert printed.endswith("passed")
    assert "refused: 3 Conflict" in printed
    assert "north      read                  3    200.0    300.0" in printed
    assert "memory of the server, by thirds of the run: 300, 300, 300 MiB" in printed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"violations": ["north: read: Internal: x"] * 2}, "2 times: north: read: Internal: x"),
        ({"memory": [300 * MIB] * 20 + [330 * MIB] * 10}, "grew from 300 to 330 MiB"),
        ({"fairness": [(0.010, 0.030), (0.010, 0.031)]}, "slows down another one by three times or more"),
        ({"clients": 4}, "4 clients ran only 3 statements"),
    ],
)
def test_violations_fail(changes: dict[str, object], message: str) -> None:
    (failure,) = figures(**changes).failures()
    assert message in failure
    assert report(figures(**changes)).endswith("failed")


def test_noise_of_the_allocator_is_no_growth() -> None:
    assert figures(memory=[300 * MIB] * 20 + [320 * MIB] * 10).failures() == []
    assert figures(memory=[100 * MIB] * 10 + [300 * MIB] * 20).failures() == [], "the first third is the start"


def test_percentiles() -> None:
    assert percentile(range(1, 101), 0.5) == 51
    assert percentile(range(1, 101), 0.99) == 100
    assert percentile([], 0.99) == 0.0


@pytest.mark.full
@pytest.mark.timeout(300)
def test_short_run(tmp_path: Path) -> None:
    made = run(tmp_path / "home", clients=8, seconds=5, seed=1)
    assert made.violations == []
    assert made.statements > 8
    assert set(made.latencies) == {"north", "east", "south", "west"}
    assert len(made.memory) > 10
