"""A process dies in every step of what is done with jobs and queries: afterwards it has happened wholly or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from metastore.faults import Died, Fate, dying
from metastore.integrity import damage
from metastore.mirrors import RULES, connector, queue
from metastore.resource_factory import ResourceFactory, behavior
from skiway.errors import NotFound
from skiway.metastore import connectors, gc, jobs, queries
from skiway.metastore.gc import sweeps as gc_sweeps
from skiway.metastore.jobs.queue import ACTIVE, Progress
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

Change = Callable[[ResourceFactory], object]
Prepare = Callable[[ResourceFactory], Change]


def enqueue(factory: ResourceFactory) -> Change:
    request = v1.TriggerReconcileRequest(connector_id=connector(factory).resource_id)
    return lambda doomed: connectors.trigger(doomed.home, request)


def lease(factory: ResourceFactory) -> Change:
    enqueue(factory)(factory)
    return lambda doomed: queue(doomed).lease("w")


def complete(factory: ResourceFactory) -> Change:
    held = lease(factory)(factory)
    return lambda doomed: queue(doomed).complete(held, Progress(1, 1, {"t": "x"}))


def fail(factory: ResourceFactory) -> Change:
    held = lease(factory)(factory)
    return lambda doomed: queue(doomed).fail(held, "no luck")


def renew_job(factory: ResourceFactory) -> Change:
    held = lease(factory)(factory)
    factory.clock.advance(1)
    return lambda doomed: queue(doomed).renew(held)


def reclaim(factory: ResourceFactory) -> Change:
    lease(factory)(factory)
    factory.clock.advance(RULES.lease_s)
    return lambda doomed: queue(doomed).reclaim()


def cancel_waiting(factory: ResourceFactory) -> Change:
    job_id = enqueue(factory)(factory).job_id  # type: ignore[attr-defined]
    return lambda doomed: jobs.cancel(doomed.home, v1.CancelReconcileJobRequest(job_id=job_id))


def cancel_running(factory: ResourceFactory) -> Change:
    job_id = lease(factory)(factory).job.job_id  # type: ignore[attr-defined]
    return lambda doomed: jobs.cancel(doomed.home, v1.CancelReconcileJobRequest(job_id=job_id))


def collect_job(factory: ResourceFactory) -> Change:
    complete(factory)(factory)
    factory.clock.advance(gc_sweeps.WEEK_S + 1)
    return lambda doomed: gc.sweep_jobs(doomed.stores, clock=doomed.clock)


def begin(factory: ResourceFactory) -> Change:
    table = factory.table()
    factory.snapshot(table, 1)
    request = v1.BeginQueryRequest(
        query_id="q", default_catalog_id=table.catalog_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
    )
    return lambda doomed: queries.begin(doomed.home, request)


def renew_query(factory: ResourceFactory) -> Change:
    begin(factory)(factory)
    return lambda doomed: queries.renew(doomed.home, v1.RenewQueryRequest(query_id="q", ttl_seconds=100))


def end(factory: ResourceFactory) -> Change:
    begin(factory)(factory)
    return lambda doomed: queries.end(doomed.home, v1.EndQueryRequest(query_id="q"))


@dataclass(frozen=True)
class Seen:
    """All that can be read of jobs and queries, in records and in the queue."""

    jobs: list[v1.Job]
    queued: int
    query: v1.QueryDescriptor | None


def seen(factory: ResourceFactory) -> Seen:
    found = list(jobs.list_(factory.home, v1.ListReconcileJobsRequest()).jobs)
    query = None
    with suppress(NotFound):
        query = queries.get(factory.home, v1.GetQueryRequest(query_id="q")).query
    return Seen(found, factory.stores.pointers.count("/queue/"), query)


def prepared(prepare: Prepare) -> tuple[ResourceFactory, Change]:
    clock = Clock()
    factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
    return factory, prepare(factory)


def check_life_goes_on(factory: ResourceFactory, state: Seen) -> None:
    """Whatever the dead has left, others finish: the job that is not over, and the query that is read."""
    if state.query is not None and state.query.state == v1.LS_ACTIVE:
        (pin,) = state.query.snapshots.pins
        assert queries.pinned(factory.home, "q", pin.table_id).snapshot().snapshot_id == 1
    if any(job.state in ACTIVE and not job.cancel_requested for job in state.jobs):
        factory.clock.advance(RULES.lease_s)
        queue(factory).reclaim()
        factory.clock.advance(RULES.max_backoff_s)
        taken = queue(factory).lease("heir")
        assert queue(factory).complete(taken, Progress()).state == v1.JS_SUCCEEDED
    factory.clock.advance(1000)
    gc.sweep_expired(factory.stores)
    assert factory.stores.pointers.count("/pins/") == 0
    assert damage(factory.stores) == []


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


@behavior(10, 73)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("prepare", CHANGES, ids=lambda prepare: prepare.__name__)
def test_a_death_in_any_step_leaves_all_or_nothing_and_others_finish(prepare: Any, when: Any):
    factory, change = prepared(prepare)
    before = seen(factory)
    change(factory)
    after = seen(factory)
    assert before != after
    at, outcomes = 0, set()
    while True:
        at += 1
        factory, change = prepared(prepare)
        fate = Fate(at, when)
        doomed = ResourceFactory(dying(factory.stores, Fate()), factory.clock, factory.ids)
        doomed.stores = dying(factory.stores, fate)
        with suppress(Died):
            change(doomed)
        now = seen(factory)
        assert now in (before, after), f"died {when} operation {at}"
        assert damage(factory.stores) == []
        outcomes.add(now == after)
        check_life_goes_on(factory, now)
        if fate.done < at:
            break
    assert outcomes == {True, False}
