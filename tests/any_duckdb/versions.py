"""Versions of DuckDB that `skiway.duckdb` is tested with."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DUCKDB = "SKIWAY_DUCKDB"
"""The environment variable with the folder of the DuckDB to test."""
PART = tomllib.loads((Path(__file__).parents[1] / "compatibility" / "parts.toml").read_text())["duckdb"]
VERSIONS: tuple[str, ...] = tuple(PART["versions"])
TESTS: tuple[str, ...] = tuple(PART["tests"])
"""The files whose tests run with each version."""
INSTALL = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--no-deps", "--python", sys.executable]


def installed(version: str, place: Path) -> Path:
    """The folder of a version, which is downloaded; the test is skipped if it cannot be."""
    folder = place / f"duckdb-{version}"
    command = [*INSTALL, "--target", str(folder), f"duckdb=={version}"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode:
        pytest.skip(f"DuckDB {version} cannot be downloaded: {' '.join(command)}: {done.stderr[-500:]}")
    return folder
