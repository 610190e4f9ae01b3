"""The other tests of this folder with other versions of DuckDB, which are downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from any_duckdb.versions import DUCKDB, TESTS, VERSIONS, installed

PROJECT = Path(__file__).parents[2]


@pytest.mark.skipif(DUCKDB in os.environ, reason="these tests run in it")
@pytest.mark.parametrize("version", VERSIONS)
def test_statements_work_with_this_duckdb(version: str, tmp_path: Path) -> None:
    folder = installed(version, tmp_path)
    env = {**os.environ, DUCKDB: str(folder), "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    files = [str(PROJECT / file) for file in TESTS]
    program = f"import duckdb, pytest; assert duckdb.__version__ == {version!r}; exit(pytest.main({files!r} + ['-q']))"
    run = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
