"""Statistics that clients stream: one table, one snapshot, one key; a broken stream leaves nothing half told."""

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
def made(rpc_server: RpcServer) -> Lake:
    return lake(rpc_server.factory)


def columns(rpc_server: RpcServer, made: Lake) -> list[int]:
    request = v1.ListColumnStatsRequest(
        table_id=made.table.resource_id, snapshot=snapshot(2), page=v1.PageRequest(page_size=1000)
    )
    answer = rpc_server.client("TableStatisticsService/ListColumnStats", request)
    assert answer.code is CODE.OK, answer.text
    return [column.column_id for column in answer.message.columns]


def stored(rpc_server: RpcServer, made: Lake) -> list[int]:
    """The columns in the store, once the server is closed."""
    request = v1.ListColumnStatsRequest(table_id=made.table.resource_id, snapshot=snapshot(2))
    return [column.column_id for column in statistics.list_columns(rpc_server.factory.home, request).columns]


def files(rpc_server: RpcServer, made: Lake) -> list[str]:
    request = v1.ListFileColumnStatsRequest(table_id=made.table.resource_id, snapshot=snapshot(2))
    return [
        file.file_path
        for file in rpc_server.client("TableStatisticsService/ListFileColumnStats", request).message.files
    ]


@behavior(61)
def test_the_answer_counts_all_messages(rpc_server, made):
    sent = [column_stats(made, 1, 2), column_stats(made, 3), column_stats(made)]
    assert rpc_server.client(PUT_COLUMNS, sent).message.upserted == 3
    assert columns(rpc_server, made) == [1, 2, 3]
    assert rpc_server.client(PUT_FILES, [file_stats(made, "b", "a")]).message.upserted == 2
    assert files(rpc_server, made) == ["a", "b"]


@behavior(60)
def test_a_stream_with_two_tables_or_two_snapshots_is_refused(rpc_server, made):
    other = replace(made, table=rpc_server.factory.table("others"))
    for second in (column_stats(other, 2), column_stats(made, 2, snapshot_id=1)):
        answer = rpc_server.client(PUT_COLUMNS, [column_stats(made, 1), second])
        assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "stats.inconsistent.target")
    answer = rpc_server.client(PUT_FILES, [file_stats(made, "a"), file_stats(made, "b", snapshot_id=1)])
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "stats.inconsistent.target")


@behavior(60)
def test_a_stream_with_two_keys_is_refused(rpc_server, made):
    answer = rpc_server.client(PUT_COLUMNS, [column_stats(made, 1, key="one"), column_stats(made, 2, key="two")])
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "idempotency.inconsistent.key")
    assert answer.error.params == {"first": "one", "second": "two"}


@behavior(60)
@pytest.mark.parametrize(
    ("operation", "key"), [(PUT_COLUMNS, "column.stats.empty"), (PUT_FILES, "file.column.stats.empty")]
)
def test_an_empty_stream_is_refused(operation, key, rpc_server, made):
    answer = rpc_server.client(operation, [])
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, key)


@behavior(61)
def test_what_came_before_a_wrong_item_stays(rpc_server, made):
    sent = [column_stats(made, 1), column_stats(made, 2, value_count=-1), column_stats(made, 3)]
    answer = rpc_server.client(PUT_COLUMNS, sent)
    assert (answer.code, answer.error.message_key) == (CODE.INVALID_ARGUMENT, "stats.invalid")
    assert columns(rpc_server, made) == [1]


@behavior(62)
def test_the_same_key_sent_again_changes_nothing_and_with_other_content_is_refused(rpc_server, made):
    sent = [column_stats(made, 1, key="k"), column_stats(made, 2, key="k")]
    assert rpc_server.client(PUT_COLUMNS, sent[:1]).message.upserted == 1
    assert rpc_server.client(PUT_COLUMNS, sent).message.upserted == 2
    changed = rpc_server.client(PUT_COLUMNS, [column_stats(made, 1, key="k", value_count=9)])
    assert (changed.code, changed.error.message_key) == (CODE.ABORTED, "idempotency.mismatch")


@behavior(63)
def test_streams_need_their_snapshot_and_statistics_of_the_table_do_not(rpc_server, made):
    for operation, request in (
        (PUT_COLUMNS, column_stats(made, 1, snapshot_id=9)),
        (PUT_FILES, file_stats(made, "a", snapshot_id=9)),
    ):
        answer = rpc_server.client(operation, [request])
        assert (answer.code, answer.error.message_key) == (CODE.NOT_FOUND, "snapshot")
    request = v1.PutTableStatsRequest(table_id=made.table.resource_id, snapshot_id=9, stats=v1.TableStats(row_count=1))
    assert rpc_server.client("TableStatisticsService/PutTableStats", request).code is CODE.OK


