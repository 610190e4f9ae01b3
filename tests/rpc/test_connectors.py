"""Connectors over the wire, as the client of the metastore calls them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rpc.requests import lake
from rpc.rpc_server import RpcServer, behavior, opened
from skiway.client import Metastore
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, TimedOut, Unsupported
from skiway.metastore.jobs.queue import JobQueue, Progress
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


def test_a_connector_is_made_changed_listed_and_deleted(db: Metastore, folder):
    made = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake", description="d")
    assert (made.name, made.kind, made.uri, made.is_paused) == ("files", "parquet", folder, False)
    assert [each.id for each in db.connectors()] == [made.id]
    assert [each.id for each in db.connectors(kind="iceberg")] == []
    assert db.connectors.get("files") == db.connectors.get(made.id) == db.connectors.get(made) == made
    paused = db.connectors.update("files", paused=True, name="renamed")
    assert (paused.is_paused, paused.name) == (True, "renamed")
    with pytest.raises(PreconditionFailed):
        db.connectors.sync(paused)
    db.connectors.delete(made)
    assert db.connectors.find(made) is None
    assert db.connectors.find("files") is None
    with pytest.raises(InvalidArgument, match="'csv' is not a kind of connector"):
        db.connectors.create("files", kind="csv", uri=folder, catalog="lake")


@behavior(69)
def test_a_connector_is_tried(db: Metastore, folder):
    made = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake")
    assert db.connectors.validate(made).ok
    wrong = db.connectors.validate(made, spec=v1.ConnectorSpec(uri="/nowhere"))
    assert (wrong.ok, "nowhere" in wrong.summary) == (False, True)
    assert not db.connectors.validate(spec=v1.ConnectorSpec(kind=v1.CK_PARQUET, uri="/nowhere")).ok


@behavior(70)
def test_tables_are_captured_at_once(db: Metastore, folder):
    made = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake", namespace="raw")
    answer = db.connectors.capture(made)
    assert (answer.tables_scanned, answer.tables_changed, answer.errors) == (1, 1, 0)
    assert [table.name for table in db.tables("lake.raw")] == ["people"]
    with pytest.raises(Unsupported):
        db.connectors.capture(made, statistics=True)
    with pytest.raises(NotFound):
        db.connectors.capture(made, table="nope")


def test_jobs_are_followed_and_cancelled(db: Metastore, folder, rpc_server: RpcServer):
    made = db.connectors.create("files", kind="parquet", uri=folder, catalog="lake")
    job = db.connectors.sync(made)
    assert (job.state, job.is_over) == ("queued", False)
    assert db.connectors.sync(made).id == job.id
    queue = JobQueue(rpc_server.factory.stores)
    lease = queue.lease("w")
    assert lease is not None
    assert db.jobs.get(job).state == "running"
    with pytest.raises(TimedOut):
        db.jobs.wait(job, timeout_s=0.05, every_s=0.02)
    assert db.jobs.cancel(job).message.cancel_requested
    queue.complete(lease, Progress(1, 1, {"x": "broken"}))
    seen: list[str] = []
    done = db.jobs.wait(job.id, on_change=lambda each: seen.append(each.state))
    assert (done.state, done.errors, seen) == ("succeeded", {"x": "broken"}, ["succeeded"])
    assert [each.id for each in db.jobs(state="succeeded")] == [job.id]
    assert [each.id for each in db.jobs(connector=made.id, state="queued")] == []
    with pytest.raises(InvalidArgument, match="'over' is not a state"):
        list(db.jobs(state="over"))


def test_jobs_of_another_account_do_not_exist(rpc_server: RpcServer):
    made = lake(rpc_server.factory)
    rpc_server.factory.account("a2")
    for operation in ("GetReconcileJob", "CancelReconcileJob"):
        request = getattr(v1, f"{operation}Request")(job_id=made.job_id)
        answer = rpc_server.client.as_("stranger")(f"ConnectorService/{operation}", request)
        assert answer.code.name == "NOT_FOUND"
    assert rpc_server.client.as_("stranger")("ConnectorService/ListReconcileJobs").message.jobs == []


def test_the_limit_of_streams_counts_answers_too(stores):
    with opened(stores, max_streams=0) as rpc_server:
        made = lake(rpc_server.factory)
        request = v1.FetchScanBundleRequest(query_id=made.query_id, table_id=made.table.resource_id)
        refused = rpc_server.client("QueryService/FetchScanBundle", request)
        assert (refused.code.name, refused.error.message_key) == ("RESOURCE_EXHAUSTED", "streams.limit")
