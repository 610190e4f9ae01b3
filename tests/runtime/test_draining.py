"""A server that gets SIGTERM while callers keep it busy ends within the drain time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pytest

from runtime.servers import Server, calling, eventually, started
from skiway.client import AirportClient, Metastore
from skiway.client.metastore.calls import Retries
from skiway.errors import SkiwayError
from skiway.model import v1

DRAIN_S = 1.0
MARGIN_S = 8.0
"""Five seconds for cancelled calls to notice it, and some for the end of the process."""

CALLERS = 3

Began = Callable[[], None]
Attack = Callable[[Server, Began], None]
"""Keeps a server busy, and calls the function when it does."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with started(tmp_path / "home", "--set", f"server.grpc.drain_seconds={DRAIN_S}") as running:
        with AirportClient(running.addresses["airport"], "lake") as lake:
            lake.create_schema("s")
            lake.create_table_as("s.t", pa.table({"id": range(1000)}))
        yield running


def statement(server: Server, began: Began) -> None:
    """A query that would run for hours."""
    with AirportClient(server.addresses["airport"], "lake") as lake:
        sql = "SELECT count(*) FROM range(1000000000) a, range(1000000) b WHERE a.range % 7 <> b.range % 11"
        with lake.call("skiway.query", sql) as rows:
            eventually(lambda: _seconds_of_children(server) > 0.2)
            began()
            rows.read_all()


def slow_reader(server: Server, began: Began) -> None:
    """A client that reads only the first rows of many."""
    with AirportClient(server.addresses["airport"], "lake") as lake:
        sql = "SELECT a.range, repeat('x', 1000) AS x FROM range(100000000) a"
        with lake.call("skiway.query", sql) as rows:
            next(iter(rows))
            began()
            server.process.wait(60)
            rows.read_all()


def filter_over_rest(server: Server, began: Began) -> None:
    """One plan after another, each with as many conditions as may be."""
    tree: dict[str, Any] = {"type": "eq", "term": "id", "value": 1}
    for number in range(60):
        tree = {"type": "or", "left": tree, "right": {"type": "eq", "term": "id", "value": number}}
    with httpx.Client(base_url=server.addresses["http"], timeout=60) as client:
        while True:
            answer = client.post("/iceberg/v1/lake/namespaces/s/tables/t/plan", json={"filter": tree})
            assert answer.status_code in (200, 503), answer.text
            began()


def filter_over_grpc(server: Server, began: Began) -> None:
    """One scan bundle after another, each with as many predicates and values as may be."""
    predicate = v1.Predicate(column="id", op=v1.PO_IN, values=map(str, range(10)))
    with (
        Metastore(server.address, retries=Retries(limit=0)) as lake,
        lake.queries.begin("lake.s.t", catalog="lake") as query,
    ):
        while True:
            query.scan("lake.s.t", predicates=[predicate] * 1000)
            began()


def slow_writer(server: Server, began: Began) -> None:
    """A stream that the client neither continues nor ends."""

    def nothing() -> Iterator[v1.PutColumnStatsRequest]:
        server.process.wait(60)
        yield from ()

    with calling(server.address) as caller:
        running = caller.put_columns(nothing())
        began()
        running.result()


def _seconds_of_children(server: Server) -> float:
    """The processor time of the processes that the server has started."""
    ticks = 0
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = file.read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12]) if int(fields[1]) == server.process.pid else 0
    return ticks / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("attack", [statement, slow_reader, filter_over_rest, filter_over_grpc, slow_writer])
def test_busy_server_ends_within_the_drain_time(server: Server, attack: Attack) -> None:
    began = [threading.Event() for _ in range(CALLERS)]

    def attempt(each: threading.Event) -> None:
        with suppress(SkiwayError, grpc.RpcError, httpx.HTTPError):
            attack(server, each.set)

    with ThreadPoolExecutor(CALLERS) as threads:
        attempts = [threads.submit(attempt, each) for each in began]
        eventually(lambda: all(each.is_set() for each in began) or any(each.done() for each in attempts), within_s=60)
        assert not any(each.done() for each in attempts)
        server.send_signal()
        started_at = time.monotonic()
        assert server.ended() == 0
        assert time.monotonic() - started_at < DRAIN_S + MARGIN_S
        for each in attempts:
            each.result(60)
    assert "Traceback" not in server.output()
