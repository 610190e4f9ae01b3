"""Pipelines as resources, their jobs, and when they run by themselves."""

from __future__ import annotations

from datetime import timedelta

import pytest

from metastore.pipelines.pipeline_lake import DuckQueries, PipelineLake
from metastore.resource_factory import expect_error, mask
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed
from skiway.metastore import Realm, jobs
from skiway.metastore.jobs.queue import JobQueue
from skiway.metastore.pipelines import api
from skiway.metastore.pipelines.api import CHECK_EVERY, PipelineSchedule
from skiway.metastore.pipelines.inputs import PipelineArea, owner_realm
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.security import MemorySecrets
from skiway.spark_jobs.worker import Worker, jobs_of

HEAD = "name: sales\ncatalog: lake\nnamespace: sales\n"
FILES = {"big.sql": "SELECT * FROM orders WHERE price > 2", "bad.sql": "SELECT nonsense FROM orders"}


@pytest.fixture
def ann(lake: PipelineLake) -> Realm:
    """The realm of a caller who may do everything."""
    orders = lake.create()
    lake.append(orders, (1, "eu", 3), (2, "us", 1))
    return owner_realm(lake.lake.home, v1.PipelineOwner(subject="ann", roles=["administrator"]))


def created(realm: Realm, head: str = "", **files: str) -> v1.Pipeline:
    given = {"pipeline.yml": HEAD + head, **(files or FILES)}
    return api.CALLS.create(realm, v1.CreatePipelineRequest(spec=v1.PipelineSpec(files=given))).pipeline


def area(lake: PipelineLake) -> PipelineArea:
    return PipelineArea(Reconciler(MemorySecrets(), warehouse=lake.lake.warehouse))


def schedule(lake: PipelineLake) -> PipelineSchedule:
    return PipelineSchedule(lake.lake.factory.stores, lake.lake.factory.realm, area(lake))


def work(lake: PipelineLake, *, is_allowed: bool = True) -> None:
    """Run the next job."""
    factory = lake.lake.factory
    queries = DuckQueries() if is_allowed else None
    run = jobs_of(factory.realm, Reconciler(MemorySecrets(), warehouse=lake.lake.warehouse), queries)
    assert Worker(JobQueue(factory.stores, clock=factory.clock), run, name="w").work_once()


def job(lake: PipelineLake, job_id: str) -> v1.Job:
    return jobs.get(lake.lake.home, v1.GetReconcileJobRequest(job_id=job_id)).job


def test_a_job_runs_a_pipeline_and_ends_as_partial(lake: PipelineLake, ann: Realm) -> None:
    made = created(ann)
    assert (made.owner.subject, list(made.owner.roles)) == ("ann", [])
    plan = api.plan(ann, v1.PlanPipelineRequest(pipeline_id=made.resource_id), area=area(lake)).tables
    assert [(each.table, each.action, list(each.reads)) for each in plan] == [
        ("sales.bad", "replace", ["sales.orders"]),
        ("sales.big", "replace", ["sales.orders"]),
    ]
    request = v1.StartPipelineRequest(pipeline_id=made.resource_id)
    started = api.start(ann, request).job
    assert api.start(ann, request).job.job_id == started.job_id
    full = api.start(ann, v1.StartPipelineRequest(pipeline_id=made.resource_id, full=True)).job
    assert full.job_id != started.job_id
    work(lake)
    ended = job(lake, started.job_id)
    assert ended.state == v1.JS_PARTIAL
    assert (ended.tables_scanned, ended.tables_changed) == (2, 1)
    assert [each.table for each in ended.table_errors] == ["sales.bad"]
    plan = api.plan(ann, v1.PlanPipelineRequest(pipeline_id=made.resource_id), area=area(lake)).tables
    assert [each.action for each in plan] == ["replace", "keep"]


def test_worker_runs_no_pipelines_unless_the_operator_allows_it(lake: PipelineLake, ann: Realm) -> None:
    started = api.start(ann, v1.StartPipelineRequest(pipeline_id=created(ann).resource_id)).job
    work(lake, is_allowed=False)
    ended = job(lake, started.job_id)
    assert ended.state == v1.JS_FAILED
    assert "pipelines.enabled = true" in ended.message


def test_files_are_replaced_together_and_versions_are_checked(lake: PipelineLake, ann: Realm) -> None:
    made = created(ann)
    bob = owner_realm(lake.lake.home, v1.PipelineOwner(subject="bob", roles=["administrator"]))
    files = {"pipeline.yml": HEAD, "one.sql": "SELECT 1 AS x"}
    request = v1.UpdatePipelineRequest(
        pipeline_id=made.resource_id,
        spec=v1.PipelineSpec(files=files),
        update_mask=mask("files"),
        precondition=v1.Precondition(expected_version=1),
    )
    changed = api.CALLS.update(bob, request)
    assert (dict(changed.pipeline.files), changed.pipeline.owner.subject) == (files, "bob")
    with pytest.raises(PreconditionFailed):
        api.CALLS.update(bob, request)
    request.ClearField("precondition")
    request.spec.files["one.sql"] = "SELECT * FROM one"
    with pytest.raises(InvalidArgument, match=r"table sales\.one reads itself"):
        api.CALLS.update(bob, request)
    found = api.CALLS.get(ann, v1.GetPipelineRequest(display_name="sales")).pipeline
    assert dict(found.files) == files
    api.CALLS.delete(ann, v1.DeletePipelineRequest(pipeline_id=made.resource_id))
    with pytest.raises(NotFound):
        api.CALLS.get(ann, v1.GetPipelineRequest(display_name="sales"))


def test_a_caller_without_a_name_owns_nothing(lake: PipelineLake, ann: Realm) -> None:
    with expect_error(InvalidArgument, "pipeline.owner.missing"):
        created(lake.lake.home)
    assert ann.caller == "ann"


def test_a_pipeline_without_trigger_is_never_due(lake: PipelineLake, ann: Realm) -> None:
    created(ann)
    assert schedule(lake).begin_due() == []


def test_a_schedule_starts_a_run_in_every_interval(lake: PipelineLake, ann: Realm) -> None:
    made = created(ann, "schedule: 1h\n")
    (first,) = schedule(lake).begin_due()
    assert first.pipeline.pipeline_id == made.resource_id
    assert schedule(lake).begin_due() == []
    work(lake)
    lake.lake.factory.clock.advance(timedelta(minutes=59).total_seconds())
    assert schedule(lake).begin_due() == []
    lake.lake.factory.clock.advance(61)
    assert len(schedule(lake).begin_due()) == 1
    api.CALLS.delete(ann, v1.DeletePipelineRequest(pipeline_id=made.resource_id))
    assert lake.lake.factory.stores.pointers.count("/pipeline-schedule/") == 0
    lake.lake.factory.clock.advance(7200)
    assert schedule(lake).begin_due() == []


def test_a_changed_input_starts_a_run_and_a_failed_table_does_not(lake: PipelineLake, ann: Realm) -> None:
    created(ann, "on_change: true\n")
    lake.queries = {"big": FILES["big.sql"]}
    seconds = CHECK_EVERY.total_seconds() + 1

    def begun() -> int:
        lake.lake.factory.clock.advance(seconds)
        return len(schedule(lake).begin_due())

    assert begun() == 1
    work(lake)
    assert [begun() for _ in range(3)] == [0, 0, 0]  # although bad.sql failed
    lake.append(lake.table("orders"), (3, "eu", 9))
    assert begun() == 1
    work(lake)
    assert begun() == 0
    assert lake.rows("big") == [(1, "eu", 3), (3, "eu", 9)]
