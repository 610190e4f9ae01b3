"""The first programs that users type, run exactly as they were promised."""

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


@pytest.fixture(scope="module")
def promised(shared: Path) -> dict[str, str]:
    """The promised programs by the comment that each begins with."""
    blocks = re.findall(r"```python\n# (.*?)\n(.*?)```", (shared / "design.md").read_text(), re.DOTALL)
    return dict(blocks)


def test_a_server_of_ones_own(promised: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    exec(promised["a server of one's own"], names)
    assert re.fullmatch(r"grpc://127\.0\.0\.1:\d+\n", capsys.readouterr().out)
    with Server(names["demo"].build(), port=0) as server, AirportClient(server.location, "demo") as db:
        assert db.scan("sales.people").read_all().to_pydict() == {"id": [1, 2], "name": ["Ada", "Grace"]}
        assert db.call("sales.numbers", 2).read_all().to_pydict() == {"n": [0, 1]}


def test_the_guide_begins_with_it(promised: dict[str, str]) -> None:
    _, first, _ = next(programs(GUIDE))
    assert ast.dump(ast.parse(first)) == ast.dump(ast.parse(promised["a server of one's own"]))


def test_the_same_calls_as_duckdb_makes(promised: dict[str, str]) -> None:
    program = promised["the same calls as DuckDB makes, from Python"]
    with Server(load("basic").catalog(), port=0) as server:
        names: dict[str, Any] = {}
        exec(program.replace("grpc://127.0.0.1:50051", server.location), names)  # no test owns a fixed port
        assert names["db"].location == server.location
        with AirportClient(server.location, catalog="demo", token=None) as db:
            assert repr(db.schemas()).startswith("[Schema(name='sales', ")
            assert db.scan("sales.people", columns=["name"]).read_all().to_pydict() == {"name": ["Ada", "Grace"]}


def test_the_metastore(promised: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    program = promised["the metastore"]
    with serving_metastore() as server, Metastore(server.address) as lake:
        for name, rows in (("people", 2), ("orders", None)):
            table = lake.tables.create(f"lake.sales.{name}", schema="{}")
            if rows is not None:
                lake.snapshots.create(table, 1, created_at=datetime.now(UTC))
                lake.statistics.put(table, 1, row_count=rows)
        names: dict[str, Any] = {}
        exec(program.replace("127.0.0.1:50051", server.address), names)  # no test owns a fixed port
        names["lake"].close()
    assert capsys.readouterr().out == "orders None\npeople 2\n"
