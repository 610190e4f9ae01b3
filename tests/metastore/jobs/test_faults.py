"""A process dies in every step of what is done with jobs and queries: afterwards it has happened wholly or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from metastore.faults import Died, Fate, dying
from metastore.mirrors import RULES, connector, queue
from metastore.wholeness import damage
from metastore.world import World, behaviour
from skiway.errors import NotFound
from skiway.metastore import connectors, gc, jobs, queries
from skiway.metastore.gc import sweeps as gc_sweeps
from skiway.metastore.jobs.queue import ACTIVE, Progress
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

Change = Callable[[World], object]
Prepare = Callable[[World], Change]


def enqueue(world: World) -> Change:
    request = v1.TriggerReconcileRequest(connector_id=connector(world).resource_id)
    return lambda doomed: connectors.trigger(doomed.home, request)


def lease(world: World) -> Change:
    enqueue(world)(world)
    return lambda doomed: queue(doomed).lease("w")


def complete(world: World) -> Change:
    held = lease(world)(world)
    return lambda doomed: queue(doomed).complete(held, Progress(1, 1, {"t": "x"}))


def fail(world: World) -> Change:
    held = lease(world)(world)
    return lambda doomed: queue(doomed).fail(held, "no luck")


def renew_job(world: World) -> Change:
    held = lease(world)(world)
    world.clock.advance(1)
    return lambda doomed: queue(doomed).renew(held)


def reclaim(world: World) -> Change:
    lease(world)(world)
    world.clock.advance(RULES.lease_s)
    return lambda doomed: queue(doomed).reclaim()


def cancel_waiting(world: World) -> Change:
    job_id = enqueue(world)(world).job_id
    return lambda doomed: jobs.cancel(doomed.home, v1.CancelReconcileJobRequest(job_id=job_id))


def cancel_running(world: World) -> Change:
    job_id = lease(world)(world).job.job_id
    return lambda doomed: jobs.cancel(doomed.home, v1.CancelReconcileJobRequest(job_id=job_id))


def collect_job(world: World) -> Change:
    complete(world)(world)
    world.clock.advance(gc_sweeps.WEEK_S + 1)
    return lambda doomed: gc.sweep_jobs(doomed.stores, clock=doomed.clock)


def begin(world: World) -> Change:
    table = world.table()
    world.snapshot(table, 1)
    request = v1.BeginQueryRequest(
        query_id="q", default_catalog_id=table.catalog_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
    )
    return lambda doomed: queries.begin(doomed.home, request)


def renew_query(world: World) -> Change:
    begin(world)(world)
    return lambda doomed: queries.renew(doomed.home, v1.RenewQueryRequest(query_id="q", ttl_seconds=100))


def end(world: World) -> Change:
    begin(world)(world)
    return lambda doomed: queries.end(doomed.home, v1.EndQueryRequest(query_id="q"))


@dataclass(frozen=True)
class Seen:
    """All that can be read of jobs and queries, in records and in the queue."""

    jobs: list[v1.Job]
    queued: int
    query: v1.QueryDescriptor | None


def seen(world: World) -> Seen:
    found = list(jobs.list_(world.home, v1.ListReconcileJobsRequest()).jobs)
    query = None
    with suppress(NotFound):
        query = queries.get(world.home, v1.GetQueryRequest(query_id="q")).query
    return Seen(found, world.stores.pointers.count("/queue/"), query)


def prepared(prepare: Prepare) -> tuple[World, Change]:
    clock = Clock()
    world = World(open_stores("memory://", clock=clock), clock)
    return world, prepare(world)


def check_life_goes_on(world: World, state: Seen) -> None:
    """Whatever the dead has left, others finish: the job that is not over, and the query that is read."""
    if state.query is not None and state.query.state == v1.LS_ACTIVE:
        (pin,) = state.query.snapshots.pins
        assert queries.pinned(world.home, "q", pin.table_id).snapshot().snapshot_id == 1
    if any(job.state in ACTIVE and not job.cancel_requested for job in state.jobs):
        world.clock.advance(RULES.lease_s)
        queue(world).reclaim()
        world.clock.advance(RULES.max_backoff_s)
        taken = queue(world).lease("heir")
        assert queue(world).complete(taken, Progress()).state == v1.JS_SUCCEEDED
    world.clock.advance(1000)
    gc.sweep_expired(world.stores)
    assert world.stores.pointers.count("/pins/") == 0
    assert damage(world.stores) == []


CHANGES: list[Prepare] = [
    enqueue,
    lease,
    complete,
    fail,
    renew_job,
    reclaim,
    cancel_waiting,
    cancel_running,
    collect_job,
    begin,
    renew_query,
    end,
]


@behaviour(10, 73)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("prepare", CHANGES, ids=lambda prepare: prepare.__name__)
def test_a_death_in_any_step_leaves_all_or_nothing_and_others_finish(prepare: Any, when: Any):
    world, change = prepared(prepare)
    before = seen(world)
    change(world)
    after = seen(world)
    assert before != after
    at, outcomes = 0, set()
    while True:
        at += 1
        world, change = prepared(prepare)
        fate = Fate(at, when)
        doomed = World(dying(world.stores, Fate()), world.clock, world.ids)
        doomed.stores = dying(world.stores, fate)
        with suppress(Died):
            change(doomed)
        now = seen(world)
        assert now in (before, after), f"died {when} operation {at}"
        assert damage(world.stores) == []
        outcomes.add(now == after)
        check_life_goes_on(world, now)
        if fate.done < at:
            break
    assert outcomes == {True, False}