class Feed:
    """A stream that goes on when told."""

    def __init__(self, *first: v1.PutColumnStatsRequest) -> None:
        self._first, self._more = first, threading.Event()

    def __iter__(self):
        yield from self._first
        self._more.wait(20)

    def end(self) -> None:
        self._more.set()


@behavior(61)
def test_a_stream_cut_by_its_client_leaves_only_whole_steps(stores, monkeypatch, caplog):
    monkeypatch.setattr(api, "STEP", 2)
    metrics = Metrics()
    with opened(stores, metrics=metrics) as rpc_server:
        made = lake(rpc_server.factory)
        feed = Feed(column_stats(made, 1, 2), column_stats(made, 3))
        call = rpc_server.client.begin(PUT_COLUMNS, feed)
        until(lambda: columns(rpc_server, made) == [1, 2])
        call.cancel()
        feed.end()
        assert call.code() is CODE.CANCELLED
    assert stored(rpc_server, made) == [1, 2]
    assert counted(metrics)["PutColumnStats"] == "CANCELLED"
    assert caplog.records == []  # nobody's fault


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
def test_a_stream_whose_client_is_killed_stores_nothing_of_its_step(stores):
    taken, over = threading.Event(), threading.Event()

    def watched(realm, requests):
        def told():
            for request in requests:
                taken.set()
                yield request

        try:
            return statistics.put_columns(realm, told())
        finally:
            over.set()

    with opened(stores, services=serving(PUT_COLUMNS, watched)) as rpc_server:
        made = lake(rpc_server.factory)
        message = column_stats(made, 1).SerializeToString().hex()
        client = subprocess.Popen([sys.executable, "-c", KILLED_CLIENT, rpc_server.address, message])
        assert taken.wait(20)
        client.kill()
        client.wait()
        assert over.wait(20)
    assert stored(rpc_server, made) == []


def test_a_stream_whose_deadline_passes_leaves_only_whole_steps(stores, monkeypatch):
    monkeypatch.setattr(api, "STEP", 2)
    metrics = Metrics()
    with opened(stores, metrics=metrics) as rpc_server:
        made = lake(rpc_server.factory)
        feed = Feed(column_stats(made, 1, 2), column_stats(made, 3))
        call = rpc_server.client.begin(PUT_COLUMNS, feed, timeout=1)
        assert call.code() is CODE.DEADLINE_EXCEEDED
        until(lambda: counted(metrics).get("PutColumnStats") == "DEADLINE_EXCEEDED")
        feed.end()
    assert stored(rpc_server, made) in ([], [1, 2])  # as far as it came in that time


def test_a_stream_beyond_the_limit_is_refused_and_the_next_is_served(stores):
    inside = threading.Event()

    def act(realm, requests):
        inside.set()
        return statistics.put_columns(realm, requests)

    with opened(stores, services=serving(PUT_COLUMNS, act), max_streams=1) as rpc_server:
        made = lake(rpc_server.factory)
        feed = Feed(column_stats(made, 1))
        call = rpc_server.client.begin(PUT_COLUMNS, feed)
        assert inside.wait(20)
        refused = rpc_server.client(PUT_COLUMNS, [column_stats(made, 2)])
        assert (refused.code, refused.error.message_key) == (CODE.RESOURCE_EXHAUSTED, "streams.limit")
        assert rpc_server.client("CatalogService/ListCatalogs").code is CODE.OK
        feed.end()
        assert call.result().upserted == 1
        assert rpc_server.client(PUT_COLUMNS, [column_stats(made, 2)]).code is CODE.OK


def test_strangers_take_no_place_from_others(stores):
    with opened(stores, max_streams=1) as rpc_server:
        made = lake(rpc_server.factory)
        for _ in range(3):
            assert rpc_server.client.as_("")(PUT_COLUMNS, [column_stats(made, 1)]).code is CODE.UNAUTHENTICATED
        assert rpc_server.client(PUT_COLUMNS, [column_stats(made, 1)]).code is CODE.OK


def test_a_message_that_is_too_large_ends_the_stream_with_an_error_not_as_if_it_were_whole(stores):
    with opened(stores, options=(("grpc.max_receive_message_length", 10_000),)) as rpc_server:
        made = lake(rpc_server.factory)
        large = column_stats(made, 2)
        large.columns[0].properties["x"] = "x" * 20_000
        answer = rpc_server.client(PUT_COLUMNS, [column_stats(made, 1), large, column_stats(made, 3)])
        assert answer.code is CODE.RESOURCE_EXHAUSTED
        assert rpc_server.client(PUT_COLUMNS, [column_stats(made, 4)]).code is CODE.OK
    assert stored(rpc_server, made) == [4]
