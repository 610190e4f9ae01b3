"""The live tests run with `make live`. Without it, only those are collected that need no client."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.pages import PROJECT
from live.clients import Client, ClientMissing, find_client
from live.report import REPORT
from live.servers import TARGETS, LiveServer, serving

LIVE = bool(os.environ.get("SKIWAY_LIVE"))
DIFFERENCES = PROJECT / ".cache" / "live-differences.txt"
NEED_NO_CLIENT = ("test_lists.py",)

if not LIVE:
    collect_ignore = [each.name for each in Path(__file__).parent.glob("test_*.py") if each.name not in NEED_NO_CLIENT]


@pytest.fixture(scope="session")
def client() -> Client:
    """The real client; the run ends if there is none."""
    try:
        return find_client()
    except ClientMissing as missing:
        pytest.exit(str(missing), returncode=2)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder for servers, in memory where possible: the suite waits for every commit."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="skiway-live-", dir=memory if memory.is_dir() else None) as path:
        yield Path(path)


@pytest.fixture(params=TARGETS)
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[LiveServer]:
    """A server of each kind, which the test may stop."""
    with serving(TARGETS[request.param].start, Path(tempfile.mkdtemp(dir=folder))) as running:
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if LIVE:
        terminalreporter.section("live")
        for line in REPORT.lines():
            terminalreporter.write_line(line)
        if REPORT.differences:
            DIFFERENCES.parent.mkdir(exist_ok=True)
            DIFFERENCES.write_text(REPORT.details())
            terminalreporter.write_line(f"all differences: {DIFFERENCES}")
