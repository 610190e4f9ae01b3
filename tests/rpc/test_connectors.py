"""Connectors over gRPC, called through the metastore client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rpc.requests import lake
from rpc.rpc_server import RpcServer, behavior, opened
from skiway.client import Metastore
from skiway.client.metastore import calls
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, TimedOut, Unsupported
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
