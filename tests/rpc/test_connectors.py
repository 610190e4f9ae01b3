"""Connectors over gRPC, called through the metastore client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rpc.requests import lake
from rpc.rpc_server import RpcServer, behavior, opened
from skiway.client import Metastore
from skiway.client.metastore import calls
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, SkiwayError, TimedOut, Unsupported
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import JobQueue
from skiway.model import v1


@pytest.fixture
def db(rpc_server: RpcServer) -> Iterator[Metastore]:
    rpc_server.factory.catalog()
    with Metastore(rpc_server.address, token="everybody") as client:
        yield client


@pytest.fixture
def folder(tmp_path) -> str:
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "people.parquet")
    return str(tmp_path)


def test_connector_is_created_changed_listed_and_deleted(db: Metastore, folder):
    connector = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake", description="d")
    assert (connector.name, connector.kind, connector.uri, connector.is_paused) == ("files", "parquet", folder, False)
    assert [each.id for each in db.connectors()] == [connector.id]
    assert [each.id for each in db.connectors(kind="iceberg")] == []
    assert db.connectors.get("files") == db.connectors.get(connector.id) == db.connectors.get(connector) == connector
    paused = db.connectors.update("files", paused=True, name="renamed")
    assert (paused.is_paused, paused.name) == (True, "renamed")
    with pytest.raises(PreconditionFailed):
        db.connectors.sync(paused)
    db.connectors.delete(connector)
    assert db.connectors.find(connector) is None
    assert db.connectors.find("files") is None
    with pytest.raises(InvalidArgument, match="'xml' is not a kind of connector"):
        db.connectors.create("files", kind="xml", uri=folder, catalog="lake")


@behavior(69)
def test_connector_is_validated(db: Metastore, folder):
    connector = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake")
    assert db.connectors.validate(connector).ok
    wrong = db.connectors.validate(connector, spec=v1.ConnectorSpec(uri="/nowhere"))
    assert (wrong.ok, "nowhere" in wrong.summary) == (False, True)
    assert not db.connectors.validate(spec=v1.ConnectorSpec(kind=v1.CK_PARQUET, uri="/nowhere")).ok


class Listener(ThreadingHTTPServer):
    """An attacker's server, which records all headers that it receives."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ListenerHandler)
        self.received: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_port}"


class ListenerHandler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        cast(Listener, self.server).received.append(f"{self.path} {self.headers}")
        self.send_response(404)
        self.end_headers()

    do_POST = do_GET  # noqa: N815 - the name that the class wants

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def listeners() -> Iterator[tuple[Listener, Listener]]:
    with Listener() as own, Listener() as attacker:
        for each in (own, attacker):
            Thread(target=each.serve_forever, args=(0.01,), daemon=True).start()
        yield own, attacker
        own.shutdown()
        attacker.shutdown()


def test_stored_token_never_arrives_at_another_address(db: Metastore, listeners: tuple[Listener, Listener]):
    own, attacker = listeners
    secret = "planted-bearer-token"
    source = v1.ConnectorSource(namespace=v1.NamespacePath(segments=["a"]))
    auth = v1.ConnectorAuthSpec(
        scheme="oauth2", credentials=v1.ConnectorCredentials(bearer=v1.BearerToken(token=secret))
    )
    made = db.connectors.create("up", kind="iceberg", uri=own.url, catalog="lake", source=source, auth=auth)
    db.connectors.validate(made)
    assert any(secret in each for each in own.received)  # the listener sees tokens

    moves: list[dict[str, Any]] = [
        {"uri": attacker.url},
        {"kind": "unity", "uri": attacker.url},
        {"properties": {"uri": attacker.url}},
        {"properties": {"oauth2-server-uri": attacker.url, "s3.endpoint": attacker.url}},
        {"auth": v1.ConnectorAuthSpec(scheme="oauth2", properties={"uri": attacker.url}), "keep_credentials": True},
        {"auth": v1.ConnectorAuthSpec(scheme="none"), "uri": attacker.url, "keep_credentials": True},
    ]
    for move in moves:
        with pytest.raises(InvalidArgument, match=r"give auth\.credentials again"):
            db.connectors.update("up", **move)
        spec = v1.ConnectorSpec(
            uri=move.get("uri"), kind=v1.CK_UNITY if "kind" in move else None, properties=move.get("properties")
        )
        db.connectors.validate("up", spec=spec)
        db.connectors.validate("up")
        with suppress(SkiwayError):
            db.connectors.capture("up")
    db.connectors.update("up", uri=attacker.url, auth=v1.ConnectorAuthSpec(scheme="oauth2"))  # removes the token
    db.connectors.validate("up")
    assert attacker.received
    assert not any(secret in each for each in attacker.received)


