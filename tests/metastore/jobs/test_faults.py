"""A process crashes at each step of each change to jobs and queries: the change is made completely or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from metastore.faults import Crashed, CrashPoint, crashing_stores
from metastore.integrity import damage
from metastore.mirrors import RULES, connector, queue
from metastore.resource_factory import ResourceFactory, behavior
from skiway.errors import NotFound
from skiway.metastore import connectors, gc, jobs, queries
from skiway.metastore.gc import sweeps as gc_sweeps
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.jobs.queue import ACTIVE
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import Clock

Change = Callable[[ResourceFactory], object]
Prepare = Callable[[ResourceFactory], Change]


def enqueue(factory: ResourceFactory) -> Change:
    request = v1.TriggerReconcileRequest(connector_id=connector(factory).resource_id)
    return lambda crashing_factory: connectors.trigger(crashing_factory.home, request)


def lease(factory: ResourceFactory) -> Change:
    enqueue(factory)(factory)
    return lambda crashing_factory: queue(crashing_factory).lease("w")


def complete(factory: ResourceFactory) -> Change:
    active_lease = lease(factory)(factory)
    return lambda crashing_factory: queue(crashing_factory).complete(active_lease, Progress(1, 1, {"t": "x"}))


def fail(factory: ResourceFactory) -> Change:
    active_lease = lease(factory)(factory)
    return lambda crashing_factory: queue(crashing_factory).fail(active_lease, "no luck")


def renew_job(factory: ResourceFactory) -> Change:
    active_lease = lease(factory)(factory)
    factory.clock.advance(1)
    return lambda crashing_factory: queue(crashing_factory).renew(active_lease)


def reclaim(factory: ResourceFactory) -> Change:
    lease(factory)(factory)
    factory.clock.advance(RULES.lease_s)
    return lambda crashing_factory: queue(crashing_factory).reclaim()


def cancel_waiting(factory: ResourceFactory) -> Change:
    job_id = enqueue(factory)(factory).job_id  # type: ignore[attr-defined]
    return lambda crashing_factory: jobs.cancel(crashing_factory.home, v1.CancelReconcileJobRequest(job_id=job_id))


def cancel_running(factory: ResourceFactory) -> Change:
    job_id = lease(factory)(factory).job.job_id  # type: ignore[attr-defined]
    return lambda crashing_factory: jobs.cancel(crashing_factory.home, v1.CancelReconcileJobRequest(job_id=job_id))


def collect_job(factory: ResourceFactory) -> Change:
    complete(factory)(factory)
    factory.clock.advance(gc_sweeps.WEEK_S + 1)
    return lambda crashing_factory: gc.sweep_jobs(crashing_factory.stores, clock=crashing_factory.clock)


def begin(factory: ResourceFactory) -> Change:
    table = factory.table()
    factory.snapshot(table, 1)
    request = v1.BeginQueryRequest(
        query_id="q", default_catalog_id=table.catalog_id, inputs=[v1.QueryInput(table_id=table.resource_id)]
    )
    return lambda crashing_factory: queries.begin(crashing_factory.home, request)


def renew_query(factory: ResourceFactory) -> Change:
    begin(factory)(factory)
    return lambda crashing_factory: queries.renew(
        crashing_factory.home, v1.RenewQueryRequest(query_id="q", ttl_seconds=100)
    )


def end(factory: ResourceFactory) -> Change:
    begin(factory)(factory)
    return lambda crashing_factory: queries.end(crashing_factory.home, v1.EndQueryRequest(query_id="q"))


@dataclass(frozen=True)
class State:
    """Everything that can be read about jobs and queries, in records and in the queue."""

    jobs: list[v1.Job]
    queued: int
    query: v1.QueryDescriptor | None


def visible_state(factory: ResourceFactory) -> State:
    found = list(jobs.list_(factory.home, v1.ListReconcileJobsRequest()).jobs)
    query = None
    with suppress(NotFound):
        query = queries.get(factory.home, v1.GetQueryRequest(query_id="q")).query
    return State(found, factory.stores.pointers.count("/queue/"), query)


def set_up(prepare: Prepare) -> tuple[ResourceFactory, Change]:
    clock = Clock()
    factory = ResourceFactory(open_stores("memory://", clock=clock), clock)
    return factory, prepare(factory)


def check_recovery(factory: ResourceFactory, state: State) -> None:
    """Check that other processes can finish an unfinished job and read an active query."""
    if state.query is not None and state.query.state == v1.LS_ACTIVE:
        (pin,) = state.query.snapshots.pins
        assert queries.pinned(factory.home, "q", pin.table_id).snapshot().snapshot_id == 1
    if any(job.state in ACTIVE and not job.cancel_requested for job in state.jobs):
        factory.clock.advance(RULES.lease_s)
        queue(factory).reclaim()
        factory.clock.advance(RULES.max_backoff_s)
        leased = queue(factory).lease("heir")
        assert queue(factory).complete(leased, Progress()).state == v1.JS_SUCCEEDED
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
def test_change_interrupted_by_a_crash_is_atomic_and_others_can_continue(prepare: Any, when: Any):
    factory, change = set_up(prepare)
    before = visible_state(factory)
    change(factory)
    after = visible_state(factory)
    assert before != after
    at, outcomes = 0, set()
    while True:
        at += 1
        factory, change = set_up(prepare)
        crash_point = CrashPoint(at, when)
        crashing_factory = ResourceFactory(crashing_stores(factory.stores, CrashPoint()), factory.clock, factory.ids)
        crashing_factory.stores = crashing_stores(factory.stores, crash_point)
        with suppress(Crashed):
            change(crashing_factory)
        now = visible_state(factory)
        assert now in (before, after), f"crashed {when} operation {at}"
        assert damage(factory.stores) == []
        outcomes.add(now == after)
        check_recovery(factory, now)
        if crash_point.done < at:
            break
    assert outcomes == {True, False}
