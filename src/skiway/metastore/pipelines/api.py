"""The calls of `PipelineService`, and the jobs that run pipelines.

Whoever writes the files of a pipeline becomes its owner, and its runs have the rights of the owner.
"""

from __future__ import annotations

import json
from typing import Final

from skiway.errors import InvalidArgument, Unsupported
from skiway.formats.iceberg.snapshots import summary_properties
from skiway.metastore import jobs
from skiway.metastore.pipelines.column_lineage import read_lineage
from skiway.metastore.pipelines.graph import in_order
from skiway.metastore.pipelines.inputs import LakeNames, PipelineArea
from skiway.metastore.pipelines.projects import Project, read_project
from skiway.metastore.pipelines.refreshing import Decision, FunctionEngine, PipelineRun, QueryEngine
from skiway.metastore.pipelines.schedule import rescheduled, unscheduled
from skiway.metastore.pipelines.views import bound_views
from skiway.metastore.reconcile.outcomes import Control, Outcome
from skiway.metastore.records import keys, updates
from skiway.metastore.records.errors import failure
from skiway.metastore.records.idempotency import Claim, once
from skiway.metastore.records.kinds import ACCOUNT, PIPELINE
from skiway.metastore.records.names import exact_name
from skiway.metastore.records.parents import inside
from skiway.metastore.records.realm import Realm, by_id_or_name, local_id, resource_id
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.records.updates import copied, masked_paths, retrying
from skiway.model import v1
from skiway.storage import Operation, Pointer

__all__ = ["create", "delete", "get", "list_", "plan", "run_job", "start", "update"]

NEW: Final = "new"
"""The id of a pipeline that does not exist yet, in a dry run."""


def create(realm: Realm, request: v1.CreatePipelineRequest) -> v1.CreatePipelineResponse:
    """Create a pipeline that belongs to the caller."""
    if not request.HasField("spec"):
        raise failure(InvalidArgument, "spec.required", field="spec")
    spec = request.spec
    claim = Claim(realm, "CreatePipeline", request.idempotency.key, spec, v1.CreatePipelineResponse)

    def attempt() -> v1.CreatePipelineResponse:
        account = realm.all(ACCOUNT).require(keys.account(realm.account_id), name=realm.account_id)
        now = realm.now()
        made = v1.Pipeline(resource_id=resource_id(realm, realm.ids(), v1.RK_PIPELINE), created_at=now, updated_at=now)
        _set_files(realm, made, spec)
        due = rescheduled(realm, made)

        def also(stored: Stored[v1.Pipeline]) -> tuple[Operation, ...]:
            answer = v1.CreatePipelineResponse(pipeline=_shown(stored.value), meta=stored.meta)
            return *inside(account.pointer), *due, *claim.storing(answer)

        created = realm.all(PIPELINE).create(made, also=also)
        return v1.CreatePipelineResponse(pipeline=_shown(created.value), meta=created.meta)

    return once(claim, lambda: retrying(attempt))


def get(realm: Realm, request: v1.GetPipelineRequest) -> v1.GetPipelineResponse:
    """Return the pipeline with an id or a name, and its stored version."""
    found = by_id_or_name(realm, PIPELINE, request, v1.RK_PIPELINE, key=keys.pipeline, name_key=keys.pipeline_name)
    return v1.GetPipelineResponse(pipeline=_shown(found.value), meta=found.meta)


def list_(realm: Realm, request: v1.ListPipelinesRequest) -> v1.ListPipelinesResponse:
    """List the account's pipelines by name."""
    found, page = listed(realm.all(PIPELINE), keys.pipeline_name(realm.account_id), request.page)
    return v1.ListPipelinesResponse(pipelines=map(_shown, found), page=page)


def update(realm: Realm, request: v1.UpdatePipelineRequest) -> v1.UpdatePipelineResponse:
    """Replace the files of a pipeline. The caller becomes its owner."""
    pipeline_id = local_id(realm, request.pipeline_id, v1.RK_PIPELINE, field="pipeline_id")
    masked_paths(request.update_mask, allowed=("files",), resource="pipeline")

    def write(current: Stored[v1.Pipeline], desired: v1.Pipeline) -> Stored[v1.Pipeline]:
        due = rescheduled(realm, desired)
        return realm.all(PIPELINE).update(current, desired, also=lambda _: due)

    updated = updates.update(
        realm,
        realm.all(PIPELINE),
        keys.pipeline(realm.account_id, pipeline_id),
        name=pipeline_id,
        precondition=request.precondition,
        edit=lambda pipeline: _set_files(realm, pipeline, request.spec),
        write=write,
    )
    return v1.UpdatePipelineResponse(pipeline=_shown(updated.value), meta=updated.meta)


def delete(realm: Realm, request: v1.DeletePipelineRequest) -> v1.DeletePipelineResponse:
    """Delete a pipeline, also a damaged one. Its tables stay."""
    pipeline_id = local_id(realm, request.pipeline_id, v1.RK_PIPELINE, field="pipeline_id")

    def remove(pointer: Pointer, pipeline: v1.Pipeline | None) -> None:
        realm.all(PIPELINE).delete(pointer, pipeline, also=unscheduled(realm, pipeline_id))

    key = keys.pipeline(realm.account_id, pipeline_id)
    meta = updates.delete(realm.all(PIPELINE), key, name=pipeline_id, precondition=request.precondition, remove=remove)
    return v1.DeletePipelineResponse(meta=meta)


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
    run = _run(realm, area, pipeline, project, full=request.full)
    decisions = run.decisions()
    planned = []
    for table in in_order(project):
        decision = decisions[str(table.name)]
        action, reason = ("fail", decision) if isinstance(decision, str) else (decision.action, decision.reason)
        reads = sorted({str(each) for each in table.reads.values()})
        shown = v1.PlannedTable(table=str(table.name), action=action, reason=reason, reads=reads)
        if isinstance(decision, Decision):
            _show_last_refresh(shown, decision)
        planned.append(shown)
    return v1.PlanPipelineResponse(tables=planned)


def start(realm: Realm, request: v1.StartPipelineRequest) -> v1.StartPipelineResponse:
    """Enqueue a run. If an unfinished job does the same, return that one."""
    found = _required(realm, request.pipeline_id)
    return v1.StartPipelineResponse(job=jobs.enqueue_pipeline(realm, found, full=request.full))


def run_job(
    realm: Realm,
    area: PipelineArea,
    task: v1.PipelineTask,
    engine: QueryEngine | None,
    control: Control,
    functions: FunctionEngine | None = None,
) -> Outcome:
    """Run a pipeline with the rights of its owner. `control` stops it, and gets its progress.

    `functions` runs its Python functions, if the operator allows them.
    """
    if engine is None:
        raise Unsupported(
            "this worker runs no pipelines: the operator allows their SQL to run in Spark with pipelines.enabled = true",
            key="pipelines.disabled",
        )
    pipeline = _required(realm, task.pipeline_id).value
    return _run(realm, area, pipeline, read_project(pipeline.files), full=task.full).run(engine, control, functions)


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
    return realm.all(PIPELINE).require(keys.pipeline(realm.account_id, pipeline_id), name=pipeline_id)


def _run(realm: Realm, area: PipelineArea, pipeline: v1.Pipeline, project: Project, *, full: bool) -> PipelineRun:
    tables = area.tables(realm, pipeline, project.catalog)
    return PipelineRun(project, pipeline.resource_id.id, tables, full)


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
