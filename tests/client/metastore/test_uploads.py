"""Streaming uploads of statistics: any number, in bounded memory, each stored once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from client.metastore_server import Act, Server, serving_metastore, wire_to
from skiway.client import Metastore
from skiway.client.metastore import Retries, Table
from skiway.client.metastore.snapshots import MESSAGE_BYTES
from skiway.errors import Conflict, Contention, InvalidArgument, NotFound, TimedOut, Unavailable
from skiway.metastore import Realm
from skiway.metastore.statistics.api import STEP
from skiway.model import v1

QUICK = Retries(first_pause_s=0.001, longest_pause_s=0.002)
MANY = 100_000


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serving_metastore() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    yield running
    running.disturbances.clear()


@pytest.fixture
def lake(server: Server) -> Iterator[Metastore]:
    with Metastore(server.address, retries=QUICK) as lake:
        yield lake


@pytest.fixture
def table(lake: Metastore) -> Iterator[Table]:
    created = lake.tables.create("lake.sales.wide", schema="{}")
    lake.snapshots.create(created, 1, created_at=datetime(2025, 6, 1, tzinfo=UTC))
    yield created
    lake.tables.delete(created)


def columns(count: int, *, weight: int = 0) -> Iterator[v1.ColumnStats]:
    for number in range(1, count + 1):
        yield v1.ColumnStats(column_id=number, column_name=f"c{number}", value_count=number, tdigest=bytes(weight))


def test_columns_and_files_are_sent_and_read_back_in_pages(lake: Metastore, table: Table) -> None:
    assert lake.statistics.put_columns(table, 1, columns(300)) == 300
    found = lake.statistics.columns(table, page_size=7)
    assert [column.column_id for column in found] == list(range(1, 301))
    assert found.total == 300
    files = [v1.FileColumnStats(file_path=f"f{n}", row_count=n, columns=columns(2)) for n in range(9)]
    assert lake.statistics.put_files("lake.sales.wide", lake.snapshots.get(table), iter(files)) == 9
    stored = list(lake.statistics.files(table, 1, page_size=2))
    assert [(file.file_path, file.row_count, len(file.columns)) for file in stored] == [
        (f"f{n}", n, 2) for n in range(9)
    ]


def test_more_columns_than_one_write_batch_are_stored(lake: Metastore, table: Table) -> None:
    assert lake.statistics.put_columns(table, 1, columns(STEP + 1)) == STEP + 1
    assert lake.statistics.columns(table).total == STEP + 1


CLIENT = r"""
import pathlib, re, sys
from skiway.client import Metastore
from skiway.model import v1

def peak_kib():
    return int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1])

def columns():
    for number in range(1, int(sys.argv[2]) + 1):
        yield v1.ColumnStats(column_id=number, value_count=number, tdigest=bytes(1024))

