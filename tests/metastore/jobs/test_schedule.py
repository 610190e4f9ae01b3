"""Connectors that are run by themselves: when, by whom, and when not."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from metastore.integrity import damage
from metastore.mirrors import connector, queue
from metastore.resource_factory import ResourceFactory, mask
from skiway.metastore import connectors, gc, jobs
from skiway.metastore.jobs.api import BOTH_PASSES
from skiway.metastore.jobs.queue import Progress
from skiway.metastore.jobs.schedule import DEFAULT_INTERVAL, MAX_CLOCK_SKEW, JobSchedule
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm, timestamp
from skiway.model import v1

HOUR = Duration(seconds=3600)


def policy(**more: Any) -> v1.ConnectorPolicy:
    return v1.ConnectorPolicy(**{"enabled": True, "interval": HOUR, **more})


def begun(factory: ResourceFactory) -> int:
    """How many jobs a look begins."""
    return len(JobSchedule(factory.stores, factory.realm).begin_due())


def finish(factory: ResourceFactory) -> v1.Job:
    """Do the job that waits."""
    lease = queue(factory).lease("w")
    assert lease is not None
    return queue(factory).complete(lease, Progress(1, 1))


def change(factory: ResourceFactory, of: v1.Connector, *paths: str, **spec: Any) -> v1.Connector:
    request = v1.UpdateConnectorRequest(
        connector_id=of.resource_id, spec=v1.ConnectorSpec(**spec), update_mask=mask(*paths)
    )
    return connectors.update(factory.home, request, secrets=None).connector  # type: ignore[arg-type]


def test_a_connector_with_a_policy_is_run_at_once_and_then_every_interval(factory: ResourceFactory):
    made = connector(factory, policy=policy())
    assert begun(factory) == 1
    job = finish(factory)
    assert job.connector_id == made.resource_id
    assert list(job.modes) == list(BOTH_PASSES)
    factory.clock.advance(3599)
    assert begun(factory) == 0
    factory.clock.advance(1)
    assert begun(factory) == 1
    assert damage(factory.stores) == []


def test_the_interval_counts_from_the_beginning_of_the_job_before(factory: ResourceFactory):
    connector(factory, policy=policy())
    begun(factory)
    factory.clock.advance(3000)
    finish(factory)
    factory.clock.advance(600)
    assert begun(factory) == 1


def test_a_policy_without_an_interval_has_the_usual_one(factory: ResourceFactory):
    connector(factory, policy=v1.ConnectorPolicy(enabled=True))
    begun(factory)
    finish(factory)
    factory.clock.advance(DEFAULT_INTERVAL.total_seconds() - 1)
    assert begun(factory) == 0
    factory.clock.advance(1)
    assert begun(factory) == 1


def test_no_job_is_made_before_the_policy_begins(factory: ResourceFactory):
    connector(factory, policy=policy(not_before=timestamp(factory.clock.later(5000))))
    assert begun(factory) == 0
    factory.clock.advance(4999)
    assert begun(factory) == 0
    factory.clock.advance(1)
    assert begun(factory) == 1


@pytest.mark.parametrize("how", [None, v1.ConnectorPolicy(), v1.ConnectorPolicy(interval=HOUR)])
def test_a_connector_without_an_enabled_policy_is_not_run(factory: ResourceFactory, how):
    connector(factory, policy=how)
    assert begun(factory) == 0
    assert list(factory.stores.pointers.scan("/schedule/")) == []


def test_a_paused_connector_is_not_run_until_it_is_woken(factory: ResourceFactory):
    made = connector(factory, policy=policy())
    change(factory, made, "state", state=v1.CS_PAUSED)
    assert begun(factory) == 0
    change(factory, made, "state", state=v1.CS_ACTIVE)
    assert begun(factory) == 1


def test_a_policy_that_is_switched_on_off_or_changed_counts_at_once(factory: ResourceFactory):
    made = connector(factory)
    change(factory, made, "policy", policy=policy())
    assert begun(factory) == 1
    finish(factory)
    change(factory, made, "policy.interval", policy=v1.ConnectorPolicy(interval=Duration(seconds=60)))
    assert begun(factory) == 1
    finish(factory)
    change(factory, made, "description", description="nothing to do with it")
    assert begun(factory) == 0
    change(factory, made, "policy.enabled", policy=v1.ConnectorPolicy())
    factory.clock.advance(100_000)
    assert begun(factory) == 0


def test_a_job_under_way_is_waited_for(factory: ResourceFactory):
    connector(factory, policy=policy())
    begun(factory)
    factory.clock.advance(7200)
    assert begun(factory) == 0
    finish(factory)
    assert begun(factory) == 1


def test_a_deleted_connector_leaves_no_turn(factory: ResourceFactory):
    made = connector(factory, policy=policy())
    connectors.delete(factory.home, v1.DeleteConnectorRequest(connector_id=made.resource_id), secrets=None)  # type: ignore[arg-type]
    assert list(factory.stores.pointers.scan("/schedule/")) == []
    assert begun(factory) == 0


def test_another_server_that_was_faster_has_begun_the_only_job(factory: ResourceFactory, monkeypatch):
    """The other one begins the job, and even ends it, between this one's look and its write."""
    made = connector(factory, policy=policy())
    real = jobs.enqueue_unless_active

    def overtaken(realm: Realm, found: Any, **how: Any) -> v1.Job | None:
        monkeypatch.setattr(jobs, "enqueue_unless_active", real)
        assert begun(factory) == 1
        finish(factory)
        return real(realm, found, **how)

    monkeypatch.setattr(jobs, "enqueue_unless_active", overtaken)
    assert begun(factory) == 0
    request = v1.ListReconcileJobsRequest(connector_id=made.resource_id)
    assert len(jobs.list_(factory.home, request).jobs) == 1


