"""Connectors that are run by themselves: when, by whom, and when not."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from metastore.mirrors import connector, queue
from metastore.wholeness import damage
from metastore.world import World, mask
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


def begun(world: World) -> int:
    """How many jobs a look begins."""
    return len(JobSchedule(world.stores, world.realm).begin_due())


def finish(world: World) -> v1.Job:
    """Do the job that waits."""
    lease = queue(world).lease("w")
    assert lease is not None
    return queue(world).complete(lease, Progress(1, 1))


def change(world: World, of: v1.Connector, *paths: str, **spec: Any) -> v1.Connector:
    request = v1.UpdateConnectorRequest(
        connector_id=of.resource_id, spec=v1.ConnectorSpec(**spec), update_mask=mask(*paths)
    )
    return connectors.update(world.home, request, secrets=None).connector  # type: ignore[arg-type]


def test_a_connector_with_a_policy_is_run_at_once_and_then_every_interval(world: World):
    made = connector(world, policy=policy())
    assert begun(world) == 1
    job = finish(world)
    assert job.connector_id == made.resource_id
    assert list(job.modes) == list(BOTH_PASSES)
    world.clock.advance(3599)
    assert begun(world) == 0
    world.clock.advance(1)
    assert begun(world) == 1
    assert damage(world.stores) == []


def test_the_interval_counts_from_the_beginning_of_the_job_before(world: World):
    connector(world, policy=policy())
    begun(world)
    world.clock.advance(3000)
    finish(world)
    world.clock.advance(600)
    assert begun(world) == 1


def test_a_policy_without_an_interval_has_the_usual_one(world: World):
    connector(world, policy=v1.ConnectorPolicy(enabled=True))
    begun(world)
    finish(world)
    world.clock.advance(DEFAULT_INTERVAL.total_seconds() - 1)
    assert begun(world) == 0
    world.clock.advance(1)
    assert begun(world) == 1


def test_no_job_is_made_before_the_policy_begins(world: World):
    connector(world, policy=policy(not_before=timestamp(world.clock.later(5000))))
    assert begun(world) == 0
    world.clock.advance(4999)
    assert begun(world) == 0
    world.clock.advance(1)
    assert begun(world) == 1


@pytest.mark.parametrize("how", [None, v1.ConnectorPolicy(), v1.ConnectorPolicy(interval=HOUR)])
def test_a_connector_without_an_enabled_policy_is_not_run(world: World, how):
    connector(world, policy=how)
    assert begun(world) == 0
    assert list(world.stores.pointers.scan("/schedule/")) == []


def test_a_paused_connector_is_not_run_until_it_is_woken(world: World):
    made = connector(world, policy=policy())
    change(world, made, "state", state=v1.CS_PAUSED)
    assert begun(world) == 0
    change(world, made, "state", state=v1.CS_ACTIVE)
    assert begun(world) == 1


def test_a_policy_that_is_switched_on_off_or_changed_counts_at_once(world: World):
    made = connector(world)
    change(world, made, "policy", policy=policy())
    assert begun(world) == 1
    finish(world)
    change(world, made, "policy.interval", policy=v1.ConnectorPolicy(interval=Duration(seconds=60)))
    assert begun(world) == 1
    finish(world)
    change(world, made, "description", description="nothing to do with it")
    assert begun(world) == 0
    change(world, made, "policy.enabled", policy=v1.ConnectorPolicy())
    world.clock.advance(100_000)
    assert begun(world) == 0


def test_a_job_under_way_is_waited_for(world: World):
    connector(world, policy=policy())
    begun(world)
    world.clock.advance(7200)
    assert begun(world) == 0
    finish(world)
    assert begun(world) == 1


def test_a_deleted_connector_leaves_no_turn(world: World):
    made = connector(world, policy=policy())
    connectors.delete(world.home, v1.DeleteConnectorRequest(connector_id=made.resource_id), secrets=None)  # type: ignore[arg-type]
    assert list(world.stores.pointers.scan("/schedule/")) == []
    assert begun(world) == 0


def test_another_server_that_was_faster_has_begun_the_only_job(world: World, monkeypatch):
    """The other one begins the job, and even ends it, between this one's look and its write."""
    made = connector(world, policy=policy())
    real = jobs.enqueue_unless_active

    def overtaken(realm: Realm, found: Any, **how: Any) -> v1.Job | None:
        monkeypatch.setattr(jobs, "enqueue_unless_active", real)
        assert begun(world) == 1
        finish(world)
        return real(realm, found, **how)

    monkeypatch.setattr(jobs, "enqueue_unless_active", overtaken)
    assert begun(world) == 0
    request = v1.ListReconcileJobsRequest(connector_id=made.resource_id)
    assert len(jobs.list_(world.home, request).jobs) == 1


def test_many_servers_make_one_job_of_a_turn(world: World):
    for number in range(5):
        connector(world, name=f"c{number}", policy=policy())
    ready, made = threading.Barrier(6), list[int]()

    def look() -> None:
        ready.wait()
        made.append(begun(world))

    servers = [threading.Thread(target=look) for _ in range(6)]
    for each in servers:
        each.start()
    for each in servers:
        each.join()
    assert sum(made) == 5


def test_a_turn_without_a_connector_is_removed(world: World):
    key = keys.schedule("a1", "none")
    world.stores.pointers.compare_and_set(key, "2000-01-01T00:00:00+00:00 2000-01-01T00:00:00+00:00", expect=0)
    assert begun(world) == 0
    assert world.stores.pointers.get(key) is None


def test_a_turn_that_cannot_be_read_is_now(world: World):
    made = connector(world, policy=policy(not_before=timestamp(world.clock.later(5000))))
    pointer = world.stores.pointers.get(keys.schedule("a1", made.resource_id.id))
    assert pointer is not None
    world.stores.pointers.compare_and_set(pointer.key, "nonsense", expect=pointer.version)
    assert begun(world) == 1


def test_what_is_wrong_with_one_connector_does_not_keep_others_waiting(world: World):
    lost, made = connector(world, name="a", policy=policy()), connector(world, name="b", policy=policy())
    pointer = world.stores.pointers.get(keys.connector("a1", lost.resource_id.id))
    assert pointer is not None
    world.stores.blobs.delete(pointer.blob_uri)
    (job,) = JobSchedule(world.stores, world.realm).begin_due()
    assert job.connector_id == made.resource_id


def test_a_clock_that_was_wrong_once_does_not_stop_a_connector(world: World):
    connector(world, policy=policy())
    world.clock.advance(timedelta(days=4000).total_seconds())
    begun(world)
    finish(world)
    world.clock.advance(-timedelta(days=4000).total_seconds())
    assert begun(world) == 1
    finish(world)
    assert begun(world) == 0
    assert MAX_CLOCK_SKEW < DEFAULT_INTERVAL


def test_gc_leaves_turns_alone(world: World):
    connector(world, policy=policy())
    assert gc.sweep_pointers(world.stores).removed == ()
    assert begun(world) == 1


def test_a_look_costs_one_walk_while_nothing_is_due(world: World, calls):
    for number in range(20):
        connector(world, name=f"c{number}", policy=policy(not_before=timestamp(world.clock.later(5000))))
    before = calls.total
    begun(world)
    assert calls.total - before <= 2
