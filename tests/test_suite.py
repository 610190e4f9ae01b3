"""The test suite itself: skips are counted, fail in CI, and a killed run leaves no processes behind."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import scope
from runtime.servers import eventually
from watchdog import processes

TESTS = Path(__file__).parent
CONFTEST = (TESTS / "conftest.py").read_text()
PYTEST = (
    *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--import-mode=importlib"),
    *("-o", f"pythonpath={TESTS}"),
)

SUITE = """
import pytest
import yaml

@pytest.mark.needs("a part that nobody has")
def test_that_needs_a_part(): pass

def test_that_skips_by_hand(): pytest.skip("no network")

def test_that_fails_as_expected(): pytest.xfail("java is slow")
"""


@pytest.mark.parametrize(
    ("ci", "outcome"),
    [
        ("true", "1 failed, 1 xfailed, 2 errors in"),
        ("false", "3 skipped, 1 xfailed in"),
    ],
)
def test_skips_are_counted_and_fail_in_ci(tmp_path: Path, ci: str, outcome: str) -> None:
    missing = "PARTS['a part that nobody has'] = Part(lambda: False, 'ask for it')\n"
    (tmp_path / "conftest.py").write_text(CONFTEST + missing)
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "test_module.py").write_text("import pytest\npytest.skip('needs spark', allow_module_level=True)\n")
    printed = subprocess.run(
        [*PYTEST, "-rs", "--continue-on-collection-errors"],
        check=False,
        cwd=tmp_path,
        env={**_without_scope(), "CI": ci},
        capture_output=True,
        text=True,
    ).stdout
    assert outcome in printed.splitlines()[-1], printed
    assert f"skips: {0 if ci == 'true' else 3}" in printed
    assert "needs a part that nobody has; to get it: ask for it" in printed
    assert ("with CI=true a skip is a failure" in printed) == (ci == "true")


def _without_scope() -> dict[str, str]:
    """The environment in which pytest chooses the tests of the suite that it runs by itself."""
    return {name: value for name, value in os.environ.items() if name != "SKIWAY_TESTS"}


LEAVING_PROCESSES = """
import os, subprocess, time
from pathlib import Path
from runtime.servers import started
from storage.homes import running_postgres
from watchdog import VARIABLE

def test_that_is_killed(tmp_path):
    sleeper = subprocess.Popen(["sleep", "600"], start_new_session=True)
    with running_postgres(), started(tmp_path / "home"):
        Path("run").write_text(os.environ[VARIABLE])
        time.sleep(600)
"""


@pytest.mark.needs("postgres")
@pytest.mark.skipif(sys.platform != "linux", reason="the watchdog reads /proc")
@pytest.mark.full
def test_killed_run_leaves_no_processes(tmp_path: Path) -> None:
    """No daemonized database, no server, and no process in its own session."""
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaving.py").write_text(LEAVING_PROCESSES)
    started = tmp_path / "run"
    # The run is no worker of xdist, even if this test runs in one: only then does it start a watchdog of its own.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST")}
    with subprocess.Popen(PYTEST, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL) as pytest_run:

        def is_ready() -> bool:
            assert pytest_run.poll() is None
            return started.exists() and bool(started.read_text())

        eventually(is_ready, within_s=100)
        run = started.read_text().split()[-1]
        commands = set()
        for each in processes(run):
            with contextlib.suppress(OSError):  # a short-lived process may have ended since it was listed
                commands.add(Path("/proc", str(each), "comm").read_text().strip())
        assert {"postgres", "sleep"} <= commands
        assert any("skiway" in command or "python" in command for command in commands)
        pytest_run.kill()
    eventually(lambda: processes(run) == [])


def test_slow_tests_exist() -> None:
    for line in scope.SLOW_TESTS:
        file, *_, name = line.split("::")
        assert f"def {name}(" in (Path(__file__).parents[1] / file).read_text(), line


def test_make_test_leaves_out_slow_tests_and_pytest_does_not() -> None:
    line = min(scope.SLOW_TESTS)
    for wanted, found in (("quick", 0), ("slow", 1), ("", 1)):
        command = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", line]
        env = {**os.environ, "SKIWAY_TESTS": wanted}
        run = subprocess.run(command, env=env, cwd=Path(__file__).parents[1], capture_output=True, text=True)
        assert run.stdout.count(line) == found, run.stdout


def test_nightly_workflow_runs_the_targets_that_contributing_names() -> None:
    project = Path(__file__).parents[1]
    workflow = yaml.safe_load((project / ".github" / "workflows" / "nightly.yml").read_text())
    targets = set(workflow["jobs"]["check"]["strategy"]["matrix"]["target"])
    (row,) = re.findall(r"^\| every night.*$", (project / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert {name.removeprefix("make ") for name in re.findall(r"`([^`]+)`", row)} == targets
    described = set(re.findall(r"^([a-z-]+):.*##", (project / "Makefile").read_text(), re.MULTILINE))
    assert targets <= described
