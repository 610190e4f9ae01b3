from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import skiway.duckdb
from any_duckdb.versions import DUCKDB
from skiway.duckdb import LakeConnection


@dataclass(frozen=True, slots=True)
class Locations:
    """The addresses of the two servers of `server.py`."""

    lake: str
    seen: str


@pytest.fixture(scope="session")
def servers() -> Iterator[Locations]:
    paths = [path for path in sys.path if path and path != os.environ.get(DUCKDB)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, str(Path(__file__).with_name("server.py"))]
    with subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Locations(*process.stdout.readline().split())
        process.communicate()


@pytest.fixture
def lake(servers: Locations) -> Iterator[LakeConnection]:
    """A connection to a lake with an empty schema `s`."""
    with skiway.duckdb.connect(servers.lake) as connection:
        for (table,) in connection.execute("SHOW TABLES FROM lake.s").fetchall() if "s" in schemas(connection) else []:
            quoted = table.replace('"', '""')
            connection.sql(f'DROP TABLE lake.s."{quoted}"')
        connection.sql("CREATE SCHEMA IF NOT EXISTS lake.s")
        yield connection


@pytest.fixture
def seen(servers: Locations) -> Iterator[LakeConnection]:
    """A connection to the catalog that records its scans."""
    with skiway.duckdb.connect(servers.seen, "seen") as connection:
        yield connection


def schemas(connection: LakeConnection) -> list[str]:
    return [name for _, name, _ in connection.execute("SHOW SCHEMAS").fetchall()]
