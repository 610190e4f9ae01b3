from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

import scope
from demo.demos import Serving, demo, serving

STOPS = [
    (signal.SIGTERM, "sources     lift-operations"),
    (signal.SIGKILL, "metadata    lift-operations"),
]  # before Spark starts
if scope.ALL:
    STOPS = [
        (signal.SIGKILL, "sources     lift-operations"),
        (signal.SIGTERM, "sources     lift-operations"),
        (signal.SIGKILL, "metadata    lift-operations"),
        (signal.SIGINT, "statistics  lifts.lifts"),
        (signal.SIGKILL, "statistics  lifts"),
    ]
"""The signals that interrupt the first start, each after some output."""


@dataclass(frozen=True)
class Interruption:
    """A first start that a signal ended: its exit code, its error output, and whether it had announced itself."""

    number: signal.Signals
    code: int
    errors: str
    announced: bool


@dataclass(frozen=True)
class FirstStart:
    """A home with a demo, which several interrupted starts and the process `served` have built.

    `served` serves it. `printed` is the output of `--once` with it.
    """

    home: Path
    interruptions: Sequence[Interruption]
    served: Serving
    printed: str


@pytest.fixture(scope="session")
def first_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirstStart]:
    """The first start of a demo. It goes on serving, since its Spark is already running."""
    folder = tmp_path_factory.mktemp("demo")
    interruptions = [interrupt(folder / "home", folder, *stop) for stop in STOPS]
    with serving(folder / "home", folder) as served:
        served.location()
        run = demo(folder / "home", "--once")  # before any test changes the lake
        assert run.returncode == 0, run.stderr
        yield FirstStart(folder / "home", interruptions, served, run.stdout)


def interrupt(home: Path, scratch: Path, number: signal.Signals, last_output: str) -> Interruption:
    with serving(home, scratch) as stopped:
        stopped.wait_for(last_output)
        announced = (home / "ready.json").exists()
        return Interruption(number, stopped.ended(number), stopped.errors.read_text(), announced)


@pytest.fixture
def made(first_start: FirstStart) -> tuple[Path, str]:
    """A home with a complete demo, and the output of `skiway demo --once` with it."""
    return first_start.home, first_start.printed


@pytest.fixture
def home(first_start: FirstStart) -> Path:
    """A home with a complete demo."""
    return first_start.home


@pytest.fixture
def served(first_start: FirstStart) -> Serving:
    """A running demo, whose Spark is running too."""
    return first_start.served
