"""The other tests of this folder with other versions of DuckDB, which are downloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from any_duckdb.versions import DUCKDB, VERSIONS

FILES = ("test_connection.py", "test_queries.py", "test_attached.py", "test_references.py", "test_magic.py")
INSTALL = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]


@pytest.mark.skipif(DUCKDB in os.environ, reason="these tests run in it")
@pytest.mark.parametrize("version", VERSIONS)
def test_statements_work_with_this_duckdb(version: str, tmp_path: Path) -> None:
    folder = tmp_path / "duckdb"
    command = [*INSTALL, "--target", str(folder), f"duckdb=={version}"]
    installed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if installed.returncode:
        pytest.skip(f"DuckDB {version} cannot be downloaded: {' '.join(command)}: {installed.stderr[-500:]}")
    env = {**os.environ, DUCKDB: str(folder), "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])}
    files = [str(Path(__file__).with_name(name)) for name in FILES]
    program = f"import duckdb, pytest; assert duckdb.__version__ == {version!r}; exit(pytest.main({files!r} + ['-q']))"
    run = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, env=env)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-2000:]