with Metastore(sys.argv[1]) as lake:
    table = lake.tables.get("lake.sales.wide")
    lake.statistics.put_columns(table, 1, [next(columns())])
    before = peak_kib()
    assert lake.statistics.put_columns(table, 1, columns()) == int(sys.argv[2])
    print(peak_kib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc, where Linux tells a process's memory")
@pytest.mark.full
def test_client_memory_does_not_grow_with_the_upload_size(server: Server, table: Table) -> None:
    sizes = []

    def count_only(truly: Act, realm: Realm, requests: Iterator[v1.PutColumnStatsRequest]) -> Any:
        total = 0
        for request in requests:
            sizes.append(request.ByteSize())
            total += len(request.columns)
        return v1.PutColumnStatsResponse(upserted=total)

    server.disturb("PutColumnStats", count_only)
    run = subprocess.run(
        [sys.executable, "-c", CLIENT, server.address, str(MANY)], check=False, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert sum(sizes) > 100_000_000
    assert max(sizes) < 1.1 * MESSAGE_BYTES
    assert int(run.stdout) < 25 * 1024, "KiB more than before"


def test_slow_server_slows_down_the_sender(server: Server, lake: Metastore, table: Table) -> None:
    called, release = threading.Event(), threading.Event()
    generated = []

    def slow(truly: Act, realm: Realm, requests: Iterator[v1.PutColumnStatsRequest]) -> Any:
        first = next(requests)
        called.set()
        release.wait(200)
        return v1.PutColumnStatsResponse(upserted=len(first.columns) + sum(len(r.columns) for r in requests))

    def watched() -> Iterator[v1.ColumnStats]:
        for column in columns(2000, weight=MESSAGE_BYTES // 4):
            generated.append(column.column_id)
            yield column

    server.disturb("PutColumnStats", slow)
    sender = threading.Thread(target=lambda: lake.statistics.put_columns(table, 1, watched()))
    sender.start()
    assert called.wait(200)
    sender.join(0.5)  # enough time to generate all 2000 without backpressure
    assert len(generated) < 200
    release.set()
    sender.join(200)
    assert len(generated) == 2000


def test_large_item_is_sent_in_its_own_message(lake: Metastore, table: Table) -> None:
    large = [*columns(1, weight=3 * MESSAGE_BYTES), *list(columns(3))[1:]]
    assert lake.statistics.put_columns(table, 1, large) == 3


def test_empty_upload_is_rejected_by_the_server(lake: Metastore, table: Table) -> None:
    with pytest.raises(InvalidArgument) as refused:
        lake.statistics.put_columns(table, 1, [])
    assert refused.value.key == "column.stats.empty"
    with pytest.raises(InvalidArgument) as refused:
        lake.statistics.put_files(table, 1, iter(()))
    assert refused.value.key == "file.column.stats.empty"


def test_rejection_stops_the_upload_immediately(lake: Metastore, table: Table) -> None:
    def endless() -> Iterator[v1.ColumnStats]:
        while True:
            yield v1.ColumnStats(column_id=0, tdigest=bytes(10_000))

    with pytest.raises(InvalidArgument) as refused:
        lake.statistics.put_columns(table, 1, endless())
    assert refused.value.key == "stats.invalid"


def test_invalid_item_is_rejected_with_what_to_pass(lake: Metastore, table: Table) -> None:
    with pytest.raises(
        InvalidArgument, match=r"cannot store \{'column_id': 1\}: expected messages of type skiway\.v1\.ColumnStats"
    ):
        lake.statistics.put_columns(table, 1, [{"column_id": 1}])  # type: ignore[list-item]


def test_unknown_snapshot_is_reported_before_the_iterator_is_read(lake: Metastore, table: Table) -> None:
    items = columns(3)
    with pytest.raises(NotFound, match="there is no snapshot 99"):
        lake.statistics.put_columns(table, 99, items)
    assert len(list(items)) == 3


def test_exception_of_the_iterator_reaches_the_caller_and_a_partial_upload_is_not_complete(
    server: Server, lake: Metastore, table: Table
) -> None:
    begun, ended = threading.Event(), threading.Event()
    answers = []

    def watched(truly: Act, realm: Realm, requests: Any) -> Any:
        begun.set()
        try:
            answers.append(truly(realm, requests))
        finally:
            ended.set()
        return answers[0]

    def breaking() -> Iterator[v1.ColumnStats]:
        yield from columns(3, weight=MESSAGE_BYTES // 2)
        assert begun.wait(200)
        raise ZeroDivisionError("in the profile")

    server.disturb("PutColumnStats", watched)
    with pytest.raises(ZeroDivisionError, match="in the profile"):
        lake.statistics.put_columns(table, 1, breaking())
    assert ended.wait(200)
    assert answers == []


def test_iterator_runs_in_the_callers_thread(lake: Metastore, table: Table) -> None:
    threads = set()

    def watched() -> Iterator[v1.ColumnStats]:
        for column in columns(10):
            threads.add(threading.current_thread())
            yield column

    lake.statistics.put_columns(table, 1, watched())
    assert threads == {threading.current_thread()}


def test_broken_stream_is_retried_with_its_key_and_stored_once(server: Server, table: Table) -> None:
    with wire_to(server) as wire, Metastore(wire.address, retries=QUICK) as lake:
        keys = []

        def act(truly: Act, realm: Realm, requests: Iterator[v1.PutColumnStatsRequest]) -> Any:
            def watched() -> Iterator[v1.PutColumnStatsRequest]:
                for request in requests:
                    keys.append(request.idempotency.key)
                    yield request

            answer = truly(realm, watched())
            if wire.cuts == 0:
                wire.cut()  # everything is stored, but the response is lost
            return answer

        server.disturb("PutColumnStats", act)
        assert lake.statistics.put_columns(table, 1, list(columns(20, weight=MESSAGE_BYTES // 2))) == 20
        assert wire.cuts == 1
        assert len(keys) == 2 * 20
        assert len(set(keys)) == 1
        assert lake.statistics.columns(table).total == 20


def test_iterator_is_not_retried_but_can_be_sent_again_with_the_same_key(server: Server, table: Table) -> None:
    with wire_to(server) as wire, Metastore(wire.address, retries=QUICK) as lake:

        def act(truly: Act, realm: Realm, requests: Any) -> Any:
            answer = truly(realm, requests)
            if wire.cuts == 0:
                wire.cut()
            return answer

        server.disturb("PutColumnStats", act)
        with pytest.raises(Unavailable):
            lake.statistics.put_columns(table, 1, columns(10), idempotency_key="k-1")
        assert lake.statistics.put_columns(table, 1, columns(10), idempotency_key="k-1") == 10
        with pytest.raises(Conflict) as refused:
            lake.statistics.put_columns(table, 1, columns(10, weight=1), idempotency_key="k-1")
        assert refused.value.key == "idempotency.mismatch"


def test_repeatable_upload_is_retried_after_a_lost_race(server: Server, lake: Metastore, table: Table) -> None:
    server.fail("PutColumnStats", Contention("others were faster"))
    assert lake.statistics.put_columns(table, 1, list(columns(3))) == 3
    server.fail("PutColumnStats", Contention("others were faster"))
    with pytest.raises(Contention):
        lake.statistics.put_columns(table, 1, columns(3))


def test_upload_has_its_own_deadline(server: Server, lake: Metastore, table: Table) -> None:
    release = threading.Event()

    def stuck(truly: Act, realm: Realm, requests: Any) -> Any:
        release.wait(200)
        return v1.PutColumnStatsResponse()

    server.disturb("PutColumnStats", stuck)
    try:
        with pytest.raises(TimedOut):
            lake.statistics.put_columns(table, 1, columns(5), timeout_s=0.2)
    finally:
        release.set()