@behavior(70)
def test_tables_are_captured_immediately(db: Metastore, folder):
    connector = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake", namespace="raw")
    answer = db.connectors.capture(connector)
    assert (answer.tables_scanned, answer.tables_changed, answer.errors) == (1, 1, 0)
    assert [table.name for table in db.tables("lake.raw")] == ["people"]
    with pytest.raises(Unsupported):
        db.connectors.capture(connector, statistics=True)
    with pytest.raises(NotFound):
        db.connectors.capture(connector, table="nope")


def test_a_capture_waits_as_long_as_its_caller_asks(db: Metastore, folder, monkeypatch: pytest.MonkeyPatch):
    connector = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake", namespace="raw")
    deadlines: list[float | None] = []
    plain = calls.retry

    def recording(attempt: Any, *, timeout_s: float | None, **more: Any) -> Any:
        deadlines.append(timeout_s)
        return plain(attempt, timeout_s=timeout_s, **more)

    monkeypatch.setattr(calls, "retry", recording)
    db.connectors.capture(connector)
    db.connectors.capture(connector, timeout_s=3600)
    db.catalogs.get("lake")
    assert deadlines[:2] == [None, 3600]
    assert set(deadlines[2:]) == {30}


def test_jobs_are_followed_and_cancelled(db: Metastore, folder, rpc_server: RpcServer):
    connector = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake")
    job = db.connectors.sync(connector)
    assert (job.state, job.is_over) == ("queued", False)
    assert db.connectors.sync(connector).id == job.id
    queue = JobQueue(rpc_server.factory.stores)
    lease = queue.lease("w")
    assert lease is not None
    assert db.jobs.get(job).state == "running"
    with pytest.raises(TimedOut):
        db.jobs.wait(job, timeout_s=0.05, every_s=0.02)
    assert db.jobs.cancel(job).message.cancel_requested
    queue.complete(lease, Progress(2, 1, {"x": "broken"}))
    seen: list[str] = []
    done = db.jobs.wait(job.id, on_change=lambda each: seen.append(each.state))
    assert (done.state, done.errors, seen) == ("partial", {"x": "broken"}, ["partial"])
    assert [each.id for each in db.jobs(state="partial")] == [job.id]
    assert list(db.jobs(state="succeeded")) == []
    assert [each.id for each in db.jobs(connector=connector.id, state="queued")] == []
    with pytest.raises(InvalidArgument, match="'over' is not a state"):
        list(db.jobs(state="over"))


def test_jobs_of_another_account_do_not_exist(rpc_server: RpcServer):
    sample = lake(rpc_server.factory)
    rpc_server.factory.account("a2")
    for operation in ("GetReconcileJob", "GetReconcileJobLog", "CancelReconcileJob"):
        request = getattr(v1, f"{operation}Request")(job_id=sample.job_id)
        answer = rpc_server.client.as_("stranger")(f"ConnectorService/{operation}", request)
        assert answer.code.name == "NOT_FOUND"
    assert rpc_server.client.as_("stranger")("ConnectorService/ListReconcileJobs").message.jobs == []


def test_stream_limit_includes_streamed_answers(stores):
    with opened(stores, max_streams=0) as rpc_server:
        sample = lake(rpc_server.factory)
        request = v1.FetchScanBundleRequest(query_id=sample.query_id, table_id=sample.table.resource_id)
        refused = rpc_server.client("QueryService/FetchScanBundle", request)
        assert (refused.code.name, refused.error.message_key) == ("RESOURCE_EXHAUSTED", "streams.limit")
