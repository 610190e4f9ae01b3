"""The calls of `PipelineService`, and the jobs that run pipelines: on request, at intervals, or when an input has changed."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from skiway.errors import InvalidArgument, Unsupported
from skiway.formats.iceberg.metadata import summary_properties
from skiway.foundation import resources
from skiway.metastore import jobs
from skiway.metastore.jobs.api import Schedule, Turn, scheduled
from skiway.metastore.pipelines.branching import run_on_own_branch, tables_on
from skiway.metastore.pipelines.inputs import LakeNames, PipelineArea, bound_views
from skiway.metastore.pipelines.lineage import read_lineage
from skiway.metastore.pipelines.models.statements import Decision, FunctionEngine, QueryEngine
from skiway.metastore.pipelines.projects import Project, in_order, read_project, selected
from skiway.metastore.pipelines.refreshing import PipelineRun
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure, invalid_field
from skiway.metastore.records.kinds import PIPELINE
from skiway.metastore.records.names import exact_name
from skiway.metastore.records.realm import Realm, local_id, resource_id
from skiway.metastore.records.repository import Stored
from skiway.metastore.records.updates import copied
from skiway.metastore.resources.named import NamedCalls
from skiway.model import v1
from skiway.storage import Operation, Pointer, Put

CHECK_EVERY: Final = timedelta(seconds=30)
"""How often the inputs of a pipeline are compared with those of its tables, if it runs when they have changed."""

log = logging.getLogger("skiway.schedule")


def rescheduled(realm: Realm, pipeline: v1.Pipeline) -> list[Operation]:
    """The operations that the batch needs that writes a pipeline. A scheduled one is due at once."""
    now = realm.clock()
    turn = None if _interval(read_project(pipeline.files)) is None else Turn(now, now)
    return scheduled(realm, keys.pipeline_schedule(realm.account_id, pipeline.resource_id.id), turn)


@dataclass(frozen=True, slots=True)
class PipelineSchedule(Schedule):
    """The scheduled pipelines of all accounts of a store.

    If a pipeline runs when an input has changed, its pointer also holds a digest of the inputs for which the last run was enqueued. So
    a table that fails is not tried again and again.
    """

    area: PipelineArea

    noun = "pipeline"
    prefix = keys.PIPELINE_SCHEDULE

    def _begin_now(self, realm: Realm, place: Pointer, own_id: str) -> v1.Job | None:
        found = realm.all(PIPELINE).find(keys.pipeline(realm.account_id, own_id))
        if found is None:
            self.stores.pointers.compare_and_delete(place.key, expect=place.version)
            return None
        project = read_project(found.value.files)
        state = ""
        if project.schedule is None:
            tables = self.area.tables(realm, found.value, project.catalog)
            state = PipelineRun(project, own_id, tables).source_digest()
        now = realm.clock()
        following = Turn(now, now + (_interval(project) or CHECK_EVERY))
        moved = Put(place.key, f"{following.text} {state}", expect=place.version)
        if state and state == _state(place):
            self.stores.pointers.apply([moved])
            return None
        return jobs.enqueue_unless_active(realm, found, also=[moved])


def _state(place: Pointer) -> str:
    """The digest of the inputs when the last run was enqueued; empty before the first."""
    return "".join(place.blob_uri.split(" ")[2:])


def _interval(project: Project) -> timedelta | None:
    """The time between two runs, or between two looks at the inputs; None for a pipeline that is started by hand."""
    return project.schedule or (CHECK_EVERY if project.on_change else None)


NEW: Final = "new"
"""The id of a pipeline that does not exist yet, in a dry run."""


def plan(realm: Realm, request: v1.PlanPipelineRequest, *, area: PipelineArea) -> v1.PlanPipelineResponse:
    """What a run would do now: a dry run, with the rights of the owner."""
    pipeline = v1.Pipeline(resource_id=resource_id(realm, NEW, v1.RK_PIPELINE))
    if request.HasField("pipeline_id"):
        pipeline = copied(_required(realm, request.pipeline_id).value)
    elif not request.HasField("spec"):
        raise failure(InvalidArgument, "field", field="pipeline_id")
    if request.HasField("spec"):
        _set_files(realm, pipeline, request.spec)
    project = read_project(pipeline.files)
    run = _run(realm, area, pipeline, project, full=request.full, select=request.select, branch=request.branch)
    decisions = run.decisions()
    planned = []
    for table in run.ordered():
        decision = decisions[str(table.name)]
        action, reason = ("fail", decision) if isinstance(decision, str) else (decision.action, decision.reason)
        reads = sorted({str(read) for read in table.reads.values()})
        shown = v1.PlannedTable(table=str(table.name), action=action, reason=reason, reads=reads)
        if isinstance(decision, Decision):
            _show_last_refresh(shown, decision)
        planned.append(shown)
    return v1.PlanPipelineResponse(tables=planned)


def start(realm: Realm, request: v1.StartPipelineRequest) -> v1.StartPipelineResponse:
    """Enqueue a run. If an unfinished job does the same, return that one."""
    pipeline = _required(realm, request.pipeline_id).value
    selected(read_project(pipeline.files), request.select, set)  # raises if it names no table
    if request.branch and request.on_branch:
        raise invalid_field("branch", repr(request.branch), "name a branch, or run on a new one with on_branch")
    task = v1.PipelineTask(
        pipeline_id=request.pipeline_id,
        full=request.full,
        select=request.select,
        branch=request.branch,
        on_branch=request.on_branch,
    )
    return v1.StartPipelineResponse(job=jobs.enqueue(realm, v1.Job(pipeline=task)))


def run_job(
    realm: Realm,
    area: PipelineArea,
    task: v1.PipelineTask,
    engine: QueryEngine | None,
    control: Control,
    functions: FunctionEngine | None = None,
    *,
    run_id: str = "",
) -> Outcome:
    """Run a pipeline with the rights of its owner. `control` stops it, and gets its progress.

    `functions` runs its Python functions, if the operator allows them. All attempts of a run have the same `run_id`.
    """
    if engine is None:
        raise Unsupported(
            "this worker runs no pipelines: the operator allows their SQL to run in Spark with pipelines.enabled = true",
            key="pipelines.disabled",
        )
    pipeline = _required(realm, task.pipeline_id).value
    project = read_project(pipeline.files)
    run = _run(realm, area, pipeline, project, full=task.full, select=task.select, branch=task.branch)
    if not task.branch and (task.on_branch or project.on_branch):
        return run_on_own_branch(run, run_id or realm.ids(), engine, control, functions)
    return run.run(engine, control, functions)


def _show_last_refresh(shown: v1.PlannedTable, decision: Decision) -> None:
    """Add what the last refresh of a table did, which its snapshot tells."""
    stored, output = decision.stored, decision.output
    if output is None or stored.snapshot_id is None:
        return
    snapshot = output.metadata.snapshot_by_id(stored.snapshot_id)
    if snapshot is None or snapshot.summary is None:
        return
    is_appended = snapshot.summary.operation.value == "append" and snapshot.parent_snapshot_id is not None
    shown.last_action = "append" if is_appended else "replace"
    shown.refreshed_at.FromMilliseconds(snapshot.timestamp_ms)
    names = {} if stored.value is None else {state.table: name for name, state in stored.value.inputs.items()}
    for column, sources in read_lineage(summary_properties(snapshot)).items():
        for table_id, source_columns in sources.items():
            for each in source_columns:
                shown.columns.add(column=column, source_table=names.get(table_id, table_id), source_column=each)


def _required(realm: Realm, given: v1.ResourceId) -> Stored[v1.Pipeline]:
    pipeline_id = local_id(realm, given, v1.RK_PIPELINE, field="pipeline_id")
    return realm.by_id(PIPELINE, pipeline_id)


def _run(
    realm: Realm,
    area: PipelineArea,
    pipeline: v1.Pipeline,
    project: Project,
    *,
    full: bool,
    select: Sequence[str] = (),
    branch: str = "",
) -> PipelineRun:
    tables = area.tables(realm, pipeline, project.catalog)
    if branch:
        tables = tables_on(tables, branch)
    return PipelineRun(project, pipeline.resource_id.id, tables, full, tuple(select))


def _set_files(realm: Realm, pipeline: v1.Pipeline, spec: v1.PipelineSpec) -> None:
    """Store the files of a pipeline after checking them, and the caller as its owner."""
    project = read_project(spec.files)
    in_order(project)
    subject = None if realm.policies is None else realm.policies.subject
    if subject is None or not subject.name:
        raise InvalidArgument(
            "a pipeline has the rights of the caller who declares it, but this caller has no name: log in first",
            key="pipeline.owner.missing",
        )
    pipeline.display_name = exact_name(project.name, resource="pipeline")
    pipeline.ClearField("files")
    pipeline.files.update(spec.files)
    pipeline.owner.CopyFrom(
        v1.PipelineOwner(
            subject=subject.name,
            roles=sorted(subject.roles),
            groups=sorted(subject.groups),
            claims_json=json.dumps(dict(subject.claims), sort_keys=True),
            views=bound_views(project, LakeNames(realm, project.catalog)),
        )
    )


def _shown(pipeline: v1.Pipeline) -> v1.Pipeline:
    """The pipeline without the roles, groups and claims of its owner."""
    shown = copied(pipeline)
    if pipeline.HasField("owner"):
        shown.owner.CopyFrom(v1.PipelineOwner(subject=pipeline.owner.subject))
    return shown


CALLS: Final = NamedCalls(
    resources.PIPELINE,
    PIPELINE,
    check=lambda realm, pipeline, spec, _: _set_files(realm, pipeline, spec),
    writing=lambda realm, pipeline, *_: nullcontext(rescheduled(realm, pipeline)),
    shown=_shown,
    deleting=lambda realm, own_id: scheduled(realm, keys.pipeline_schedule(realm.account_id, own_id)),
)
"""The calls for pipelines. Callers own what they create or update."""
