"""Clients that vanish, are slow, or lose their connection without closing it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from faults.disturbed import NAME, disturbed
from faults.proxies import TcpProxy
from faults.tables import SCHEMA, rows
from runtime.servers import eventually
from skiway.client import AirportClient
from skiway.errors import LimitExceeded, SkiwayError

pytestmark = pytest.mark.timeout(300)

# Sends a batch every 10 ms until it is killed.
WRITER = """
import itertools, sys, time
import pyarrow as pa
from skiway.client import AirportClient

schema = pa.schema({"id": pa.int64(), "word": pa.string()})

def batches():
    for number in itertools.count(1_000_000):
        if number == 1_000_010:
            print("writing", flush=True)
        time.sleep(0.01)
        yield pa.record_batch({"id": [number], "word": ["lost"]}, schema=schema)

with AirportClient(sys.argv[1], "lake") as db:
    db.insert("s.t", pa.RecordBatchReader.from_batches(schema, batches()))
"""


def warehouse_files(home: Path) -> set[Path]:
    return {path for path in (home / "warehouse").rglob("*.parquet") if path.is_file()}


@pytest.mark.full
def test_vanished_clients_leave_no_rows_and_no_files(tmp_path: Path) -> None:
    with disturbed(tmp_path / "home") as running:
        before = warehouse_files(running.home)
        for _ in range(3):
            with subprocess.Popen(
                [sys.executable, "-c", WRITER, running.server.addresses["airport"]], stdout=subprocess.PIPE, text=True
            ) as client:
                assert client.stdout is not None
                assert client.stdout.readline() == "writing\n"
                client.kill()
            assert running.writer.insert()
        eventually(lambda: len(warehouse_files(running.home) - before) == 3)


@pytest.mark.full
def test_slow_clients_do_not_delay_others(tmp_path: Path) -> None:
    """Some read a row group at a time and pause, some write a batch at a time and pause."""
    with disturbed(tmp_path / "home") as running:
        wide = pa.table({"id": range(-200_000, 0), "word": ["w" * 100] * 200_000}, schema=SCHEMA)
        running.doors.db.create_table("s.wide", SCHEMA)
        running.doors.db.insert("s.wide", wide)
        ended = threading.Event()
        slow = [
            threading.Thread(target=_read_slowly, args=(running.server.addresses["airport"], ended)) for _ in range(8)
        ]
        slow += [
            threading.Thread(target=_write_slowly, args=(running.server.addresses["airport"], ended)) for _ in range(8)
        ]
        for each in slow:
            each.start()
        try:
            longest = max(_seconds_of(running.writer.insert) for _ in range(5))
            assert longest < 10, "a statement had to wait for slow clients"
            assert running.doors.db.count(NAME) == running.writer.attempted
        finally:
            ended.set()
            for each in slow:
                each.join()
        running.doors.db.drop_table("s.wide")


def _seconds_of(statement: object) -> float:
    began = time.monotonic()
    assert callable(statement)
    assert statement()
    return time.monotonic() - began


def _read_slowly(location: str, ended: threading.Event) -> None:
    with AirportClient(location, "lake") as db, db.scan("s.wide") as read:
        for _ in read:
            if ended.wait(0.2):
                return


def _write_slowly(location: str, ended: threading.Event) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from rows(0).to_batches()
        ended.wait()

    with AirportClient(location, "lake") as db:
        db.insert("s.wide", pa.RecordBatchReader.from_batches(SCHEMA, batches()))


def test_half_open_connections_are_ended(tmp_path: Path) -> None:
    """A client's machine is gone without a word: its statement ends once its stream has been idle for too long."""
    settings = ("server.grpc.idle_seconds=2", "quotas.account.exchanges=1")
    with disturbed(tmp_path / "home", *settings) as running:
        address = running.server.addresses["airport"].removeprefix("grpc://")
        sent, ended = threading.Event(), threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            yield from rows(5000, 5001).to_batches()
            sent.set()
            ended.wait()

        def insert(location: str) -> None:
            with suppress(SkiwayError), AirportClient(location, "lake", timeout_s=20) as db:
                db.insert(NAME, pa.RecordBatchReader.from_batches(SCHEMA, batches()))

        with TcpProxy(address).serving() as proxy:
            client = threading.Thread(target=insert, args=(f"grpc://{proxy.address}",))
            client.start()
            assert sent.wait(200)
            proxy.freeze()
            assert not running.writer.insert(), "the only exchange of the quota is still open"
            assert isinstance(running.writer.errors[-1], LimitExceeded)
            running.writer.insert_until_it_works()
            ended.set()
        client.join()
