"""Calls: headers, errors, retries, deadlines, threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import grpc
import pytest
from google.rpc import status_pb2

from client.metastore_server import Act, Server, serving_metastore, wire_to
from skiway import errors
from skiway.client import Metastore
from skiway.client.metastore import Retries
from skiway.errors import (
    Conflict,
    Contention,
    Internal,
    InvalidArgument,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from skiway.metastore import Realm
from skiway.model import v1
from skiway.telemetry.context import CallContext, serving

QUICK = Retries(first_pause_s=0.001, longest_pause_s=0.002)
SCHEMA = "{}"


@pytest.fixture(scope="module")
def running() -> Iterator[Server]:
    with serving_metastore() as server:
        yield server


@pytest.fixture
def server(running: Server) -> Iterator[Server]:
    running.seen.clear()
    yield running
    running.disturbances.clear()


@pytest.fixture
def lake(server: Server) -> Iterator[Metastore]:
    with Metastore(server.address, retries=QUICK) as lake:
        yield lake


# headers


def test_every_call_has_its_own_correlation_id(server: Server, lake: Metastore) -> None:
    for _ in range(3):
        lake.catalogs.get(lake.directory.resolve_catalog("lake"))
    ids = [call.headers["x-correlation-id"] for call in server.seen]
    assert len(set(ids)) == len(ids) == 6


def test_retries_of_a_call_share_its_correlation_id_and_key(server: Server, lake: Metastore) -> None:
    keys = []

    def act(truly: Act, realm: Realm, request: v1.CreateCatalogRequest) -> Any:
        keys.append(request.idempotency.key)
        if len(keys) < 3:
            raise Unavailable("not now")
        return truly(realm, request)

    server.disturb("CreateCatalog", act)
    lake.catalogs.delete(lake.catalogs.create("shared"))
    assert len(keys) == 3
    assert len(set(keys)) == 1
    ids = {call.headers["x-correlation-id"] for call in server.seen if call.method == "CreateCatalog"}
    assert len(ids) == 1


def test_ids_come_from_the_given_factory(server: Server) -> None:
    with Metastore(server.address, ids=lambda: "mine") as lake:
        lake.catalogs.find("lake")
    assert {call.headers["x-correlation-id"] for call in server.seen} == {"mine"}


def test_token_account_and_headers_are_sent_with_every_call(server: Server) -> None:
    with Metastore(server.address, token="s3cret", account="default", headers={"X-Session": "abc"}) as lake:
        lake.catalogs.find("lake")
        assert "s3cret" not in repr(lake) + repr(lake._calls)
    for call in server.seen:
        assert call.headers["authorization"] == "Bearer s3cret"
        assert call.headers["x-skiway-account"] == "default"
        assert call.headers["x-session"] == "abc"


def test_unknown_account_is_reported_by_the_server(server: Server) -> None:
    with Metastore(server.address, account="nobody") as lake, pytest.raises(Unauthorized, match="names account nobody"):
        lake.catalogs.find("lake")


def test_query_and_engine_are_sent_if_given(server: Server, lake: Metastore) -> None:
    lake.with_query("q-1").with_engine("trino", "470").catalogs.find("lake")
    lake.catalogs.find("lake")
    expected = {"x-query-id": "q-1", "x-engine-kind": "trino", "x-engine-version": "470"}
    for call in server.seen[:2]:
        assert expected.items() <= call.headers.items()
    for call in server.seen[2:]:
        assert not expected.keys() & call.headers.keys()


def test_call_made_while_serving_another_inherits_its_context(server: Server, lake: Metastore) -> None:
    served = CallContext(
        "c-1", query_id="q-1", engine_kind="trino", engine_version="470", authorization={"x-session": "abc"}
    )
    with serving(served):
        lake.catalogs.find("lake")
    expected = {
        "x-correlation-id": "c-1",
        "x-query-id": "q-1",
        "x-engine-kind": "trino",
        "x-engine-version": "470",
        "x-session": "abc",
    }
    assert all(expected.items() <= call.headers.items() for call in server.seen)


def test_explicit_token_query_and_engine_override_those_of_the_served_call(server: Server) -> None:
    served = CallContext(
        "c-1",
        query_id="q-1",
        engine_kind="trino",
        engine_version="470",
        authorization={"authorization": "Bearer theirs"},
    )
    with Metastore(server.address, token="ours") as lake, serving(served):
        lake.with_query("q-2").with_engine("duckdb", "1.5").catalogs.find("lake")
    headers = server.seen[0].headers
    assert headers["authorization"] == "Bearer ours"
    assert (headers["x-query-id"], headers["x-engine-kind"], headers["x-engine-version"]) == ("q-2", "duckdb", "1.5")


@pytest.mark.parametrize("own", ["Authorization", "x-session"])
def test_explicit_credentials_in_headers_are_not_mixed_with_those_of_the_served_call(server: Server, own: str) -> None:
    theirs = {"authorization": "Bearer theirs", "x-session": "theirs"}
    with Metastore(server.address, headers={own: "ours"}) as lake, serving(CallContext("c-1", authorization=theirs)):
        lake.catalogs.find("lake")
    sent = server.seen[0].headers
    assert {name: sent[name] for name in theirs if name in sent} == {own.lower(): "ours"}


def test_incomplete_engine_is_not_inherited(server: Server, lake: Metastore) -> None:
    with serving(CallContext("c-1", engine_kind="trino")):
        lake.catalogs.find("lake")
    assert not {"x-engine-kind", "x-engine-version"} & server.seen[0].headers.keys()


def test_incomplete_engine_is_rejected(lake: Metastore) -> None:
    with pytest.raises(InvalidArgument, match="give both or none"):
        lake.with_engine("duckdb", "")


@pytest.mark.parametrize(
    "options", [{"token": "a\nb"}, {"account": "Żabka"}, {"headers": {"x y": "z"}}, {"headers": {"x-bin": "z"}}]
)
def test_headers_that_cannot_be_sent_are_rejected_without_showing_them(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"printable ASCII|is not a valid header name") as refused:
        Metastore("127.0.0.1:1", **options)
    assert "a\nb" not in refused.value.message


# errors

RAISED = [
    getattr(errors, name) for name in errors.__all__ if name not in ("SkiwayError", "Internal") and name != "NullRowId"
]


@pytest.mark.parametrize("kind", RAISED, ids=lambda kind: kind.__name__)
def test_error_arrives_with_its_original_class(server: Server, kind: type[SkiwayError]) -> None:
    server.fail("ResolveCatalog", kind("what happened, and what to do", key="some.key", field="ref", found="x"))
    with Metastore(server.address, retries=Retries(limit=0)) as lake, pytest.raises(SkiwayError) as failed:
        lake.directory.resolve_catalog("lake")
    error = failed.value
    coarse = {
        errors.SchemaNotEmpty: PreconditionFailed,
        errors.ConstraintViolation: PreconditionFailed,
        errors.Busy: errors.Contention,
    }
    assert type(error) is coarse.get(kind, kind)  # codes are transmitted, not all classes
    assert (error.message, error.key, error.code) == ("what happened, and what to do", "some.key", kind.code)
    correlation_id = server.seen[0].headers["x-correlation-id"]
    assert error.params == {"field": "ref", "found": "x", "correlation_id": correlation_id}
    assert error.__notes__ == [f"correlation id: {correlation_id}"]


def test_server_fault_is_internal_and_refers_to_the_log(
    server: Server, lake: Metastore, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail("ResolveCatalog", ZeroDivisionError("a secret of the server"))
    with pytest.raises(Internal) as failed:
        lake.directory.resolve_catalog("lake")
    assert "secret" not in failed.value.message
    assert failed.value.params["correlation_id"] in failed.value.message


def test_unknown_code_is_mapped_by_its_status() -> None:
    details = v1.Error(code=99, message="new", message_key="k")  # type: ignore[arg-type]
    with _answering(grpc.StatusCode.FAILED_PRECONDITION, details) as lake, pytest.raises(PreconditionFailed) as failed:
        lake.directory.resolve_catalog("lake")
    assert failed.value.key == "k"


def test_expired_snapshot_is_a_failed_precondition() -> None:
    details = v1.Error(code=v1.MC_SNAPSHOT_EXPIRED, message="gone", message_key="snapshot.expired")
    with _answering(grpc.StatusCode.FAILED_PRECONDITION, details) as lake, pytest.raises(PreconditionFailed) as failed:
        lake.directory.resolve_catalog("lake")
    assert (failed.value.message, failed.value.key) == ("gone", "snapshot.expired")


@pytest.mark.parametrize("details", [None, b"", b"\xff\xff\xff", b"\x1a\x05hello", b'{"code": "x"}'])
def test_status_without_our_details_keeps_its_message(details: bytes | None) -> None:
    with _answering(grpc.StatusCode.PERMISSION_DENIED, details) as lake, pytest.raises(PermissionDenied) as failed:
        lake.directory.resolve_catalog("lake")
    assert (failed.value.message, failed.value.key) == ("said", "")
    assert failed.value.params["correlation_id"]


def test_server_that_is_not_a_metastore_is_a_clear_error() -> None:
    with _serving(()) as address, Metastore(address) as lake, pytest.raises(errors.Unsupported) as failed:
        lake.catalogs.find("lake")
    assert "it is no metastore, or a different version" in failed.value.message


def test_malformed_response_is_internal() -> None:
    def handle(request: bytes, context: Any) -> bytes:
        return b"\xff\xff\xff"

    handlers = {"ResolveCatalog": grpc.unary_unary_rpc_method_handler(handle)}
    with (
        _serving_directory(handlers) as lake,
        pytest.raises(Internal, match="not a ResolveCatalogResponse"),
    ):
        lake.directory.resolve_catalog("lake")


# retries


@pytest.mark.parametrize("failures", [1, 5])
def test_read_is_retried_while_the_server_is_unavailable(server: Server, lake: Metastore, failures: int) -> None:
    server.fail("ResolveCatalog", *[Unavailable("not now")] * failures)
    assert lake.directory.resolve_catalog("lake")
    assert server.methods() == ["ResolveCatalog"] * (failures + 1)


def test_number_of_retries_is_limited(server: Server, lake: Metastore) -> None:
    server.fail("ResolveCatalog", *[Unavailable("not now")] * 6)
    with pytest.raises(Unavailable, match="not now"):
        lake.directory.resolve_catalog("lake")
    assert len(server.seen) == 6


def test_update_is_not_retried_if_it_may_have_been_applied(server: Server, lake: Metastore) -> None:
    server.fail("UpdateCatalog", Unavailable("not now"))
    with pytest.raises(Unavailable):
        lake.catalogs.update("lake", description="x")
    assert server.methods().count("UpdateCatalog") == 1


def test_delete_is_not_retried_if_it_may_have_been_applied(server: Server, lake: Metastore) -> None:
    server.fail("DeleteCatalog", Unavailable("not now"))
    with pytest.raises(Unavailable):
        lake.catalogs.delete("lake")
    assert server.methods().count("DeleteCatalog") == 1


def test_any_call_is_retried_after_a_lost_race(server: Server, lake: Metastore) -> None:
    server.fail("UpdateCatalog", *[Contention("others were faster")] * 3)
    assert lake.catalogs.update("lake", description="y").description == "y"
    assert server.methods().count("UpdateCatalog") == 4


@pytest.mark.parametrize(
    "error",
    [
        Conflict("no"),
        errors.AlreadyExists("no"),
        PreconditionFailed("no"),
        errors.LimitExceeded("no"),
        errors.Unsupported("no"),
        errors.Cancelled("no"),
        TimedOut("no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_other_errors_are_not_retried(server: Server, lake: Metastore, error: SkiwayError) -> None:
    server.fail("ResolveCatalog", error)
    with pytest.raises(type(error)):
        lake.directory.resolve_catalog("lake")
    assert len(server.seen) == 1


def test_backoff_doubles_up_to_a_limit_with_jitter() -> None:
    plain = Retries(limit=6, first_pause_s=0.1, longest_pause_s=1.0, jitter=0.5, random=lambda: 0.0)
    assert list(plain.pauses()) == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])
    shortest = Retries(limit=2, first_pause_s=0.1, jitter=0.5, random=lambda: 1.0)
    assert list(shortest.pauses()) == pytest.approx([0.05, 0.1])


def test_create_whose_response_was_lost_creates_one_resource(server: Server) -> None:
    with wire_to(server) as wire, Metastore(wire.address, retries=QUICK) as lake:
        ids = []

        def act(truly: Act, realm: Realm, request: v1.CreateTableRequest) -> Any:
            answer = truly(realm, request)
            ids.append(answer.table.resource_id.id)  # type: ignore[attr-defined]
            if len(ids) == 1:
                wire.cut()  # applied, but the response is lost
            return answer

        server.disturb("CreateTable", act)
        table = lake.tables.create("lake.sales.lost", schema=SCHEMA)
        assert wire.cuts == 1
        assert ids == [table.id, table.id]
        assert [each.id for each in lake.tables("lake.sales") if each.name == "lost"] == [table.id]
        lake.tables.delete(table)


def test_update_whose_response_was_lost_is_unavailable(server: Server) -> None:
    with (
        wire_to(server) as wire,
        Metastore(wire.address) as lake,
    ):  # its retries take longer than a reconnect on a busy machine

        def act(truly: Act, realm: Realm, request: Any) -> Any:
            answer = truly(realm, request)
            wire.cut()
            return answer

        server.disturb("UpdateCatalog", act)
        with pytest.raises(
            Unavailable, match=r"during the call .*: check whether the change was applied before you retry"
        ):
            lake.catalogs.update("lake", description="once")
        assert server.methods().count("UpdateCatalog") == 1
        assert lake.catalogs.get("lake").description == "once"  # and the client remains usable


def test_blank_idempotency_key_means_none(server: Server, lake: Metastore) -> None:
    server.fail("CreateCatalog", Unavailable("not now"))
    with pytest.raises(Unavailable):
        lake.catalogs.create("keyless", idempotency_key="")
    assert len(server.seen) == 1


def test_same_key_creates_one_resource_and_rejects_a_different_request(lake: Metastore) -> None:
    first = lake.catalogs.create("keyed", idempotency_key="k-1")
    assert lake.catalogs.create("keyed", idempotency_key="k-1") == first
    with pytest.raises(Conflict) as refused:
        lake.catalogs.create("keyed again", idempotency_key="k-1")
    assert refused.value.key == "idempotency.mismatch"
    lake.catalogs.delete(first)


# deadlines


def test_call_that_takes_too_long_times_out_and_is_not_retried(server: Server) -> None:
    release = threading.Event()

    def act(truly: Act, realm: Realm, request: Any) -> Any:
        release.wait(200)
        return truly(realm, request)

    server.disturb("ResolveCatalog", act)
    try:
        with Metastore(server.address, timeout_s=1) as lake, pytest.raises(TimedOut, match="timeout_s"):
            lake.directory.resolve_catalog("lake")
        assert len(server.seen) == 1
    finally:
        release.set()


def test_deadline_covers_all_attempts(server: Server) -> None:
    server.fail("ResolveCatalog", *[Unavailable("not now")] * 10_000)
    patient = Retries(limit=10_000, first_pause_s=0.02, longest_pause_s=0.02)
    begun = time.monotonic()
    with Metastore(server.address, timeout_s=0.3, retries=patient) as lake, pytest.raises((Unavailable, TimedOut)):
        lake.directory.resolve_catalog("lake")
    assert time.monotonic() - begun < 5
    assert 1 < len(server.seen) < 100


def test_no_backoff_beyond_the_deadline(server: Server) -> None:
    server.fail("ResolveCatalog", *[Unavailable("not now")] * 9)
    begun = time.monotonic()
    slow = Retries(first_pause_s=30, longest_pause_s=30)
    with Metastore(server.address, timeout_s=2, retries=slow) as lake, pytest.raises(Unavailable, match="not now"):
        lake.directory.resolve_catalog("lake")
    assert time.monotonic() - begun < 2
    assert len(server.seen) == 1


def test_calls_without_a_deadline_are_retried(server: Server) -> None:
    server.fail("ResolveCatalog", Unavailable("not now"))
    with Metastore(server.address, timeout_s=None, retries=QUICK) as lake:
        assert lake.directory.resolve_catalog("lake")


# threads


def test_many_threads_share_one_client_and_one_connection(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    dialed = []
    dial = grpc.insecure_channel

    def counting(*args: Any, **options: Any) -> grpc.Channel:
        dialed.append(args)
        return dial(*args, **options)

    monkeypatch.setattr(grpc, "insecure_channel", counting)
    with Metastore(server.address) as lake, ThreadPoolExecutor(16) as pool:

        def work(number: int) -> bool:
            created = lake.tables.create(f"lake.sales.t{number}", schema=SCHEMA)
            found = lake.tables.get(f"lake.sales.t{number}")
            lake.tables.update(found, description=str(number))
            lake.tables.delete(created)
            return found == created

        assert all(pool.map(work, range(80)))
        assert list(lake.tables("lake.sales")) == []
    assert len(dialed) == 1


# servers that are not a metastore


def _answering(code: grpc.StatusCode, details: v1.Error | bytes | None) -> AbstractContextManager[Metastore]:
    if isinstance(details, v1.Error):
        status = status_pb2.Status(code=code.value[0], message="said")
        status.details.add().Pack(details)
        details = status.SerializeToString()

    def handle(request: bytes, context: Any) -> bytes:
        if details is not None:
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(code, "said")
        raise AssertionError

    return _serving_directory({"ResolveCatalog": grpc.unary_unary_rpc_method_handler(handle)})


@contextmanager
def _serving_directory(handlers: dict[str, Any]) -> Iterator[Metastore]:
    generic = grpc.method_handlers_generic_handler("skiway.v1.DirectoryService", handlers)
    with _serving((generic,)) as address, Metastore(address) as lake:
        yield lake


@contextmanager
def _serving(handlers: Sequence[grpc.GenericRpcHandler]) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
