"""The shipped list of what Spark brings along is what Spark says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.mark.needs("java", "spark")
@pytest.mark.timeout(300)  # it tries every operator on every type
def test_the_file_of_spark_is_what_spark_says() -> None:
    command = [sys.executable, str(PROJECT / "scripts" / "generate_builtins.py"), "--check", "spark"]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
