"""An interrupted first start is completed by the next one."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from demo.conftest import FirstStart
from demo.demos import demo
from skiway.demo.build import written
from skiway.demo.home import DemoHome

pytestmark = [pytest.mark.timeout(1500), pytest.mark.needs("java", "spark")]


def test_repeatedly_interrupted_demo_is_completed(first_start: FirstStart) -> None:
    """The other tests show that the completed demo has the right contents."""
    for each in first_start.interruptions:
        assert not each.announced
        if each.number == signal.SIGKILL:
            assert each.code == -signal.SIGKILL
        else:
            assert (each.code, each.errors) == (130, "skiway: stopped; the next run continues from here\n")
    assert "statistics  weather.readings" in first_start.served.printed()


def test_unreadable_source_is_reported(tmp_path: Path) -> None:
    home = DemoHome.at(tmp_path / "home")
    list(written(home.sources))
    (home.sources / "ticket-desk" / "sales" / "prices" / "_delta_log" / f"{1:020}.json").write_text("torn")
    run = demo(home.path, "--once")
    assert run.returncode == 1
    assert re.fullmatch(r"skiway: ticket-desk could not be synchronized: sales\.prices: .*\n", run.stderr)
    assert not home.is_complete
