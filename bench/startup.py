"""The time that `skiway --help` takes, compared with the bare interpreter and with importing typer, and that of `skiway serve`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from bench.disk import scratch
from bench.report import Figure
from bench.serving import skiway_serve
from bench.turns import taken_in_turns

AIM_S: Final = 0.3
READY_S: Final = 1.5
ROUNDS: Final = 11
OURS: Final = ["-m", "skiway.cli", "--help"]


def figures() -> Iterator[Figure]:
    """Yield the figures of this part."""
    bare = taken_in_turns(lambda: run(OURS), lambda: run(["-c", ""]), ROUNDS)
    name = "skiway --help, beside the bare interpreter"
    yield Figure(name, "s", bare.ours, bare.peer, bare.ratio, aim_below=AIM_S, peer_is="python -c ''")
    typer = taken_in_turns(lambda: run(OURS), lambda: run(["-c", "import typer"]), ROUNDS)
    name = "skiway --help, beside importing typer"
    yield Figure(name, "s", typer.ours, typer.peer, typer.ratio, peer_is="python -c 'import typer'")
    with scratch() as place:
        seconds = [_served(place / "home") for _ in range(ROUNDS)][1:]  # the first one creates the home
    yield Figure(
        "skiway serve on an existing home, until it is ready", "s", statistics.median(seconds), aim_below=READY_S
    )


def _served(home: Path) -> float:
    started = time.perf_counter()
    with skiway_serve(home):
        return time.perf_counter() - started


def run(arguments: list[str]) -> None:
    """Run a Python process to its end."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
