"""Clients that die during a statement, and clients that write concurrently: no partial writes, no lost updates."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from client.recorder import Recorder, recording
from skiway.airport import AirportService, Limits
from skiway.airport.memory import MemoryCatalog
from skiway.client import AirportClient, col
from skiway.errors import Conflict

ROWS = 10_000
COLUMNS = pa.schema([("id", pa.int64()), ("v", pa.float64())])

# Forks a client for each line of input. The client sends two batches of a statement, prints its process id, and waits to be
# killed. Forking saves the imports, which take longer than the test; gRPC has not been used before the fork.
CLIENTS = """
import json, os, signal, sys, threading
import pyarrow as pa
import skiway.client.airport.writing as writing
from skiway.client import AirportClient, col

in_vectors = writing.in_vectors

def halting(batches):
    for number, batch in enumerate(in_vectors(batches)):
        if number == 2:
            print(os.getpid(), flush=True)
            threading.Event().wait()
        yield batch

def run(location, operation, returning):
    with AirportClient(location, "m") as db:
        match operation:
            case "insert":
                rows = pa.table({"id": range(100_000, 110_000)})
                db.insert("s.t", rows, returning=returning)
            case "update":
                db.update("s.t", {"v": -1.0}, returning=returning)
            case "delete":
                db.delete("s.t", where=col("id") >= 0, returning=returning)
            case "json insert":
                rows = pa.table({"id": range(100_000, 110_000), "v": [0.5] * 10_000})
                db.json.insert("s.t", halting(rows.to_batches()), returning=returning)

writing.in_vectors = halting
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the clients
for line in sys.stdin:
    if os.fork() == 0:
        try:
            run(*json.loads(line))
        finally:
            print("the statement ended", flush=True)
            os._exit(1)
"""


@pytest.fixture(scope="module")
def clients() -> Iterator[subprocess.Popen[str]]:
    """A process that forks clients."""
    with subprocess.Popen(
        [sys.executable, "-c", CLIENTS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.communicate()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def filled() -> MemoryCatalog:
    catalog = MemoryCatalog("m", schemas=["s"])
    schema = catalog.schema("s")
    assert schema is not None
    schema.add_table("t", pa.table({"id": range(ROWS), "v": [0.0] * ROWS}, COLUMNS))
    return catalog


@pytest.fixture
def location(recorder: Recorder) -> Iterator[str]:
    """A server with room for one exchange: one that a dead client leaves behind would block all others."""
    with recording(AirportService(filled(), limits=Limits(exchanges=1)), recorder) as found:
        yield found


@pytest.mark.parametrize("returning", [True, False], ids=["returning", "silent"])
@pytest.mark.parametrize("operation", ["insert", "update", "delete", "json insert"])
def test_client_killed_during_a_statement_changes_nothing(
    clients: subprocess.Popen[str], location: str, recorder: Recorder, operation: str, returning: bool
) -> None:
    method = "DoPut" if operation.startswith("json") else "DoExchange"
    assert clients.stdin is not None
    assert clients.stdout is not None
    clients.stdin.write(json.dumps([location, operation, returning]) + "\n")
    clients.stdin.flush()
    client = int(clients.stdout.readline())
    recorder.wait_for_messages(3)  # plus a descriptor, a schema or another batch: some rows have arrived in any case
    os.kill(client, signal.SIGKILL)
    recorder.wait_for(method)
    with AirportClient(location, "m", timeout_s=200) as db:
        rows = db.scan("s.t").read_all()
        assert rows["id"].to_pylist() == list(range(ROWS))
        assert pc.unique(rows["v"]).to_pylist() == [0.0]
        assert db.insert("s.t", pa.table({"id": [-1], "v": [1.0]})).count == 1, "and no other client is blocked"


def test_updates_up_to_the_exchange_limit_scan_concurrently(recorder: Recorder) -> None:
    """All hold their exchanges open at the same time, and scan the same table meanwhile."""
    together = 4
    limits = Limits(exchanges=together, scans=together)
    with (
        recording(AirportService(filled(), limits=limits), recorder) as location,
        AirportClient(location, "m", timeout_s=60) as db,
    ):
        meeting = threading.Barrier(together, timeout=200)

        def update(writer: int) -> int:
            def met(v: pa.Array) -> pa.Array:
                meeting.wait()
                return pc.add(v, writer + 1)

            start = writer * 1000
            return db.update("s.t", {"v": met}, where=(col("id") >= start) & (col("id") < start + 1000)).count

        with ThreadPoolExecutor(together) as pool:
            assert list(pool.map(update, range(together))) == [1000] * together
        rows = db.scan("s.t").read_all()
    found = dict(zip(rows["id"].to_pylist(), rows["v"].to_pylist(), strict=True))
    assert found == {i: i // 1000 + 1.0 if i < 4000 else 0.0 for i in range(ROWS)}


@pytest.mark.full
def test_concurrent_writers_of_one_row_lose_no_update(recorder: Recorder) -> None:
    """Later writers get a conflict and retry."""
    with recording(AirportService(filled()), recorder) as location:

        def add_one(_: int) -> None:
            with AirportClient(location, "m", timeout_s=60) as db:
                while True:
                    try:
                        assert db.update("s.t", {"v": lambda v: pc.add(v, 1)}, where=col("id") == 7).count == 1
                    except Conflict:
                        continue
                    return

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(add_one, range(24)))
        with AirportClient(location, "m") as db:
            assert db.scan("s.t", where=col("id") == 7).read_all()["v"].to_pylist() == [24.0]
