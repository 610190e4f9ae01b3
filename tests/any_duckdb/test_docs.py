"""The page about `skiway.duckdb`: its programs run, and it documents every public name."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import duckdb

import skiway.duckdb
from any_duckdb.conftest import Locations
from skiway.duckdb import AttachedLake, LakeConnection

PAGE = Path(__file__).parents[2] / "docs" / "duckdb.md"


def test_programs_on_the_page_run(servers: Locations) -> None:
    with skiway.duckdb.connect(servers.lake) as lake:
        for table in tables(servers):
            lake.sql(f"DROP TABLE {table}")
    program = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL))
    exec(compile(program.replace("grpc://127.0.0.1:50051", servers.lake), str(PAGE), "exec"), {})


def tables(servers: Locations) -> list[str]:
    with duckdb.connect() as connection, skiway.duckdb.attach(connection, "lake", servers.lake) as lake:
        return lake.tables


def test_public_names_are_documented() -> None:
    page = PAGE.read_text()
    for name in skiway.duckdb.__all__:
        assert inspect.getdoc(getattr(skiway.duckdb, name)), name
    methods = [name for kind in (LakeConnection, AttachedLake) for name in vars(kind) if not name.startswith("_")]
    assert [name for name in methods if name not in page] == []
