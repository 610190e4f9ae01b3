"""The printed output fits on a terminal, and statements to copy are never wrapped."""

from __future__ import annotations

import io
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from skiway.demo.build import STEPS
from skiway.demo.output import QUERIES, Poster

ADDRESSES = {"airport": "grpc://127.0.0.1:50051", "rpc": "127.0.0.1:50051", "http": "http://127.0.0.1:8181"}
LISTED = pa.table(
    {
        "table": ["weather.readings", "mine.people"],
        "format": ["parquet", "iceberg"],
        "rows": [1_234_567, None],
        "files": [20, None],
        "snapshots": [1, 0],
        "source": ["lift-operations", "(managed)"],
    }
)


def poster(width: int, *, terminal: bool) -> tuple[Poster, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None, highlight=False, emoji=False)
    return Poster(console), out


@pytest.mark.parametrize("width", [80, 120])
def test_invitation_fits_the_terminal(width: int) -> None:
    shown, out = poster(width, terminal=True)
    shown.greet()
    shown.lake(LISTED)
    shown.invitation(ADDRESSES, Path("/home/ada/.skiway/demo"))
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(line.strip() for line in lines)
    assert [" ".join(line.split()) for line in lines[-8:]] == [
        "http://127.0.0.1:8181",
        "INSTALL airport FROM community; LOAD airport;",
        "ATTACH 'lake' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');",
        "",
        "Then try three things",
        "search http://127.0.0.1:8181/search?q=snow",
        "geometry SELECT trail, ST_AsText(route) FROM lake.maps.trails;",
        "write UPDATE lake.planning.crews SET note = 'icy' WHERE groomers > 6;",
    ]
    for query in QUERIES:
        assert query.title in text
        for line in query.sql.splitlines():
            assert line.strip() in text


def test_result_shows_every_value() -> None:
    shown, out = poster(80, terminal=False)
    rows = {
        "day": [datetime(2026, 1, 2, 3)],
        "price": [Decimal("4.50")],
        "count": [12345],
        "share": [0.5],
        "no": [None],
    }
    shown.answered(1, QUERIES[0], pa.table(rows))
    assert out.getvalue().splitlines()[-1].split() == ["2026-01-02", "03:00:00", "4.50", "12,345", "0.5"]


def test_without_a_terminal_progress_is_one_line_per_part() -> None:
    shown, out = poster(80, terminal=False)
    with shown.making() as watcher:
        watcher.begins(STEPS[0], "ticket-desk")
        watcher.ends(STEPS[0], "ticket-desk", "2 delta tables")
    assert out.getvalue() == "sources     ticket-desk         2 delta tables\n"


def test_on_a_terminal_progress_is_one_bar_per_step() -> None:
    shown, out = poster(80, terminal=True)
    with shown.making() as watcher:
        for step in STEPS:
            for part in range(step.parts):
                watcher.begins(step, f"part {part}")
                watcher.ends(step, f"part {part}", "")
    bars = [line for line in out.getvalue().splitlines() if "━" in line]
    last = bars[-len(STEPS) :]
    for step in STEPS:
        (line,) = (each for each in last if step.name in each)
        assert step.about in line
        assert f"{step.parts}/{step.parts}" in line
