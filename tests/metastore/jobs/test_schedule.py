"""Scheduled connectors: when they run, and that one server runs each."""

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
from skiway.metastore.jobs import api as jobs_api
from skiway.metastore.jobs.api import BOTH_PASSES, DEFAULT_INTERVAL, MAX_CLOCK_SKEW, JobSchedule
from skiway.metastore.jobs.attempts import Progress
from skiway.metastore.records import keys
from skiway.metastore.records.realm import Realm, timestamp
from skiway.model import v1

HOUR = Duration(seconds=3600)


def policy(**more: Any) -> v1.ConnectorPolicy:
    return v1.ConnectorPolicy(**{"enabled": True, "interval": HOUR, **more})


def begin_due_jobs(factory: ResourceFactory) -> int:
    """Begin all due jobs and return their number."""
    return len(JobSchedule(factory.stores, factory.realm).begin_due())


def finish_job(factory: ResourceFactory) -> v1.Job:
    """Run the queued job to completion."""
    lease = queue(factory).lease("w")
    assert lease is not None
    return queue(factory).complete(lease, Progress(1, 1))


def update_connector(factory: ResourceFactory, of: v1.Connector, *paths: str, **spec: Any) -> v1.Connector:
    request = v1.UpdateConnectorRequest(
        connector_id=of.resource_id, spec=v1.ConnectorSpec(**spec), update_mask=mask(*paths)
    )
    return connectors.calls(None).update(factory.home, request).connector  # type: ignore[arg-type]


def test_connector_with_a_policy_runs_at_once_and_then_every_interval(factory: ResourceFactory):
    created = connector(factory, policy=policy())
    assert begin_due_jobs(factory) == 1
    job = finish_job(factory)
    assert job.connector_id == created.resource_id
    assert list(job.modes) == list(BOTH_PASSES)
    factory.clock.advance(3599)
    assert begin_due_jobs(factory) == 0
    factory.clock.advance(1)
    assert begin_due_jobs(factory) == 1
    assert damage(factory.stores) == []


def test_interval_is_measured_from_the_start_of_the_previous_job(factory: ResourceFactory):
    connector(factory, policy=policy())
    begin_due_jobs(factory)
    factory.clock.advance(3000)
    finish_job(factory)
    factory.clock.advance(600)
    assert begin_due_jobs(factory) == 1


def test_policy_without_an_interval_uses_the_default(factory: ResourceFactory):
    connector(factory, policy=v1.ConnectorPolicy(enabled=True))
    begin_due_jobs(factory)
    finish_job(factory)
    factory.clock.advance(DEFAULT_INTERVAL.total_seconds() - 1)
    assert begin_due_jobs(factory) == 0
    factory.clock.advance(1)
    assert begin_due_jobs(factory) == 1


def test_no_job_is_created_before_the_policy_starts(factory: ResourceFactory):
    connector(factory, policy=policy(not_before=timestamp(factory.clock.later(5000))))
    assert begin_due_jobs(factory) == 0
    factory.clock.advance(4999)
    assert begin_due_jobs(factory) == 0
    factory.clock.advance(1)
    assert begin_due_jobs(factory) == 1


@pytest.mark.parametrize("how", [None, v1.ConnectorPolicy(), v1.ConnectorPolicy(interval=HOUR)])
def test_connector_without_an_enabled_policy_does_not_run(factory: ResourceFactory, how):
    connector(factory, policy=how)
    assert begin_due_jobs(factory) == 0
    assert list(factory.stores.pointers.scan("/schedule/")) == []


def test_paused_connector_does_not_run_until_it_is_resumed(factory: ResourceFactory):
    created = connector(factory, policy=policy())
    update_connector(factory, created, "state", state=v1.CS_PAUSED)
    assert begin_due_jobs(factory) == 0
    update_connector(factory, created, "state", state=v1.CS_ACTIVE)
    assert begin_due_jobs(factory) == 1


def test_policy_change_takes_effect_at_once(factory: ResourceFactory):
    created = connector(factory)
    update_connector(factory, created, "policy", policy=policy())
    assert begin_due_jobs(factory) == 1
    finish_job(factory)
    update_connector(factory, created, "policy.interval", policy=v1.ConnectorPolicy(interval=Duration(seconds=60)))
    assert begin_due_jobs(factory) == 1
    finish_job(factory)
    update_connector(factory, created, "description", description="nothing to do with it")
    assert begin_due_jobs(factory) == 0
    update_connector(factory, created, "policy.enabled", policy=v1.ConnectorPolicy())
    factory.clock.advance(100_000)
    assert begin_due_jobs(factory) == 0


