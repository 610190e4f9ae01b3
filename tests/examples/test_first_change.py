"""The first change in CONTRIBUTING.md: performed on a copy of the project, it turns a failing test into a passing one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from examples.pages import CONTRIBUTING, PROJECT

TEST = "tests/foundation/test_durations.py"
CODE = "src/skiway/foundation/clock.py"


def block(kind: str, path: str) -> str:
    (found,) = re.findall(rf"^   ```{kind} {path}\n(.*?)^   ```$", CONTRIBUTING.read_text(), re.MULTILINE | re.DOTALL)
    return dedent(found)


def result(copy: Path, *selected: str) -> str:
    """The last line of pytest."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        copy,
        copy / TEST,
        *selected,
    ]
    run = subprocess.run(
        command, cwd=copy, env={"PYTHONPATH": str(copy / "src")}, capture_output=True, text=True, check=False
    )
    return run.stdout.splitlines()[-1]


def test_first_change_makes_its_test_pass(tmp_path: Path) -> None:
    shutil.copytree(
        PROJECT / "src" / "skiway", tmp_path / "src" / "skiway", ignore=shutil.ignore_patterns("__pycache__")
    )
    (tmp_path / TEST).parent.mkdir(parents=True)
    (tmp_path / TEST).write_text(block("python", TEST))
    assert result(tmp_path, "-k", "weeks").startswith("1 failed")
    code = (tmp_path / CODE).read_text()
    for before, after in re.findall(r"^-(.*\n)\+(.*\n)", block("diff", CODE), re.MULTILINE):
        assert code.count(before) == 1, "the example of CONTRIBUTING.md is out of date"
        code = code.replace(before, after)
    (tmp_path / CODE).write_text(code)
    assert result(tmp_path, "-k", "weeks").startswith("1 passed")
