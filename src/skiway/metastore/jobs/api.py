"""Jobs as clients use them: enqueued, listed and cancelled. Workers use `queue`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from skiway.errors import AlreadyExists, Contention, InvalidArgument, PreconditionFailed
from skiway.metastore.jobs.queue import ACTIVE, amended, end
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CONNECTOR, JOB, work_digest
from skiway.metastore.records.realm import Realm, local_id, timestamp
from skiway.metastore.records.repository import Stored, listed
from skiway.metastore.records.updates import retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.ownership import require_managed
from skiway.model import v1
from skiway.storage import Check, Operation

__all__ = [
    "BOTH_PASSES",
    "cancel",
    "cancel_all",
    "enqueue",
    "enqueue_check",
    "enqueue_maintenance",
    "enqueue_pipeline",
    "enqueue_pipeline_unless_active",
    "enqueue_profile",
    "enqueue_profile_unless_active",
    "enqueue_unless_active",
    "get",
    "list_",
    "scan",
]

BOTH_PASSES = (v1.CAP_METADATA_ONLY_CORE, v1.CAP_STATS_ONLY_ASYNC)


def enqueue(
    realm: Realm,
    connector_id: v1.ResourceId,
    *,
    scope: v1.JobScope | None = None,
    modes: Sequence[v1.CaptureMode.ValueType] = BOTH_PASSES,
    full_rescan: bool = False,
    due_at: datetime | None = None,
) -> v1.Job:
    """Enqueue a job on the connector, due now or later. If an unfinished job does the same work, return that one."""
    text = local_id(realm, connector_id, v1.RK_CONNECTOR, field="connector_id")

    def attempt() -> v1.Job:
        connector = _active_connector(realm, text)
        job = _queued(realm, connector.value, scope=scope, modes=modes, full_rescan=full_rescan, due_at=due_at)
        return _same(realm, job) or _created(realm, job, connector)

    return retrying(attempt)


def enqueue_profile(
    realm: Realm, table_id: v1.ResourceId, *, scope: v1.JobScope | None = None, full_rescan: bool = False
) -> v1.Job:
    """Enqueue a job that profiles a managed table. If an unfinished job does the same work, return that one."""

    def attempt() -> v1.Job:
        table = hierarchy.table(realm, table_id)
        job = _profile_job(realm, table, scope=scope, full_rescan=full_rescan)
        return _same(realm, job) or _created(realm, job, table)

    return retrying(attempt)


def enqueue_profile_unless_active(realm: Realm, table: Stored[v1.Table], *, also: Sequence[Operation]) -> v1.Job | None:
    """Enqueue a job that profiles a managed table, in one batch with `also`; None if an unfinished job does the same work.

    Raise `Conflict` if the table, or what `also` expects, changed since it was read.
    """
    job = _profile_job(realm, table)
    return None if _same(realm, job) else _created(realm, job, table, also=also)


def _profile_job(
    realm: Realm, table: Stored[v1.Table], *, scope: v1.JobScope | None = None, full_rescan: bool = False
) -> v1.Job:
    job = _queued(realm, scope=scope, modes=(v1.CAP_STATS_ONLY_ASYNC,), full_rescan=full_rescan)
    job.table_id.CopyFrom(require_managed(table.value).resource_id)
    return job


def enqueue_maintenance(realm: Realm, table_id: v1.ResourceId, task: v1.MaintenanceTask) -> v1.Job:
    """Enqueue a job that maintains a table. If an unfinished job does the same work, return that one."""

    def attempt() -> v1.Job:
        table = hierarchy.table(realm, table_id)
        job = _queued(realm, modes=())
        job.table_id.CopyFrom(table.value.resource_id)
        job.maintenance.CopyFrom(task)
        return _same(realm, job) or _created(realm, job, table)

    return retrying(attempt)


def enqueue_check(realm: Realm, table_id: v1.ResourceId, rule_ids: Sequence[str]) -> v1.Job:
    """Enqueue a job that reads the rows of a table to decide quality rules. If an unfinished job does the same, return that one."""

    def attempt() -> v1.Job:
        table = hierarchy.table(realm, table_id)
        job = _queued(realm, modes=())
        job.table_id.CopyFrom(table.value.resource_id)
        job.quality.rule_ids.extend(sorted(rule_ids))
        return _same(realm, job) or _created(realm, job, table)

    return retrying(attempt)


def enqueue_pipeline(realm: Realm, pipeline: Stored[v1.Pipeline], *, full: bool = False) -> v1.Job:
    """Enqueue a run of a pipeline. If an unfinished job does the same work, return that one."""

    def attempt() -> v1.Job:
        job = _pipeline_job(realm, pipeline, full=full)
        return _same(realm, job) or _created(realm, job, pipeline)

    return retrying(attempt)


def enqueue_pipeline_unless_active(
    realm: Realm, pipeline: Stored[v1.Pipeline], *, also: Sequence[Operation]
) -> v1.Job | None:
    """Enqueue a run of a pipeline in one batch with `also`; None if an unfinished job does the same work.

    Raise `Conflict` if the pipeline, or what `also` expects, changed since it was read.
    """
    job = _pipeline_job(realm, pipeline)
    return None if _same(realm, job) else _created(realm, job, pipeline, also=also)


def _pipeline_job(realm: Realm, pipeline: Stored[v1.Pipeline], *, full: bool = False) -> v1.Job:
    job = _queued(realm, modes=())
    job.pipeline.pipeline_id.CopyFrom(pipeline.value.resource_id)
    job.pipeline.full = full
    return job


def enqueue_unless_active(realm: Realm, connector: Stored[v1.Connector], *, also: Sequence[Operation]) -> v1.Job | None:
    """Enqueue a job on the whole connector in one batch with `also`; None if an unfinished job does the same work.

    Raise `Conflict` if the connector, or what `also` expects, changed since it was read.
    """
    job = _queued(realm, connector.value)
    return None if _same(realm, job) else _created(realm, job, connector, also=also)


def get(realm: Realm, request: v1.GetReconcileJobRequest) -> v1.GetReconcileJobResponse:
    """Return the job."""
    job_id = _checked_id(request.job_id)
    found = realm.all(JOB).require(keys.job(realm.account_id, job_id), name=job_id)
    return v1.GetReconcileJobResponse(job=found.value)


def list_(realm: Realm, request: v1.ListReconcileJobsRequest) -> v1.ListReconcileJobsResponse:
    """List jobs, newest first: of one connector or all, in one state or any."""
    connector_id = ""
    if request.HasField("connector_id"):
        connector_id = local_id(realm, request.connector_id, v1.RK_CONNECTOR, field="connector_id")
    prefix = keys.job_listing(realm.account_id, connector_id=connector_id, state=request.state)
    found, page = listed(realm.all(JOB), prefix, request.page)
    return v1.ListReconcileJobsResponse(jobs=found, page=page)


def scan(realm: Realm) -> Iterator[v1.Job]:
    """All jobs of the account, newest first. Those with a damaged record have `damage` set."""
    return (found.value for found in realm.all(JOB).entries(keys.job_listing(realm.account_id)))


def cancel(realm: Realm, request: v1.CancelReconcileJobRequest) -> v1.CancelReconcileJobResponse:
    """Cancel a job that is queued, or request its worker to stop. A finished job stays as it is."""

    def edit(job: v1.Job) -> None:
        if job.state == v1.JS_QUEUED:
            end(job, v1.JS_CANCELLED, now=realm.clock(), message="cancelled")
        elif job.state == v1.JS_RUNNING:
            job.cancel_requested = True

    job_id = _checked_id(request.job_id)
    job = amended(realm.stores, realm.account_id, job_id, edit=edit, clock=realm.clock)
    return v1.CancelReconcileJobResponse(job=job)


def cancel_all(realm: Realm, connector_id: str) -> None:
    """Cancel the unfinished jobs of a connector."""
    for state in ACTIVE:
        prefix = keys.job_listing(realm.account_id, connector_id=connector_id, state=state)
        for job in realm.all(JOB).entries(prefix):
            if job.value.damage:
                continue  # no worker can read it either
            cancel(realm, v1.CancelReconcileJobRequest(job_id=job.value.job_id))


def _checked_id(job_id: str) -> str:
    if not job_id.strip():
        raise failure(InvalidArgument, "field", field="job_id")
    return job_id


def _active_connector(realm: Realm, connector_id: str) -> Stored[v1.Connector]:
    found = realm.all(CONNECTOR).require(keys.connector(realm.account_id, connector_id), name=connector_id)
    if found.value.state != v1.CS_ACTIVE:
        state = v1.ConnectorState.Name(found.value.state).removeprefix("CS_").lower()
        raise failure(PreconditionFailed, "connector.not.active", name=found.value.display_name, state=state)
    return found


def _queued(
    realm: Realm,
    connector: v1.Connector | None = None,
    *,
    scope: v1.JobScope | None = None,
    modes: Sequence[v1.CaptureMode.ValueType] = BOTH_PASSES,
    full_rescan: bool = False,
    due_at: datetime | None = None,
) -> v1.Job:
    now = realm.now()
    return v1.Job(
        account_id=realm.account_id,
        job_id=realm.ids(),
        connector_id=connector.resource_id if connector else None,
        full_rescan=full_rescan,
        scope=scope,
        modes=modes,
        state=v1.JS_QUEUED,
        next_attempt_at=now if due_at is None else timestamp(due_at),
        created_at=now,
        updated_at=now,
    )


def _same(realm: Realm, job: v1.Job) -> v1.Job | None:
    found = realm.all(JOB).find_named(keys.job_active(realm.account_id, work_digest(job)))
    return None if found is None else found.value


def _created(
    realm: Realm,
    job: v1.Job,
    of: Stored[v1.Connector] | Stored[v1.Table] | Stored[v1.Pipeline],
    *,
    also: Sequence[Operation] = (),
) -> v1.Job:
    # Unchanged: no job is started for a connector that is paused meanwhile, or for something that is deleted.
    unchanged = Check(of.pointer.key, expect=of.pointer.version)
    try:
        return realm.all(JOB).create(job, also=lambda _: [unchanged, *also]).value
    except AlreadyExists:
        raise failure(Contention, "store.contended", what=f"the jobs of {of.value.display_name}") from None
