"""Queries over gRPC: pinning, planning, streaming."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest

from metastore.planning.test_planner import column, file
from rpc.requests import lake
from rpc.rpc_server import RpcServer, behavior, counted, opened, serving, until
from skiway.client import Metastore
from skiway.errors import InvalidArgument, NotFound
from skiway.metastore import statistics
from skiway.model import v1
from skiway.telemetry.metrics import Metrics

FETCH = "QueryService/FetchScanBundle"
CODE = grpc.StatusCode


@pytest.fixture
def db(rpc_server: RpcServer) -> Iterator[Metastore]:
    sample = lake(rpc_server.factory)
    files = [file(f"f{number:03d}", column("name", min=str(number), max=str(number))) for number in range(50)]
    request = v1.PutFileColumnStatsRequest(table_id=sample.table.resource_id, snapshot_id=2, files=files)
    statistics.put_files(rpc_server.factory.home, [request])
    with Metastore(rpc_server.address, token="everybody") as client:
        yield client


def test_query_is_begun_planned_renewed_and_ended(db: Metastore):
    people = "lake.sales.people"
    with db.queries.begin(people, catalog="lake", ttl_s=60) as query:
        assert list(query.snapshots.values()) == [2]
        before = query.expires_at
        assert query.renew(600) > before
        predicate = v1.Predicate(column="name", op=v1.PO_GTE, values=["45"])
        bundle = query.scan(people, predicates=[predicate], columns=["name"], tasks=2)
        assert [each.file_path for each in bundle.data_files] == [f"f{number:03d}" for number in range(45, 50)]
        assert (bundle.report.files_total, bundle.report.files_kept, bundle.report.tasks) == (50, 5, 2)
        assert bundle.report.predicates[0].files_removed == 45
        assert bundle.table.snapshot_id == 2
        assert {each.task for each in bundle.data_files} == {0, 1}
        bare = query.scan(people, column_stats=False)
        assert (len(bare.data_files), sum(len(each.columns) for each in bare.data_files)) == (50, 0)
    ended = db.queries.get(query.id)
    assert ended.message.state == v1.LS_ENDED_COMMIT
    assert ended.message.query_status == v1.QS_COMPLETED


def test_exception_in_the_block_aborts_the_query(db: Metastore):
    with pytest.raises(ZeroDivisionError), db.queries.begin("lake.sales.people", catalog="lake") as query:
        raise ZeroDivisionError
    assert db.queries.get(query.id).message.state == v1.LS_ENDED_ABORT


@behavior(54)
def test_errors_of_a_streamed_answer_are_reported_like_others(db: Metastore, rpc_server: RpcServer):
    query = db.queries.begin(catalog="lake")
    with pytest.raises(NotFound) as unpinned:
        query.scan("lake.sales.people")
    assert unpinned.value.key == "query.table.not.pinned"
    missing = rpc_server.client(FETCH, v1.FetchScanBundleRequest(query_id=query.id))
    assert (missing.code, missing.error.message_key) == (CODE.INVALID_ARGUMENT, "query.table.id.required")
    broken = rpc_server.client(FETCH, b"\xff\xff")
    assert (broken.code, broken.error.message_key) == (CODE.INVALID_ARGUMENT, "message.malformed")
    assert broken.trailers["x-correlation-id"]


@behavior(59)
def test_query_of_another_account_does_not_exist(db: Metastore, rpc_server: RpcServer):
    query = db.queries.begin("lake.sales.people", catalog="lake")
    rpc_server.factory.account("a2")
    stranger = rpc_server.client.as_("stranger")
    for name in ("RenewQuery", "EndQuery", "GetQuery"):
        answer = stranger(f"QueryService/{name}", getattr(v1, f"{name}Request")(query_id=query.id))
        assert (answer.code, answer.error.message_key) == (CODE.NOT_FOUND, "query.not_found")
    (pin,) = query.message.snapshots.pins
    answer = stranger(FETCH, v1.FetchScanBundleRequest(query_id=query.id, table_id=v1.ResourceId(id=pin.table_id.id)))
    assert (answer.code, answer.error.message_key) == (CODE.NOT_FOUND, "query.not_found")


def test_query_of_another_caller_does_not_exist_except_for_administrators(db: Metastore, rpc_server: RpcServer):
    query = db.queries.begin("lake.sales.people", catalog="lake")
    reader = rpc_server.client.as_("reader")
    seen = reader("QueryService/ListQueries", v1.ListQueriesRequest()).message.queries
    assert query.id not in {each.query_id for each in seen}
    for name in ("RenewQuery", "EndQuery", "GetQuery"):
        answer = reader(f"QueryService/{name}", getattr(v1, f"{name}Request")(query_id=query.id))
        assert (answer.code, answer.error.message_key) == (CODE.NOT_FOUND, "query.not_found")
    begun = reader(
        "QueryService/BeginQuery",
        v1.BeginQueryRequest(default_catalog_id=db.catalogs.get("lake").message.resource_id, query_id="readers"),
    ).message.query
    assert begun.caller == "reader"
    found = db.queries.get("readers")
    assert (found.caller, found.kind, found.last_used_at) == ("reader", "query", found.created_at)
    assert {query.id, "readers"} <= {each.id for each in db.queries(page_size=1)}
    found.end()
    assert "readers" not in {each.id for each in db.queries()}


def test_error_after_some_messages_ends_the_stream(stores):
    def act(realm, request):
        yield v1.FetchScanBundleResponse()
        raise InvalidArgument("half way", key="field")

    metrics = Metrics()
    with opened(stores, services=serving(FETCH, act), metrics=metrics) as rpc_server:
        seen: list[v1.FetchScanBundleResponse] = []
        call = rpc_server.client.begin(FETCH, v1.FetchScanBundleRequest())
        with pytest.raises(grpc.RpcError):
            seen.extend(call._call)  # as far as it goes
        assert (len(seen), call.code(), call.details()) == (1, CODE.INVALID_ARGUMENT, "half way")
        until(lambda: counted(metrics).get("FetchScanBundle") == "INVALID_ARGUMENT")


def test_cancelled_stream_produces_no_more_messages(stores):
    produced, finished = [0], threading.Event()

    def act(realm, request):
        try:
            while True:
                produced[0] += 1
                yield v1.FetchScanBundleResponse(data_files=[v1.ScanFile(file_path="x" * 100_000)])
        finally:
            finished.set()

    with opened(stores, services=serving(FETCH, act)) as rpc_server:
        call = rpc_server.client.begin(FETCH, v1.FetchScanBundleRequest())._call
        next(call)
        call.cancel()
        assert finished.wait(200)
        assert produced[0] < 1000


def test_slow_client_applies_backpressure(stores):
    produced = [0]

    def act(realm, request):
        for _ in range(2_000):
            produced[0] += 1
            yield v1.FetchScanBundleResponse(data_files=[v1.ScanFile(file_path="x" * 100_000)])

    with opened(stores, services=serving(FETCH, act)) as rpc_server:
        call = rpc_server.client.begin(FETCH, v1.FetchScanBundleRequest())._call
        next(call)
        last = -1
        while produced[0] != last:  # until no more messages are produced
            last = produced[0]
            threading.Event().wait(0.3)
        assert last < 1_000
        call.cancel()
