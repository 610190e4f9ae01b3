"""The limits of the sizes of code and documentation, which `make lint` checks."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from examples.pages import PROJECT


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    return runpy.run_path(str(PROJECT / "scripts" / "check_size.py"))


def test_sizes_above_their_limits_are_named_with_what_to_do(check: dict[str, Any]) -> None:
    limits = {"lines": 100, "modules": 5, "folders": 1}
    problems = list(check["findings"](limits, {"lines": 1100, "modules": 5, "words": 7}))
    assert problems == [
        "folders is not measured: remove it from size.toml",
        "lines is 1,100, 1,000 above its limit: say it with less, or raise the limit in size.toml and write there why",
        "words is 7 and has no limit: add it to size.toml",
    ]


def test_limits_are_only_lowered_and_keep_their_comments(check: dict[str, Any]) -> None:
    text = "# why\nlines = 100\nmodules = 5\n"
    assert check["lowered"](text, {"lines": 90, "modules": 6}) == "# why\nlines = 90\nmodules = 5\n"


def test_generated_code_is_counted_separately(check: dict[str, Any], tmp_path: Path) -> None:
    assert check["is_generated"](check["SOURCE"] / "model" / "v1" / "webhook_pb2.pyi")
    assert not check["is_generated"](check["SOURCE"] / "errors.py")
    (tmp_path / "module.py").write_text("a = 1\n\nb = 2\n")
    assert check["lines"](tmp_path / "module.py") == 3


def test_statements_pass_through_no_more_files_than_their_limits() -> None:
    script = str(PROJECT / "scripts" / "call_paths.py")
    run = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    assert [line.partition(":")[0] for line in run.stdout.splitlines()] == ["select", "insert", "rest_commit", "sync"]
