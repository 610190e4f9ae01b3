"""The shipped list of Spark's builtin functions and types matches Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(300)  # the script tries every operator on every type
def test_spark_builtins_file_matches_spark() -> None:
    command = [sys.executable, str(PROJECT / "scripts" / "generate_builtins.py"), "--check", "spark"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
