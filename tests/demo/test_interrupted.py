"""A first start that does not come to its end is mended by the next."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from demo.demos import answers, demo, serving
from skiway.demo.home import DemoHome
from skiway.demo.sources import written

pytestmark = [pytest.mark.timeout(1500), pytest.mark.needs("java", "spark")]


def test_a_demo_that_was_killed_again_and_again_is_made_whole(made: tuple[Path, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    for last_words in ("sources     lift-operations", "metadata    lift-operations", "statistics  lifts"):
        with serving(home, tmp_path) as killed:
            killed.wait_for(last_words)
            assert killed.ended(signal.SIGKILL) == -signal.SIGKILL
    run = demo(home, "--once")
    assert run.returncode == 0, run.stderr
    assert answers(run.stdout) == answers(made[1])
    assert "statistics  weather.readings" in run.stdout


@pytest.mark.parametrize(
    ("number", "last_words"),
    [(signal.SIGINT, "statistics  lifts.lifts"), (signal.SIGTERM, "sources     lift-operations")],
)
def test_a_signal_during_the_first_start_ends_it(tmp_path: Path, number: signal.Signals, last_words: str) -> None:
    with serving(tmp_path / "home", tmp_path) as stopped:
        stopped.wait_for(last_words)
        assert stopped.ended(number) == 130
        assert stopped.errors.read_text() == "skiway: stopped; the next start goes on where this one was\n"


def test_a_source_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    home = DemoHome.at(tmp_path / "home")
    list(written(home.sources))
    (home.sources / "ticket-desk" / "sales" / "prices" / "_delta_log" / f"{1:020}.json").write_text("torn")
    run = demo(home.path, "--once")
    assert run.returncode == 1
    assert re.fullmatch(r"skiway: ticket-desk could not be synchronised: sales\.prices: .*\n", run.stderr)
    assert not home.is_complete