def test_many_servers_make_one_job_of_a_turn(factory: ResourceFactory):
    for number in range(5):
        connector(factory, name=f"c{number}", policy=policy())
    ready, made = threading.Barrier(6), list[int]()

    def look() -> None:
        ready.wait()
        made.append(begun(factory))

    servers = [threading.Thread(target=look) for _ in range(6)]
    for each in servers:
        each.start()
    for each in servers:
        each.join()
    assert sum(made) == 5


def test_a_turn_without_a_connector_is_removed(factory: ResourceFactory):
    key = keys.schedule("a1", "none")
    factory.stores.pointers.compare_and_set(key, "2000-01-01T00:00:00+00:00 2000-01-01T00:00:00+00:00", expect=0)
    assert begun(factory) == 0
    assert factory.stores.pointers.get(key) is None


def test_a_turn_that_cannot_be_read_is_now(factory: ResourceFactory):
    made = connector(factory, policy=policy(not_before=timestamp(factory.clock.later(5000))))
    pointer = factory.stores.pointers.get(keys.schedule("a1", made.resource_id.id))
    assert pointer is not None
    factory.stores.pointers.compare_and_set(pointer.key, "nonsense", expect=pointer.version)
    assert begun(factory) == 1


def test_what_is_wrong_with_one_connector_does_not_keep_others_waiting(factory: ResourceFactory):
    lost, made = connector(factory, name="a", policy=policy()), connector(factory, name="b", policy=policy())
    pointer = factory.stores.pointers.get(keys.connector("a1", lost.resource_id.id))
    assert pointer is not None
    factory.stores.blobs.delete(pointer.blob_uri)
    (job,) = JobSchedule(factory.stores, factory.realm).begin_due()
    assert job.connector_id == made.resource_id


def test_a_clock_that_was_wrong_once_does_not_stop_a_connector(factory: ResourceFactory):
    connector(factory, policy=policy())
    factory.clock.advance(timedelta(days=4000).total_seconds())
    begun(factory)
    finish(factory)
    factory.clock.advance(-timedelta(days=4000).total_seconds())
    assert begun(factory) == 1
    finish(factory)
    assert begun(factory) == 0
    assert MAX_CLOCK_SKEW < DEFAULT_INTERVAL


def test_gc_leaves_turns_alone(factory: ResourceFactory):
    connector(factory, policy=policy())
    assert gc.sweep_pointers(factory.stores).removed == ()
    assert begun(factory) == 1


def test_a_look_costs_one_walk_while_nothing_is_due(factory: ResourceFactory, calls):
    for number in range(20):
        connector(factory, name=f"c{number}", policy=policy(not_before=timestamp(factory.clock.later(5000))))
    before = calls.total
    begun(factory)
    assert calls.total - before <= 2
