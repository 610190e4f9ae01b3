"""The job queue: leases, retries, cancellation and progress."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from metastore.integrity import damage
from metastore.mirrors import RULES, connector, queue
from metastore.resource_factory import ResourceFactory, behavior, expect_error
from skiway.errors import Conflict, InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore import Realm, connectors, events, gc, jobs
from skiway.metastore.jobs import api as jobs_api
from skiway.metastore.jobs import api as jobs_schedule
from skiway.metastore.jobs.attempts import MAX_MESSAGE, MAX_TABLE_ERRORS, Progress
from skiway.metastore.jobs.queue import JobRules, Lease, is_running
from skiway.metastore.jobs.queue import leased as leased_job
from skiway.metastore.records import keys
from skiway.metastore.records.access import AccessDecision
from skiway.metastore.records.journal import added_event
from skiway.metastore.records.kinds import JOB
from skiway.metastore.records.realm import timestamp
from skiway.model import v1


def trigger(factory: ResourceFactory, of: v1.Connector, **more) -> str:
    request = v1.TriggerReconcileRequest(connector_id=of.resource_id, **more)
    return connectors.trigger(factory.home, request).job_id


def job(factory: ResourceFactory, job_id: str) -> v1.Job:
    return jobs.get(factory.home, v1.GetReconcileJobRequest(job_id=job_id)).job


def cancel(factory: ResourceFactory, job_id: str) -> v1.Job:
    return jobs.cancel(factory.home, v1.CancelReconcileJobRequest(job_id=job_id)).job


def listed(factory: ResourceFactory, **request) -> list[str]:
    return [each.job_id for each in jobs.list_(factory.home, v1.ListReconcileJobsRequest(**request)).jobs]


@pytest.fixture
def files(factory) -> v1.Connector:
    return connector(factory)


@pytest.fixture
def leased(factory, files) -> Lease:
    """A job that is leased to worker `w1`."""
    trigger(factory, files)
    lease = queue(factory).lease("w1")
    assert lease is not None
    return lease


def ends(factory: ResourceFactory, realm: Realm | None = None) -> list[tuple[str, ...]]:
    """The events that work has ended: kind, action, object, task and job."""
    found = events.list_(realm or factory.home, v1.ListEventsRequest(limit=1000)).events
    return [
        (each.kind, each.action, each.object_id, each.detail, each.job_id)
        for each in found
        if each.kind in ("sync", "maintenance", "pipeline")
    ]


def test_job_runs_only_under_the_lease_of_its_worker(factory, leased):
    """A killed worker leaves a job that is stored as running, until another worker takes it."""

    def runs(lease: Lease) -> bool:
        return is_running(factory.stores, leased_job(lease.job), clock=factory.clock)

    assert runs(leased)
    factory.clock.advance(RULES.lease_s)
    assert job(factory, leased.job.job_id).state == v1.JS_RUNNING
    assert not runs(leased)
    queue(factory).reclaim()
    factory.clock.advance(RULES.max_backoff_s)
    second = queue(factory).lease("w2")
    assert (runs(leased), runs(second)) == (False, True)
    queue(factory).complete(second, Progress())
    assert not runs(second)


@pytest.mark.parametrize(
    ("failures", "state"), [({}, "succeeded"), ({"a": "x"}, "partial"), ({"a": "x", "b": "y"}, "failed")]
)
def test_end_of_a_sync_is_an_event(factory, files, leased, failures, state):
    queue(factory).progress(leased, Progress(tables_scanned=2))
    assert ends(factory) == []
    queue(factory).complete(leased, Progress(tables_scanned=2, failures=failures))
    assert ends(factory) == [("sync", state, files.resource_id.id, "", leased.job.job_id)]


def test_cancelled_sync_is_an_event_and_a_retried_one_is_not(factory, files, leased):
    queue(factory).fail(leased, "down")
    assert ends(factory) == []
    cancel(factory, leased.job.job_id)
    cancel(factory, leased.job.job_id)
    assert [each[1] for each in ends(factory)] == ["cancelled"]


def test_sync_that_lost_its_last_worker_is_an_event(factory, files):
    trigger(factory, files)
    while job(factory, listed(factory)[0]).state != v1.JS_FAILED:
        assert ends(factory) == []
        queue(factory).lease("w")
        factory.clock.advance(10_000)
    assert [each[1] for each in ends(factory)] == ["failed"]


def test_end_of_maintenance_is_an_event_of_the_table(factory):
    table = factory.table()
    other = v1.Job(
        account_id="a1",
        job_id="m1",
        table_id=table.resource_id,
        maintenance=v1.MaintenanceTask(expire=v1.ExpireTask()),
        state=v1.JS_QUEUED,
        created_at=factory.home.now(),
        next_attempt_at=factory.home.now(),
    )
    factory.home.all(JOB).create(other)
    queue(factory).complete(queue(factory).lease("w"), Progress())
    assert ends(factory) == [("maintenance", "succeeded", table.resource_id.id, "expire", "m1")]


@pytest.mark.parametrize("state", ["failed", "succeeded"])
def test_end_of_a_pipeline_run_is_an_event_of_the_pipeline(factory, state):
    run = v1.Job(
        account_id="a1",
        job_id="p1",
        pipeline=v1.PipelineTask(pipeline_id=v1.ResourceId(account_id="a1", id="sales")),
        state=v1.JS_QUEUED,
        created_at=factory.home.now(),
        next_attempt_at=factory.home.now(),
    )
    factory.home.all(JOB).create(run)
    lease = queue(factory).lease("w")
    if state == "failed":
        queue(factory).fail(lease, "the owner is gone", retry=False)
    else:
        queue(factory).complete(lease, Progress())
    assert ends(factory) == [("pipeline", state, "sales", "", "p1")]


def test_callers_see_the_end_of_what_they_may_see(factory, files, leased):
    queue(factory).complete(leased, Progress())
    table = factory.table()
    event = v1.Event(kind="maintenance", action="succeeded", object_id=table.resource_id.id)
    factory.stores.pointers.apply([added_event(factory.home.stores, "a1", event)])

    def seen(*permissions: str) -> list[str]:
        access = AccessDecision(lambda: factory.stores, "a1", allows=lambda each: each in permissions)
        return [each[0] for each in ends(factory, replace(factory.home, access=access))]

    assert seen() == []
    assert seen("connector.manage") == ["sync"]
    assert seen("table.read") == ["maintenance"]


def test_new_job_is_queued_and_runs_both_passes(factory, files):
    found = job(factory, trigger(factory, files, full_rescan=True))
    assert (found.state, found.attempt, found.lease_epoch) == (v1.JS_QUEUED, 0, 0)
    assert list(found.modes) == [v1.CAP_METADATA_ONLY_CORE, v1.CAP_STATS_ONLY_ASYNC]
    assert found.full_rescan
    assert found.connector_id == files.resource_id
    assert damage(factory.stores) == []


@behavior(73)
def test_trigger_returns_an_unfinished_identical_job(factory, files):
    paths = [v1.NamespacePath(segments=["a"]), v1.NamespacePath(segments=["b", "c"])]
    first = trigger(factory, files, destination_namespace_paths=paths, destination_table_columns=["x", "#7"])
    same = trigger(
        factory, files, destination_namespace_paths=[*reversed(paths), paths[0]], destination_table_columns=["#7", "x"]
    )
    assert same == first
    lease = queue(factory).lease("w")
    assert trigger(factory, files, destination_namespace_paths=paths, destination_table_columns=["x", "#7"]) == first
    queue(factory).complete(lease, Progress())
    again = trigger(factory, files, destination_namespace_paths=paths, destination_table_columns=["x", "#7"])
    assert again != first


@behavior(73)
def test_different_scope_kind_or_connector_creates_a_separate_job(factory, files):
    other = connector(factory, "others")
    found = {
        trigger(factory, files),
        trigger(factory, other),
        trigger(factory, files, full_rescan=True),
        trigger(factory, files, destination_table_display_name="t"),
        trigger(factory, files, destination_namespace_paths=[v1.NamespacePath(segments=["a.b"])]),
        trigger(factory, files, destination_namespace_paths=[v1.NamespacePath(segments=["a", "b"])]),
        jobs.enqueue(factory.home, v1.Job(connector_id=files.resource_id, modes=[v1.CAP_METADATA_ONLY_CORE])).job_id,
    }
    assert len(found) == 7


@behavior(74)
def test_paused_missing_or_foreign_connector_gets_no_job(factory, files):
    request = v1.UpdateConnectorRequest(
        connector_id=files.resource_id, spec=v1.ConnectorSpec(state=v1.CS_PAUSED), update_mask={"paths": ["state"]}
    )
    connectors.calls(None).update(factory.home, request)
    with expect_error(PreconditionFailed, "connector.not.active", name="files", state="paused"):
        trigger(factory, files)
    with expect_error(NotFound, "connector"):
        connectors.trigger(
            factory.home, v1.TriggerReconcileRequest(connector_id=v1.ResourceId(id="gone", kind=v1.RK_CONNECTOR))
        )
    factory.account("a2")
    with expect_error(NotFound, "connector"):
        connectors.trigger(factory.realm("a2"), v1.TriggerReconcileRequest(connector_id=files.resource_id))
    assert listed(factory) == []


@behavior(74)
def test_connector_deleted_during_enqueue_is_not_found(factory, files, monkeypatch):
    original = jobs_api._same

    def delete_connector_first(realm, new):
        pointer = factory.stores.pointers.get(keys.connector("a1", files.resource_id.id))
        if pointer is not None:
            request = v1.DeleteConnectorRequest(connector_id=files.resource_id)
            connectors.calls(None).delete(factory.home, request)
        return original(realm, new)

    monkeypatch.setattr(jobs_api, "_same", delete_connector_first)
    with expect_error(NotFound, "connector"):
        trigger(factory, files)
    assert listed(factory) == []


@pytest.mark.parametrize("column", ["#", "#x", " "])
def test_malformed_column_is_rejected(factory, files, column):
    with expect_error(InvalidArgument, "field.invalid", field="destination_table_columns"):
        trigger(factory, files, destination_table_columns=[column])


@behavior(73)
def test_jobs_are_leased_in_the_order_they_are_due(factory, files):
    def enqueue(name: str, seconds: float) -> str:
        due_at = timestamp(factory.clock() + timedelta(seconds=seconds))
        work = v1.Job(connector_id=files.resource_id, scope=v1.JobScope(table=name), next_attempt_at=due_at)
        return jobs.enqueue(factory.home, work).job_id

    third, first, later = enqueue("a", -1), enqueue("b", -3), enqueue("d", 60)
    second = enqueue("c", -2)
    job_queue = queue(factory, replace(RULES, lease_s=1000.0))
    given = [job_queue.lease("w").job.job_id for _ in range(3)]
    assert given == [first, second, third]
    factory.clock.advance(59.999)
    assert job_queue.lease("w") is None
    factory.clock.advance(0.001)
    assert job_queue.lease("w").job.job_id == later


def test_worker_gets_jobs_of_all_accounts(factory, files):
    factory.account("a2")
    elsewhere = factory.realm("a2")
    created = v1.Connector(
        resource_id=v1.ResourceId(account_id="a2", id="c", kind=v1.RK_CONNECTOR), display_name="x", state=v1.CS_ACTIVE
    )
    elsewhere.all(jobs_schedule.CONNECTOR).create(created)  # type: ignore[attr-defined]
    trigger(factory, files)
    jobs.enqueue(elsewhere, v1.Job(connector_id=created.resource_id))
    given = {queue(factory).lease("w").job.account_id for _ in range(2)}
    assert given == {"a1", "a2"}


@behavior(73)
def test_job_is_leased_to_one_worker_at_a_time(factory, leased):
    assert (leased.job.state, leased.epoch, leased.job.lease_owner) == (v1.JS_RUNNING, 1, "w1")
    assert leased.expires_at == factory.clock.later(RULES.lease_s)
    assert queue(factory).lease("w2") is None


@behavior(73)
def test_expired_lease_passes_to_another_worker_and_the_old_one_is_rejected(factory, leased):
    job_queue = queue(factory)
    factory.clock.advance(RULES.lease_s)
    assert job_queue.lease("w2") is None, "an expired lease counts as a failure, so the job waits before it is retried"
    assert "w1 did not renew its lease" in job(factory, leased.job.job_id).message
    factory.clock.advance(RULES.backoff_s(1))
    second = job_queue.lease("w2")
    assert (second.epoch, second.job.attempt, second.job.lease_owner) == (2, 2, "w2")
    for write in (
        lambda: job_queue.renew(leased),
        lambda: job_queue.progress(leased, Progress(tables_scanned=99)),
        lambda: job_queue.complete(leased, Progress()),
        lambda: job_queue.fail(leased, "x"),
        lambda: job_queue.cancelled(leased),
        lambda: job_queue.release(leased),
    ):
        with expect_error(Conflict, "job.lease.lost", job_id=leased.job.job_id, worker="w1", epoch="1"):
            write()
    assert job(factory, leased.job.job_id) == second.job
    assert damage(factory.stores) == []


def test_expired_lease_is_not_renewed_even_before_it_is_reclaimed(factory, leased):
    factory.clock.advance(RULES.lease_s)
    with expect_error(Conflict, "job.lease.lost"):
        queue(factory).renew(leased)


def test_renewed_lease_lasts_from_now(factory, leased):
    job_queue = queue(factory)
    for _ in range(5):
        factory.clock.advance(RULES.lease_s - 1)
        leased = job_queue.renew(leased)
        assert leased.expires_at == factory.clock.later(RULES.lease_s)
        assert job_queue.lease("w2") is None
    assert leased.epoch == 1


def test_progress_is_recorded_and_renews_the_lease(factory, leased):
    factory.clock.advance(9)
    lease = queue(factory).progress(leased, Progress(3, 2, {"t": "no such file"}, message="half way"))
    assert lease.expires_at == factory.clock.later(RULES.lease_s)
    found = job(factory, leased.job.job_id)
    assert (found.tables_scanned, found.tables_changed, found.errors, found.message) == (3, 2, 1, "half way")
    assert [(each.table, each.message) for each in found.table_errors] == [("t", "no such file")]


def test_all_table_errors_are_counted_and_a_limited_number_is_stored(factory, leased):
    failures = {f"t{number}": "x" * 10_000 + "!" for number in range(MAX_TABLE_ERRORS + 50)}
    done = queue(factory).complete(leased, Progress(failures=failures))
    assert (done.errors, len(done.table_errors)) == (150, MAX_TABLE_ERRORS)
    assert done.table_errors[0].table == "t0"
    assert len(done.table_errors[0].message) == MAX_MESSAGE
    assert done.table_errors[0].message.endswith("x!")


def test_completed_job_is_finished(factory, leased):
    factory.clock.advance(1)
    done = queue(factory).complete(leased, Progress(5, 4, message="fine"))
    assert done == job(factory, done.job_id)
    assert (done.state, done.message, done.lease_owner) == (v1.JS_SUCCEEDED, "fine", "")
    assert done.finished_at.ToDatetime() - done.started_at.ToDatetime() == timedelta(seconds=1)
    assert queue(factory).lease("w2") is None
    assert factory.stores.pointers.count("/queue/") == 0
    assert damage(factory.stores) == []


@behavior(73)
def test_failed_job_is_retried_with_growing_delays_up_to_a_limit(factory, leased):
    job_queue = queue(factory)
    lease: Lease | None = leased
    for delay in (1.0, 2.0):
        failed = job_queue.fail(lease, "no luck")
        assert (failed.state, failed.message) == (v1.JS_QUEUED, "no luck")
        assert failed.next_attempt_at.ToDatetime() == factory.clock.later(delay).replace(tzinfo=None)
        factory.clock.advance(delay - 0.001)
        assert job_queue.lease("w") is None
        factory.clock.advance(0.001)
        lease = job_queue.lease("w")
    failed_job = job_queue.fail(lease, "still no luck")
    assert (failed_job.state, failed_job.attempt, failed_job.message) == (v1.JS_FAILED, 3, "still no luck")
    assert factory.stores.pointers.count("/queue/") == 0
    assert trigger(factory, v1.Connector(resource_id=failed_job.connector_id)) != failed_job.job_id


@behavior(73)
def test_delays_double_up_to_a_maximum():
    rules = JobRules()
    assert [rules.backoff_s(attempt) for attempt in (1, 2, 3, 6)] == [0.5, 1.0, 2.0, 16.0]
    assert {rules.backoff_s(attempt) for attempt in (7, 8, 100, 10**6)} == {30.0}


def test_jitter_is_a_fraction_of_the_delay(factory, leased):
    job_queue = replace(queue(factory), jitter=lambda: 0.25)
    failed = job_queue.fail(leased, "x")
    assert failed.next_attempt_at.ToDatetime() == factory.clock.later(0.25).replace(tzinfo=None)


def test_permanent_failure_is_not_retried(factory, leased):
    assert queue(factory).fail(leased, "connector is gone", retry=False).state == v1.JS_FAILED


def test_job_that_crashes_its_workers_eventually_fails(factory, leased):
    job_queue = queue(factory)
    for _ in range(2):
        factory.clock.advance(RULES.lease_s)
        job_queue.reclaim()
        factory.clock.advance(RULES.max_backoff_s)
        assert job_queue.lease("w") is not None
    factory.clock.advance(RULES.lease_s)
    assert job_queue.reclaim() == 1
    assert job(factory, leased.job.job_id).state == v1.JS_FAILED


def test_new_attempt_starts_with_empty_progress(factory, leased):
    job_queue = queue(factory)
    job_queue.fail(leased, "x", done=Progress(3, 2, {"t": "x"}))
    factory.clock.advance(1)
    again = job_queue.lease("w").job
    assert (again.tables_scanned, again.tables_changed, again.errors, len(again.table_errors)) == (0, 0, 0, 0)


def test_released_job_can_be_leased_at_once_and_does_not_count_as_an_attempt(factory, leased):
    job_queue = queue(factory)
    assert job_queue.release(leased).attempt == 0
    second = job_queue.lease("w2")
    assert (second.job.attempt, second.epoch) == (1, 2)


def test_queued_job_is_cancelled_at_once(factory, files):
    cancelled = cancel(factory, trigger(factory, files))
    assert cancelled.state == v1.JS_CANCELLED
    assert cancelled.HasField("finished_at")
    assert queue(factory).lease("w") is None
    assert cancel(factory, cancelled.job_id) == cancelled
    assert trigger(factory, files) != cancelled.job_id


@pytest.mark.parametrize("call", ["renew", "progress"])
def test_running_worker_learns_that_its_job_is_cancelled(factory, leased, call):
    job_queue = queue(factory)
    cancelled = cancel(factory, leased.job.job_id)
    assert (cancelled.state, cancelled.cancel_requested) == (v1.JS_RUNNING, True)
    assert not leased.cancel_requested
    renewed = job_queue.renew(leased) if call == "renew" else job_queue.progress(leased, Progress())
    assert renewed.cancel_requested
    assert job_queue.cancelled(renewed).state == v1.JS_CANCELLED


@pytest.mark.parametrize("method", ["fail", "release", "silence"])
def test_cancelled_job_is_not_retried(factory, leased, method):
    job_queue = queue(factory)
    cancel(factory, leased.job.job_id)
    if method == "fail":
        job_queue.fail(leased, "x")
    elif method == "release":
        job_queue.release(leased)
    else:
        factory.clock.advance(RULES.lease_s)
        job_queue.reclaim()
    assert job(factory, leased.job.job_id).state == v1.JS_CANCELLED


def test_job_that_completes_before_it_learns_of_the_cancellation_succeeds(factory, leased):
    cancel(factory, leased.job.job_id)
    assert queue(factory).complete(leased, Progress()).state == v1.JS_SUCCEEDED


def test_jobs_are_listed_newest_first_by_connector_and_state(factory, files):
    other = connector(factory, "others")
    created = []
    for name in "abc":
        factory.clock.advance(1)
        created.append(trigger(factory, files, destination_table_display_name=name))
    factory.clock.advance(1)
    foreign = trigger(factory, other)
    queue(factory).lease("w")
    assert listed(factory) == [foreign, *reversed(created)]
    assert listed(factory, connector_id=files.resource_id) == list(reversed(created))
    assert listed(factory, state=v1.JS_RUNNING) == [created[0]]
    assert listed(factory, connector_id=files.resource_id, state=v1.JS_QUEUED) == [created[2], created[1]]
    assert listed(factory, connector_id=other.resource_id, state=v1.JS_RUNNING) == []
    page = jobs.list_(factory.home, v1.ListReconcileJobsRequest(page=v1.PageRequest(page_size=3)))
    assert ([each.job_id for each in page.jobs], page.page.total_size) == ([foreign, created[2], created[1]], 4)
    token = v1.PageRequest(page_size=3, page_token=page.page.next_page_token)
    assert listed(factory, page=token) == [created[0]]


def test_job_of_another_account_is_not_found(factory, files):
    factory.account("a2")
    job_id = trigger(factory, files)
    for call in (
        lambda realm: jobs.get(realm, v1.GetReconcileJobRequest(job_id=job_id)),
        lambda realm: jobs.get_log(realm, v1.GetReconcileJobLogRequest(job_id=job_id)),
        lambda realm: jobs.cancel(realm, v1.CancelReconcileJobRequest(job_id=job_id)),
    ):
        with expect_error(NotFound, "job", id=job_id):
            call(factory.realm("a2"))
    with expect_error(InvalidArgument, "field", field="job_id"):
        jobs.get(factory.home, v1.GetReconcileJobRequest(job_id=" "))


def test_deleting_a_connector_deletes_its_jobs(factory, files):
    running, waiting = trigger(factory, files), trigger(factory, files, full_rescan=True)
    lease = queue(factory).lease("w")
    connectors.calls(None).delete(factory.home, v1.DeleteConnectorRequest(connector_id=files.resource_id))
    states = {lease.job.job_id: v1.JS_RUNNING, ({running, waiting} - {lease.job.job_id}).pop(): v1.JS_CANCELLED}
    assert {each: job(factory, each).state for each in states} == states
    assert queue(factory).renew(lease).cancel_requested


def test_unreadable_job_does_not_block_others(factory, files):
    lost = trigger(factory, files)
    factory.clock.advance(1)
    good = trigger(factory, files, full_rescan=True)
    factory.stores.blobs.delete(factory.stores.pointers.get(keys.job("a1", lost)).blob_uri)
    assert queue(factory).lease("w").job.job_id == good
    assert keys.job("a1", lost) in gc.sweep_pointers(factory.stores).damaged


def test_cost_of_leasing_and_enqueueing_does_not_depend_on_the_number_of_jobs(factory, files, calls):
    def cost(act) -> int:
        before = calls.total
        act()
        return calls.total - before

    def enqueue(number: int) -> None:
        trigger(factory, files, destination_table_display_name=f"t{number}")

    enqueue(0)
    one = cost(lambda: queue(factory).lease("w")), cost(lambda: enqueue(1))
    for number in range(2, 60):
        enqueue(number)
        factory.clock.advance(0.001)
    many = cost(lambda: queue(factory).lease("w")), cost(lambda: enqueue(60))
    assert many == one


@behavior(77)
def test_old_finished_jobs_are_deleted_with_all_their_pointers(factory, files, leased):
    queue(factory).complete(leased, Progress())
    factory.clock.advance(7 * 24 * 3600 - 60)
    unrelated = trigger(factory, files, full_rescan=True)
    assert gc.sweep_jobs(factory.stores, clock=factory.clock).removed == ()
    factory.clock.advance(61)
    removed = gc.sweep_jobs(factory.stores, clock=factory.clock).removed
    assert removed == (keys.job("a1", leased.job.job_id),)
    assert listed(factory) == [unrelated]
    assert damage(factory.stores) == []
    assert gc.sweep_jobs(factory.stores, clock=factory.clock).removed == ()


@behavior(76)
def test_queue_entry_without_a_job_is_deleted(factory, files):
    job_id = trigger(factory, files)
    factory.stores.pointers.compare_and_delete(keys.job("a1", job_id), expect=1)
    assert queue(factory).lease("w") is None
    removed = gc.sweep_pointers(factory.stores).removed
    assert len(removed) == 6
    assert factory.stores.pointers.count("/queue/") == 0
