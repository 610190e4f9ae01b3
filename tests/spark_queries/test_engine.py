"""The server's side of queries on Spark, with programs that answer as the processes of queries do, or as hostile ones."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from runtime.servers import eventually
from skiway.errors import InvalidArgument, LimitExceeded, SkiwayError, Unavailable
from skiway.spark_queries import engine as engine_module
from skiway.spark_queries import process as process_module
from skiway.spark_queries.engine import SparkEngine, SparkLimits, SparkPlacement, SparkQuery

ANSWER = """
import os, sys, json, time
import pyarrow as pa
query = json.loads(sys.stdin.buffer.readline())
rows = pa.record_batch({"id": pa.array([1, 2, 3])})
def write(kind, payload):
    sys.stdout.buffer.write(kind + len(payload).to_bytes(8, "little"))
    sys.stdout.buffer.write(payload)
    sys.stdout.buffer.flush()
"""
COLUMNS = 'write(b"S", rows.schema.serialize())\nsys.stdin.buffer.readline()\n'
ROWS = COLUMNS + 'write(b"B", rows.serialize())\nwrite(b"B", rows.serialize())\nwrite(b".", b"")\n'
TOKEN = "canary-token-4711"


class Engines:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.made: list[SparkEngine] = []
        self.started = 0

    def __call__(self, program: str, **limits: Any) -> SparkEngine:
        """An engine whose queries run a program instead of Spark."""
        file = self._folder / f"program{len(self.made)}.py"
        file.write_text(ANSWER + program)
        self.made.append(SparkEngine(SparkPlacement(command=[sys.executable, str(file)]), SparkLimits(**limits)))
        return self.made[-1]

    def query(self, account_id: str = "a1") -> Callable[[], SparkQuery]:
        def made() -> SparkQuery:
            self.started += 1
            return SparkQuery(account_id, "SELECT 1", {}, TOKEN)

        return made


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    found = Engines(tmp_path)
    yield found
    for each in found.made:
        each.close()
        assert each.running == 0


def read(engine: SparkEngine, query: Callable[[], SparkQuery], key: str = "k") -> list[int]:
    with engine.result(key, query, when_ended=lambda cancel: None) as (_, batches):
        return [value for batch in batches for value in batch.column("id").to_pylist()]


def test_process_that_found_the_columns_sends_the_rows(engines: Engines) -> None:
    engine, query = engines(ROWS), engines.query()
    assert engine.columns("k", query) == engine.columns("k", query) == pa.schema({"id": pa.int64()})
    assert read(engine, query) == [1, 2, 3, 1, 2, 3]
    assert (engines.started, engine.running) == (1, 0)
    assert read(engine, query) == [1, 2, 3, 1, 2, 3]  # without planning
    assert engines.started == 2


@pytest.mark.parametrize(
    ("program", "limits", "expected", "message"),
    [
        (ROWS, {"rows": 5}, LimitExceeded, "more than 5 rows"),
        (COLUMNS + "sys.stdin.read()", {"seconds": 0.5}, LimitExceeded, r"took longer than 0\.5 s"),
        (COLUMNS + "os._exit(70)", {}, LimitExceeded, "used more than 4000 MB of memory"),
        ('write(b"E", "no column x".encode())', {}, InvalidArgument, "Spark rejects the query: no column x"),
        ("print('broken: ' + query['token'], file=sys.stderr); sys.exit(3)", {}, Unavailable, "has failed: the log"),
        ('write(b"B", b"")', {}, Unavailable, "has failed"),
        (COLUMNS + 'write(b"?", b"")', {}, Unavailable, "has failed"),
        (
            COLUMNS
            + 'sys.stdout.buffer.write(b"B" + (1 << 40).to_bytes(8, "little")); sys.stdout.flush(); sys.stdin.read()',
            {"seconds": 10},
            Unavailable,
            "has failed",
        ),
    ],
)
def test_limits_and_failures(
    engines: Engines, program: str, limits: dict[str, Any], expected: type[SkiwayError], message: str
) -> None:
    engine = engines(program, **limits)
    with pytest.raises(expected, match=message):
        read(engine, engines.query())
    assert engine.running == 0


@pytest.mark.parametrize("payload", ["b'no batch'", "rows.serialize().to_pybytes()[:-16]"])
def test_malformed_rows_are_an_error(engines: Engines, payload: str) -> None:
    with pytest.raises((SkiwayError, pa.ArrowException, OSError)):
        read(engines(COLUMNS + f'write(b"B", {payload})'), engines.query())


def test_token_is_not_in_the_log(engines: Engines, caplog: pytest.LogCaptureFixture) -> None:
    engine = engines("print('broken: ' + query['token'], file=sys.stderr); sys.exit(3)")
    with caplog.at_level(logging.WARNING), pytest.raises(Unavailable):
        read(engine, engines.query())
    assert "broken: ****" in caplog.text
    assert TOKEN not in caplog.text + repr(engines.query()())


@pytest.mark.parametrize("program", ["sys.stdin.read()", "time.sleep(600)"])
def test_query_ends_when_its_client_is_gone(engines: Engines, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(process_module, "_END_S", 2.0)
    engine, cancels = engines(COLUMNS + program), list[Callable[[], None]]()
    began = time.monotonic()
    with engine.result("k", engines.query(), when_ended=cancels.append) as (_, batches):
        cancels[0]()
        with pytest.raises(Unavailable, match="cancelled"):
            next(batches)
    assert engine.running == 0
    assert time.monotonic() - began < 15


def test_accounts_share_the_queries(engines: Engines) -> None:
    engine, first, second = engines(ROWS, queries=3), engines.query("a1"), engines.query("a2")
    never: Any = lambda cancel: None  # noqa: E731
    with engine.result("1", first, when_ended=never), engine.result("2", first, when_ended=never):
        with pytest.raises(
            LimitExceeded, match="2 queries run on Spark, 2 of them of this account, and the server allows 3"
        ):
            read(engine, first, "3")
        with engine.result("3", second, when_ended=never), pytest.raises(LimitExceeded, match="3 queries run on Spark"):
            read(engine, engines.query("a3"), "4")
        assert read(engine, second, "4") == [1, 2, 3, 1, 2, 3]


@pytest.mark.parametrize("queries", [1, 2])
def test_waiting_query_makes_room(engines: Engines, monkeypatch: pytest.MonkeyPatch, queries: int) -> None:
    engine, query = engines(ROWS, queries=queries), engines.query()
    engine.columns("planned", query)
    assert read(engine, query, "other") == [1, 2, 3, 1, 2, 3]
    monkeypatch.setattr(engine_module, "WAITING_S", 0.1)
    engine.columns("planned", query)
    eventually(lambda: engine.running == 0)
