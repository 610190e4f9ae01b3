"""Why a query took long: what is said about each part of its time."""

from __future__ import annotations

from typing import Any

import pytest

from skiway.presentation.query_history import reasons

READ: dict[str, Any] = {
    "table": "lake.s.t",
    "filter": "",
    "files": 10,
    "files_read": 10,
    "bytes_read": 2048,
    "reader": "server",
}


def query(**more: Any) -> dict[str, Any]:
    parts = dict.fromkeys(("queue_ms", "plan_ms", "run_ms", "send_ms"), 0.0)
    return {"duration_ms": 1000.0, **parts, "rows": 5, "bytes": 100, "reads": [], "plan": [], **more}


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({"duration_ms": 99.0, "run_ms": 99.0}, "It was fast: 99 ms."),
        ({"queue_ms": 700.0}, "It waited for 700 ms, 70 % of the time"),
        ({"plan_ms": 400.0, "reads": [{**READ, "files": 5000}]}, "5,000 files"),
        ({"send_ms": 900.0, "rows": 1_000_000}, "1,000,000 rows"),
        ({"send_ms": 900.0, "rows": None, "bytes": None}, "Sending the result took 900 ms"),
        (
            {
                "run_ms": 800.0,
                "plan": [{"name": "hash join", "ms": 9.0, "rows": 7}, {"name": "scan", "ms": 1.0, "rows": 1}],
            },
            "hash join: 90 % of the work, 7 rows",
        ),
        ({"reads": [READ]}, "no condition on it that excludes files"),
        ({"reads": [{**READ, "filter": '"id" > 5'}]}, 'sort the table by the columns in "id" > 5'),
        ({"reads": [{**READ, "files_read": 2}]}, "The filter left 2 of 10 files of lake.s.t"),
        ({"reads": [{**READ, "reader": "policies"}]}, "Policies restrict lake.s.t"),
        ({}, "Nothing stands out"),
    ],
)
def test_reason(facts: dict[str, Any], says: str) -> None:
    assert says in reasons(query(**facts))[0]


def test_the_largest_part_comes_first() -> None:
    found = reasons(query(queue_ms=300.0, run_ms=600.0, reads=[READ]))
    assert [each.partition(" ")[0] for each in found] == ["Running", "It", "All"]
