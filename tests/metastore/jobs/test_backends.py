"""One life of a job and of a query, on every place that they can be kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from metastore.mirrors import RULES, connector, queue
from metastore.wholeness import damage
from metastore.world import World, behaviour, refused
from skiway.errors import Conflict, NotFound
from skiway.metastore import connectors, gc, queries
from skiway.metastore.gc import sweeps as gc_sweeps
from skiway.metastore.jobs.queue import Progress
from skiway.metastore.resources import tables
from skiway.model import v1
from skiway.storage import Stores
from storage.conftest import server  # noqa: F401 - a fixture
from storage.homes import blob_home, pointer_home

BACKENDS = [("memory", "memory"), ("sqlite", "file"), ("postgresql", "file"), ("dynamodb", "s3")]


@behaviour(18, 73)
@pytest.mark.parametrize(("pointers", "blobs"), BACKENDS)
def test_jobs_and_queries_live_alike_on_every_backend(pointers, blobs, tmp_path, server, clock):  # noqa: F811
    places = pointer_home(pointers, tmp_path, server), blob_home(blobs, tmp_path, server)
    with places[0].pointers(clock=clock) as opened, places[1].blobs() as content:
        world = World(Stores(opened, content), clock)
        live_job(world)
        live_query(world)
        assert damage(world.stores) == []


def live_job(world: World) -> None:
    request = v1.TriggerReconcileRequest(connector_id=connector(world).resource_id)
    job_id = connectors.trigger(world.home, request).job_id
    assert connectors.trigger(world.home, request).job_id == job_id
    first = queue(world).lease("w1")
    assert queue(world).lease("w2") is None
    world.clock.advance(RULES.lease_s)
    assert queue(world).reclaim() == 1
    world.clock.advance(1)
    second = queue(world).lease("w2")
    with refused(Conflict, "job.lease.lost"):
        queue(world).complete(first, Progress())
    assert queue(world).complete(second, Progress()).state == v1.JS_SUCCEEDED
    assert world.stores.pointers.count("/queue/") == 0
    world.clock.advance(gc_sweeps.WEEK_S + 1)
    assert len(gc.sweep_jobs(world.stores, clock=world.clock).removed) == 1
    assert world.stores.pointers.count("/accounts/a1/jobs/") == 0


def live_query(world: World) -> None:
    table = world.table()
    world.snapshot(table, 1)
    request = v1.BeginQueryRequest(
        query_id="q", default_catalog_id=table.catalog_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
    )
    queries.begin(world.home, request)
    world.clock.advance(59)
    queries.renew(world.home, v1.RenewQueryRequest(query_id="q"))
    tables.delete(world.home, v1.DeleteTableRequest(table_id=table.resource_id))
    world.clock.advance(59)
    collect(world)
    assert queries.pinned(world.home, "q", table.resource_id).snapshot().snapshot_id == 1
    world.clock.advance(1)
    assert queries.get(world.home, v1.GetQueryRequest(query_id="q")).query.state == v1.LS_EXPIRED
    world.clock.advance(15)
    with refused(NotFound, "query.not.found"):
        queries.get(world.home, v1.GetQueryRequest(query_id="q"))
    collect(world)
    left = [head.uri for head in world.stores.blobs.scan() if "/tables/" in head.uri or "/leases/" in head.uri]
    assert left == []


def collect(world: World) -> None:
    gc.sweep_expired(world.stores)
    gc.sweep_blobs(world.stores, clock=lambda: datetime.now(UTC) + timedelta(hours=1))
