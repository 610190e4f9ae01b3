"""Client-streamed statistics: one table, one snapshot and one key per stream; a broken stream leaves no partial step."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace

import grpc
import pytest

from rpc.requests import Lake, column_stats, file_stats, lake, snapshot
from rpc.rpc_server import RpcServer, behavior, counted, opened, serving, until
from skiway.metastore import statistics
from skiway.metastore.statistics import api
from skiway.model import v1
from skiway.telemetry.metrics import Metrics

CODE = grpc.StatusCode
PUT_COLUMNS = "TableStatisticsService/PutColumnStats"
PUT_FILES = "TableStatisticsService/PutFileColumnStats"


@pytest.fixture
def sample(rpc_server: RpcServer) -> Lake:
    return lake(rpc_server.factory)


def columns(rpc_server: RpcServer, sample: Lake) -> list[int]:
    request = v1.ListColumnStatsRequest(
        table_id=sample.table.resource_id, snapshot=snapshot(2), page=v1.PageRequest(page_size=1000)
    )
    answer = rpc_server.client("TableStatisticsService/ListColumnStats", request)
    assert answer.code is CODE.OK, answer.text
    return [column.column_id for column in answer.message.columns]


def stored(rpc_server: RpcServer, sample: Lake) -> list[int]:
    """The columns in the store after the server is closed."""
    request = v1.ListColumnStatsRequest(table_id=sample.table.resource_id, snapshot=snapshot(2))
    return [column.column_id for column in statistics.list_columns(rpc_server.factory.home, request).columns]


def files(rpc_server: RpcServer, sample: Lake) -> list[str]:
    request = v1.ListFileColumnStatsRequest(table_id=sample.table.resource_id, snapshot=snapshot(2))
    return [
        file.file_path
        for file in rpc_server.client("TableStatisticsService/ListFileColumnStats", request).message.files
    ]


@behavior(61)
def test_answer_counts_all_messages(rpc_server, sample):
    sent = [column_stats(sample, 1, 2), column_stats(sample, 3), column_stats(sample)]
    assert rpc_server.client(PUT_COLUMNS, sent).message.upserted == 3
    assert columns(rpc_server, sample) == [1, 2, 3]
    assert rpc_server.client(PUT_FILES, [file_stats(sample, "b", "a")]).message.upserted == 2
    assert files(rpc_server, sample) == ["a", "b"]


@behavior(60)
def test_stream_with_two_tables_or_two_snapshots_is_rejected(rpc_server, sample):
    other = replace(sample, table=rpc_server.factory.table("others"))
    for second in (column_stats(other, 2), column_stats(sample, 2, snapshot_id=1)):
        answer = rpc_server.client(PUT_COLUMNS, [column_stats(sample, 1), second])
        assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "stats.inconsistent.target")
    answer = rpc_server.client(PUT_FILES, [file_stats(sample, "a"), file_stats(sample, "b", snapshot_id=1)])
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "stats.inconsistent.target")


@behavior(60)
def test_stream_with_two_keys_is_rejected(rpc_server, sample):
    answer = rpc_server.client(PUT_COLUMNS, [column_stats(sample, 1, key="one"), column_stats(sample, 2, key="two")])
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "idempotency.inconsistent.key")
    assert answer.error.params == {"first": "one", "second": "two"}


@behavior(60)
@pytest.mark.parametrize(
    ("operation", "key"), [(PUT_COLUMNS, "column.stats.empty"), (PUT_FILES, "file.column.stats.empty")]
)
def test_empty_stream_is_rejected(operation, key, rpc_server, sample):
    answer = rpc_server.client(operation, [])
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, key)


@behavior(61)
def test_items_before_an_invalid_one_are_stored(rpc_server, sample):
    sent = [column_stats(sample, 1), column_stats(sample, 2, value_count=-1), column_stats(sample, 3)]
    answer = rpc_server.client(PUT_COLUMNS, sent)
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "stats.invalid")
    assert columns(rpc_server, sample) == [1]


@behavior(62)
def test_repeated_key_changes_nothing_and_is_rejected_with_different_content(rpc_server, sample):
    sent = [column_stats(sample, 1, key="k"), column_stats(sample, 2, key="k")]
    assert rpc_server.client(PUT_COLUMNS, sent[:1]).message.upserted == 1
    assert rpc_server.client(PUT_COLUMNS, sent).message.upserted == 2
    changed = rpc_server.client(PUT_COLUMNS, [column_stats(sample, 1, key="k", value_count=9)])
    assert (changed.code, changed.error.message_key) == (CODE.ABORTED, "idempotency.mismatch")


@behavior(63)
def test_streams_require_their_snapshot_and_table_statistics_do_not(rpc_server, sample):
    for operation, request in (
        (PUT_COLUMNS, column_stats(sample, 1, snapshot_id=9)),
        (PUT_FILES, file_stats(sample, "a", snapshot_id=9)),
    ):
        answer = rpc_server.client(operation, [request])
        assert (answer.code, answer.error.message_key) == (CODE.NOT_FOUND, "snapshot")
    request = v1.PutTableStatsRequest(
        table_id=sample.table.resource_id, snapshot_id=9, stats=v1.TableStats(row_count=1)
    )
    assert rpc_server.client("TableStatisticsService/PutTableStats", request).code is CODE.OK


class Feed:
    """A request stream that continues until it is ended."""

    def __init__(self, *first: v1.PutColumnStatsRequest) -> None:
        self._first, self._more = first, threading.Event()

    def __iter__(self):
        yield from self._first
        self._more.wait(200)

    def end(self) -> None:
        self._more.set()


@behavior(61)
def test_stream_cancelled_by_its_client_leaves_only_complete_steps(stores, monkeypatch, caplog):
    monkeypatch.setattr(api, "STEP", 2)
    metrics = Metrics()
    with opened(stores, metrics=metrics) as rpc_server:
        sample = lake(rpc_server.factory)
        feed = Feed(column_stats(sample, 1, 2), column_stats(sample, 3))
        call = rpc_server.client.begin(PUT_COLUMNS, feed)
        until(lambda: columns(rpc_server, sample) == [1, 2])
        call.cancel()
        feed.end()
        assert call.code() is CODE.CANCELLED
    assert stored(rpc_server, sample) == [1, 2]
    assert counted(metrics)["PutColumnStats"] == "CANCELLED"
    assert caplog.records == []  # not an internal error


KILLED_CLIENT = """
import sys, threading, grpc
channel = grpc.insecure_channel(sys.argv[1])
put = channel.stream_unary("/skiway.v1.TableStatisticsService/PutColumnStats")
def messages():
    yield bytes.fromhex(sys.argv[2])
    threading.Event().wait()
