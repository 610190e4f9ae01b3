"""The time that `skiway --help` takes, compared with the bare interpreter and with importing typer."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from bench.report import Figure
from bench.turns import taken_in_turns

AIM_S: Final = 0.3
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


def run(arguments: list[str]) -> None:
    """Run a Python process to its end."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
