"""An interrupted first start is completed by the next one."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from demo.demos import answers, demo, serving
from skiway.demo.home import DemoHome
from skiway.demo.sources import written

pytestmark = [pytest.mark.timeout(1500), pytest.mark.needs("java", "spark")]

STOPS = (
    (signal.SIGKILL, "sources     lift-operations"),
    (signal.SIGTERM, "sources     lift-operations"),
    (signal.SIGKILL, "metadata    lift-operations"),
    (signal.SIGINT, "statistics  lifts.lifts"),
    (signal.SIGKILL, "statistics  lifts"),
)


def test_repeatedly_interrupted_demo_is_completed(made: tuple[Path, str], tmp_path: Path) -> None:
    home = tmp_path / "home"
    for number, last_output in STOPS:
        with serving(home, tmp_path) as stopped:
            stopped.wait_for(last_output)
            ended = stopped.ended(number)
            if number == signal.SIGKILL:
                assert ended == -signal.SIGKILL
            else:
                assert ended == 130
                assert stopped.errors.read_text() == "skiway: stopped; the next run continues from here\n"
    run = demo(home, "--once")
    assert run.returncode == 0, run.stderr
    assert answers(run.stdout) == answers(made[1])
    assert "statistics  weather.readings" in run.stdout


def test_unreadable_source_is_reported(tmp_path: Path) -> None:
    home = DemoHome.at(tmp_path / "home")
    list(written(home.sources))
    (home.sources / "ticket-desk" / "sales" / "prices" / "_delta_log" / f"{1:020}.json").write_text("torn")
    run = demo(home.path, "--once")
    assert run.returncode == 1
    assert re.fullmatch(r"skiway: ticket-desk could not be synchronized: sales\.prices: .*\n", run.stderr)
    assert not home.is_complete