def test_no_job_is_created_while_another_is_running(factory: ResourceFactory):
    connector(factory, policy=policy())
    begin_due_jobs(factory)
    factory.clock.advance(7200)
    assert begin_due_jobs(factory) == 0
    finish_job(factory)
    assert begin_due_jobs(factory) == 1


def test_deleting_a_connector_removes_it_from_the_schedule(factory: ResourceFactory):
    created = connector(factory, policy=policy())
    connectors.calls(None).delete(factory.home, v1.DeleteConnectorRequest(connector_id=created.resource_id))  # type: ignore[arg-type]
    assert list(factory.stores.pointers.scan("/schedule/")) == []
    assert begin_due_jobs(factory) == 0


def test_only_the_faster_of_two_servers_creates_the_job(factory: ResourceFactory, monkeypatch):
    """The other server begins and even finishes the job between this server's read and its write."""
    created = connector(factory, policy=policy())
    original = jobs.enqueue_unless_active

    def race(realm: Realm, found: Any, **how: Any) -> v1.Job | None:
        monkeypatch.setattr(jobs_api, "enqueue_unless_active", original)
        assert begin_due_jobs(factory) == 1
        finish_job(factory)
        return original(realm, found, **how)

    monkeypatch.setattr(jobs_api, "enqueue_unless_active", race)
    assert begin_due_jobs(factory) == 0
    request = v1.ListReconcileJobsRequest(connector_id=created.resource_id)
    assert len(jobs.list_(factory.home, request).jobs) == 1


def test_concurrent_servers_create_one_job_per_due_connector(factory: ResourceFactory):
    for number in range(5):
        connector(factory, name=f"c{number}", policy=policy())
    ready, created = threading.Barrier(6), list[int]()

    def schedule() -> None:
        ready.wait()
        created.append(begin_due_jobs(factory))

    servers = [threading.Thread(target=schedule) for _ in range(6)]
    for each in servers:
        each.start()
    for each in servers:
        each.join()
    assert sum(created) == 5


def test_schedule_entry_without_a_connector_is_deleted(factory: ResourceFactory):
    key = keys.schedule("a1", "none")
    factory.stores.pointers.compare_and_set(key, "2000-01-01T00:00:00+00:00 2000-01-01T00:00:00+00:00", expect=0)
    assert begin_due_jobs(factory) == 0
    assert factory.stores.pointers.get(key) is None


def test_unreadable_schedule_entry_is_due_now(factory: ResourceFactory):
    created = connector(factory, policy=policy(not_before=timestamp(factory.clock.later(5000))))
    pointer = factory.stores.pointers.get(keys.schedule("a1", created.resource_id.id))
    assert pointer is not None
    factory.stores.pointers.compare_and_set(pointer.key, "nonsense", expect=pointer.version)
    assert begin_due_jobs(factory) == 1


def test_broken_connector_does_not_block_others(factory: ResourceFactory):
    lost, created = connector(factory, name="a", policy=policy()), connector(factory, name="b", policy=policy())
    pointer = factory.stores.pointers.get(keys.connector("a1", lost.resource_id.id))
    assert pointer is not None
    factory.stores.blobs.delete(pointer.blob_uri)
    (job,) = JobSchedule(factory.stores, factory.realm).begin_due()
    assert job.connector_id == created.resource_id


def test_connector_recovers_from_a_wrong_clock(factory: ResourceFactory):
    connector(factory, policy=policy())
    factory.clock.advance(timedelta(days=4000).total_seconds())
    begin_due_jobs(factory)
    finish_job(factory)
    factory.clock.advance(-timedelta(days=4000).total_seconds())
    assert begin_due_jobs(factory) == 1
    finish_job(factory)
    assert begin_due_jobs(factory) == 0
    assert MAX_CLOCK_SKEW < DEFAULT_INTERVAL


def test_gc_keeps_schedule_entries(factory: ResourceFactory):
    connector(factory, policy=policy())
    assert gc.sweep_pointers(factory.stores).removed == ()
    assert begin_due_jobs(factory) == 1


def test_check_costs_one_scan_while_nothing_is_due(factory: ResourceFactory, calls):
    for number in range(20):
        connector(factory, name=f"c{number}", policy=policy(not_before=timestamp(factory.clock.later(5000))))
    before = calls.total
    begin_due_jobs(factory)
    assert calls.total - before <= 2