put(messages(), metadata=[("authorization", "Bearer everybody")])
"""


@behavior(61)
def test_stream_of_a_killed_client_stores_no_incomplete_step(stores):
    received, finished = threading.Event(), threading.Event()

    def watched(realm, requests):
        def forward():
            for request in requests:
                received.set()
                yield request

        try:
            return statistics.put_columns(realm, forward())
        finally:
            finished.set()

    with opened(stores, services=serving(PUT_COLUMNS, watched)) as rpc_server:
        sample = lake(rpc_server.factory)
        message = column_stats(sample, 1).SerializeToString().hex()
        client = subprocess.Popen([sys.executable, "-c", KILLED_CLIENT, rpc_server.address, message])
        assert received.wait(200)
        client.kill()
        client.wait()
        assert finished.wait(200)
    assert stored(rpc_server, sample) == []


def test_stream_with_deadline_exceeded_leaves_only_complete_steps(stores, monkeypatch):
    monkeypatch.setattr(api, "STEP", 2)
    metrics = Metrics()
    with opened(stores, metrics=metrics) as rpc_server:
        sample = lake(rpc_server.factory)
        feed = Feed(column_stats(sample, 1, 2), column_stats(sample, 3))
        call = rpc_server.client.begin(PUT_COLUMNS, feed, timeout=1)
        assert call.code() is CODE.DEADLINE_EXCEEDED
        until(lambda: counted(metrics).get("PutColumnStats") == "DEADLINE_EXCEEDED")
        feed.end()
    assert stored(rpc_server, sample) in ([], [1, 2])  # as many steps as were completed in time


def test_stream_beyond_the_limit_is_rejected_and_the_next_is_served(stores):
    inside = threading.Event()

    def act(realm, requests):
        inside.set()
        return statistics.put_columns(realm, requests)

    with opened(stores, services=serving(PUT_COLUMNS, act), max_streams=1) as rpc_server:
        sample = lake(rpc_server.factory)
        feed = Feed(column_stats(sample, 1))
        call = rpc_server.client.begin(PUT_COLUMNS, feed)
        assert inside.wait(200)
        rejected = rpc_server.client(PUT_COLUMNS, [column_stats(sample, 2)])
        assert (rejected.code, rejected.error.message_key) == (CODE.RESOURCE_EXHAUSTED, "streams.limit")
        assert rpc_server.client("CatalogService/ListCatalogs").code is CODE.OK
        feed.end()
        assert call.result().upserted == 1
        assert rpc_server.client(PUT_COLUMNS, [column_stats(sample, 2)]).code is CODE.OK


def test_unauthenticated_streams_do_not_count_toward_the_limit(stores):
    with opened(stores, max_streams=1) as rpc_server:
        sample = lake(rpc_server.factory)
        for _ in range(3):
            assert rpc_server.client.as_("")(PUT_COLUMNS, [column_stats(sample, 1)]).code is CODE.UNAUTHENTICATED
        assert rpc_server.client(PUT_COLUMNS, [column_stats(sample, 1)]).code is CODE.OK


def test_too_large_message_fails_the_stream(stores):
    with opened(stores, options=(("grpc.max_receive_message_length", 10_000),)) as rpc_server:
        sample = lake(rpc_server.factory)
        large = column_stats(sample, 2)
        large.columns[0].properties["x"] = "x" * 20_000
        answer = rpc_server.client(PUT_COLUMNS, [column_stats(sample, 1), large, column_stats(sample, 3)])
        assert answer.code is CODE.RESOURCE_EXHAUSTED
        assert rpc_server.client(PUT_COLUMNS, [column_stats(sample, 4)]).code is CODE.OK
    assert stored(rpc_server, sample) == [4]
