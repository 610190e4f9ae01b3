"""The lifecycle of a job and of a query on every storage backend."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from metastore.integrity import damage
from metastore.mirrors import RULES, connector, queue
from metastore.resource_factory import ResourceFactory, behavior, expect_error
from skiway.errors import Conflict, NotFound
from skiway.metastore import connectors, gc, queries
from skiway.metastore.gc import sweeps as gc_sweeps
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.resources import tables
from skiway.model import v1
from skiway.storage import Stores
from storage.conftest import server  # noqa: F401 - a fixture
from storage.homes import blob_home, pointer_home

BACKENDS = [
    ("memory", "memory"),
    ("sqlite", "file"),
    ("postgresql", "file"),
    pytest.param("dynamodb", "s3", marks=pytest.mark.full),
]


@behavior(18, 73)
@pytest.mark.parametrize(("pointers", "blobs"), BACKENDS)
def test_lifecycle_of_jobs_and_queries_is_the_same_on_every_backend(pointers, blobs, tmp_path, server, clock):  # noqa: F811
    backends = pointer_home(pointers, tmp_path, server), blob_home(blobs, tmp_path, server)
    with backends[0].pointers(clock=clock) as pointer_store, backends[1].blobs() as blob_store:
        factory = ResourceFactory(Stores(pointer_store, blob_store), clock)
        run_job_lifecycle(factory)
        run_query_lifecycle(factory)
        assert damage(factory.stores) == []


def run_job_lifecycle(factory: ResourceFactory) -> None:
    request = v1.TriggerReconcileRequest(connector_id=connector(factory).resource_id)
    job_id = connectors.trigger(factory.home, request).job_id
    assert connectors.trigger(factory.home, request).job_id == job_id
    first = queue(factory).lease("w1")
    assert queue(factory).lease("w2") is None
    factory.clock.advance(RULES.lease_s)
    assert queue(factory).reclaim() == 1
    factory.clock.advance(1)
    second = queue(factory).lease("w2")
    with expect_error(Conflict, "job.lease.lost"):
        queue(factory).complete(first, Progress())
    assert queue(factory).complete(second, Progress()).state == v1.JS_SUCCEEDED
    assert factory.stores.pointers.count("/queue/") == 0
    factory.clock.advance(gc_sweeps.WEEK_S + 1)
    assert len(gc.sweep_jobs(factory.stores, clock=factory.clock).removed) == 1
    assert factory.stores.pointers.count("/accounts/a1/jobs/") == 0


def run_query_lifecycle(factory: ResourceFactory) -> None:
    table = factory.table()
    factory.snapshot(table, 1)
    request = v1.BeginQueryRequest(
        query_id="q", default_catalog_id=table.catalog_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
    )
    queries.begin(factory.home, request)
    factory.clock.advance(59)
    queries.renew(factory.home, v1.RenewQueryRequest(query_id="q"))
    tables.delete(factory.home, v1.DeleteTableRequest(table_id=table.resource_id))
    factory.clock.advance(59)
    collect(factory)
    assert queries.pinned(factory.home, "q", table.resource_id).snapshot().snapshot_id == 1
    factory.clock.advance(1)
    assert queries.get(factory.home, v1.GetQueryRequest(query_id="q")).query.state == v1.LS_EXPIRED
    factory.clock.advance(15)
    with expect_error(NotFound, "query.not_found"):
        queries.get(factory.home, v1.GetQueryRequest(query_id="q"))
    collect(factory)
    remaining = [head.uri for head in factory.stores.blobs.scan() if "/tables/" in head.uri or "/leases/" in head.uri]
    assert remaining == []


def collect(factory: ResourceFactory) -> None:
    gc.sweep_expired(factory.stores)
    gc.sweep_blobs(factory.stores, clock=lambda: datetime.now(UTC) + timedelta(hours=1))
