"""The programs in `postcards.md` run unchanged."""

from __future__ import annotations

import ast
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from client.metastore_server import serving_metastore
from examples.pages import GUIDE, programs
from examples.scripts import load
from skiway.airport import Server
from skiway.client import AirportClient, Metastore

PAGE = Path(__file__).with_name("postcards.md").read_text()
POSTCARDS: dict[str, str] = dict(re.findall(r"```python\n# (.*?)\n(.*?)```", PAGE, re.DOTALL))
"""The programs by the comment that each begins with."""


def test_a_server_of_your_own(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(POSTCARDS["a server of your own"], names)
    assert re.fullmatch(r"grpc://127\.0\.0\.1:\d+\n", capsys.readouterr().out)
    with Server(names["demo"].build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("sales.people").read_all().to_pydict() == {"id": [1, 2], "name": ["Ada", "Grace"]}
        assert db.call("sales.numbers", 2).read_all().to_pydict() == {"n": [0, 1]}


def test_guide_begins_with_the_same_server() -> None:
    _, first, _ = next(programs(GUIDE))
    assert ast.dump(ast.parse(first)) == ast.dump(ast.parse(POSTCARDS["a server of your own"]))


def test_calls_that_duckdb_makes() -> None:
    program = POSTCARDS["the calls that DuckDB makes, from Python"]
    with Server(load("basic").catalog(), port=0) as server:
        names: dict[str, Any] = {}
        exec(program.replace("grpc://127.0.0.1:50051", server.location), names)  # tests must not use a fixed port
        assert names["db"].location == server.location
        with AirportClient(server.location, catalog="demo", token=None) as db:
            assert repr(db.schemas()).startswith("[Schema(name='sales', ")
            assert db.scan("sales.people", columns=["name"]).read_all().to_pydict() == {"name": ["Ada", "Grace"]}


def test_the_metastore(capsys: pytest.CaptureFixture[str]) -> None:
    program = POSTCARDS["the metastore"]
    with serving_metastore() as server, Metastore(server.address) as lake:
        for name, rows in (("people", 2), ("orders", None)):
            table = lake.tables.create(f"lake.sales.{name}", schema="{}")
            if rows is not None:
                lake.snapshots.create(table, 1, created_at=datetime.now(UTC))
                lake.statistics.put(table, 1, row_count=rows)
        names: dict[str, Any] = {}
        exec(program.replace("127.0.0.1:50051", server.address), names)  # tests must not use a fixed port
        names["lake"].close()
    assert capsys.readouterr().out == "orders None\npeople 2\n"
