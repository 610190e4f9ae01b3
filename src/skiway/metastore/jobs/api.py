"""Jobs as clients use them: enqueued, listed and cancelled, with their logs and their schedules. Workers use `queue`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Final, TypeAlias

from skiway.errors import (
    AlreadyExists,
    Conflict,
    Contention,
    InvalidArgument,
    PreconditionFailed,
    SkiwayError,
)
from skiway.metastore.jobs.queue import ACTIVE, JobQueue, Lease, amended, end
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import CONNECTOR, JOB, JOB_LOG, PIPELINE, work_digest
from skiway.metastore.records.realm import Realm, local_id, timestamp
from skiway.metastore.records.repository import Repository, Stored, listed
from skiway.metastore.records.updates import copied, retrying
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import require_managed
from skiway.model import v1
from skiway.storage import ABSENT, Check, Delete, Operation, Pointer, Put, Stores
from skiway.telemetry.job_logs import MAX_BYTES, CollectedLog, RecentLines

BOTH_PASSES = (v1.CAP_METADATA_ONLY_CORE, v1.CAP_STATS_ONLY_ASYNC)

Worked: TypeAlias = "Stored[v1.Connector] | Stored[v1.Table] | Stored[v1.Pipeline]"
"""What a job works on."""


def enqueue(realm: Realm, work: v1.Job) -> v1.Job:
    """Enqueue a job. If an unfinished job does the same work, return that one.

    `work` has the connector, table or pipeline, and the fields that say what to do. Without them, a job on a connector runs both
    passes, and a job on a managed table profiles it. A job is due now unless `work` says when.
    """

    def attempt() -> v1.Job:
        resource = _resource(realm, work)
        job = _queued(realm, resource, work)
        return _same(realm, job) or _created(realm, job, resource)

    return retrying(attempt)


def enqueue_unless_active(realm: Realm, resource: Worked, *, also: Sequence[Operation]) -> v1.Job | None:
    """Enqueue a job on a whole connector, the profile of a managed table or the run of a pipeline, in one batch with `also`.

    Return None if an unfinished job does the same work. Raise `Conflict` if the resource, or what `also` expects, changed since it
    was read.
    """
    job = _queued(realm, resource, v1.Job())
    return None if _same(realm, job) else _created(realm, job, resource, also=also)


def get(realm: Realm, request: v1.GetReconcileJobRequest) -> v1.GetReconcileJobResponse:
    """Return the job."""
    job_id = _checked_id(request.job_id)
    job = realm.by_id(JOB, job_id)
    return v1.GetReconcileJobResponse(job=job.value)


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


def _resource(realm: Realm, work: v1.Job) -> Worked:
    """What a job is to work on, as it is stored now."""
    if work.HasField("pipeline"):
        pipeline_id = local_id(realm, work.pipeline.pipeline_id, v1.RK_PIPELINE, field="pipeline_id")
        return realm.by_id(PIPELINE, pipeline_id)
    if work.HasField("table_id"):
        return hierarchy.table(realm, work.table_id)
    connector = realm.by_id(CONNECTOR, local_id(realm, work.connector_id, v1.RK_CONNECTOR, field="connector_id"))
    if connector.value.state != v1.CS_ACTIVE:
        state = v1.ConnectorState.Name(connector.value.state).removeprefix("CS_").lower()
        raise failure(PreconditionFailed, "connector.not.active", name=connector.value.display_name, state=state)
    return connector


def _queued(realm: Realm, resource: Worked, work: v1.Job) -> v1.Job:
    """A job for the work on a resource."""
    now = realm.now()
    job = copied(work)
    job.account_id, job.job_id, job.state = realm.account_id, realm.ids(), v1.JS_QUEUED
    job.created_at.CopyFrom(now)
    job.updated_at.CopyFrom(now)
    if not job.HasField("next_attempt_at"):
        job.next_attempt_at.CopyFrom(now)
    match resource.value:
        case v1.Connector() as connector:
            job.connector_id.CopyFrom(connector.resource_id)
            job.modes.extend(() if job.modes else BOTH_PASSES)
        case v1.Table() as table:
            job.table_id.CopyFrom(table.resource_id)
            if not job.HasField("maintenance") and not job.HasField("quality"):
                require_managed(table)
                job.modes.extend(() if job.modes else (v1.CAP_STATS_ONLY_ASYNC,))
        case v1.Pipeline() as pipeline:
            job.pipeline.pipeline_id.CopyFrom(pipeline.resource_id)
    return job


def _same(realm: Realm, job: v1.Job) -> v1.Job | None:
    found = realm.all(JOB).find_named(keys.job_active(realm.account_id, work_digest(job)))
    return None if found is None else found.value


def _created(realm: Realm, job: v1.Job, resource: Worked, *, also: Sequence[Operation] = ()) -> v1.Job:
    # Unchanged: no job is started for a connector that was paused, or for a resource that was deleted, in the meantime.
    unchanged = Check(resource.pointer.key, expect=resource.pointer.version)
    try:
        return realm.all(JOB).create(job, also=lambda _: [unchanged, *also]).value
    except AlreadyExists:
        raise failure(Contention, "store.contended", what=f"the jobs of {resource.value.display_name}") from None


def keep_log(queue: JobQueue, lease: Lease, log: CollectedLog) -> None:
    """Add the log of an attempt to that of the job, before the attempt ends. Raise `Conflict` if the lease is lost."""
    job_id, account_id = lease.job.job_id, lease.job.account_id
    jobs, logs = Repository(queue.stores, JOB), Repository(queue.stores, JOB_LOG)

    def attempt() -> None:
        job = jobs.require(keys.job(account_id, job_id), name=job_id)
        queue.require_held(lease, job.value)
        unchanged = Check(job.pointer.key, expect=job.pointer.version)
        current = logs.find(keys.job_log(account_id, job_id))
        before = current.value if current else v1.JobLog()
        lines = RecentLines(dropped=before.dropped_lines + log.dropped)
        lines.add(f"{before.text}{log.text}".removesuffix("\n"))
        after = v1.JobLog(
            account_id=account_id,
            job_id=job_id,
            text=lines.text,
            dropped_lines=lines.dropped,
            updated_at=timestamp(queue.clock()),
        )
        logs.save(current, after, what=f"job {job_id}", also=lambda _: [unchanged])

    retrying(attempt)


def get_log(realm: Realm, request: v1.GetReconcileJobLogRequest) -> v1.GetReconcileJobLogResponse:
    """Return the log of a job. It is empty if no attempt has ended."""
    job = get(realm, v1.GetReconcileJobRequest(job_id=request.job_id)).job
    log_record = realm.all(JOB_LOG).named(keys.job_log(realm.account_id, job.job_id))
    if log_record is None:
        return v1.GetReconcileJobLogResponse(job_id=job.job_id)
    note = f"… {log_record.dropped_lines} older lines were dropped: a log has at most {MAX_BYTES // 1024} KB\n"
    return v1.GetReconcileJobLogResponse(
        job_id=job.job_id,
        text=f"{note if log_record.dropped_lines else ''}{log_record.text}",
        dropped_lines=log_record.dropped_lines,
        updated_at=log_record.updated_at,
    )


DEFAULT_INTERVAL: Final = timedelta(minutes=10)
"""The interval of a policy that does not set one."""

MAX_CLOCK_SKEW: Final = timedelta(minutes=1)
"""A time that was set later than this from now was set by a wrong clock, and is ignored."""

log = logging.getLogger("skiway.schedule")


def rescheduled(realm: Realm, before: v1.Connector | None, after: v1.Connector) -> list[Operation]:
    """The operations that the batch needs that writes a connector; none if its schedule is unchanged."""
    if before is not None and _schedule(before) == _schedule(after):
        return []
    now = realm.clock()
    turn = Turn(now, max(now, _not_before(after))) if _is_scheduled(after) else None
    return scheduled(realm, keys.schedule(realm.account_id, after.resource_id.id), turn)


def scheduled(realm: Realm, key: str, turn: Turn | None = None) -> list[Operation]:
    """The operations that set when a resource is due. Without a turn, it is not scheduled any more."""
    pointer = realm.stores.pointers.get(key)
    if turn is not None:
        return [Put(key, turn.text, expect=pointer.version if pointer else ABSENT)]
    return [] if pointer is None else [Delete(key, expect=pointer.version)]


@dataclass(frozen=True, slots=True)
class Schedule(ABC):
    """The scheduled resources of one kind, of all accounts of a store.

    Each has a pointer that holds when it is due. It is set and deleted in the batch that writes the resource, and moved in the batch
    that enqueues the job. So exactly one of many servers enqueues it, and no crash loses a run or causes two.
    """

    stores: Stores
    realm_of: Callable[[str], Realm]

    noun: ClassVar[str]
    prefix: ClassVar[str]

    def begin_due(self) -> list[v1.Job]:
        """Enqueue the jobs that are due, and return them. A resource with an unfinished job is skipped until that has finished."""
        begun = [self._begin(pointer) for pointer in self.stores.pointers.scan(self.prefix)]
        return [job for job in begun if job is not None]

    def _begin(self, place: Pointer) -> v1.Job | None:
        account_id, own_id = keys.scheduled_ids(self.prefix, place.key)
        realm = self.realm_of(account_id)
        if not Turn.read(place).is_due(realm.clock()):
            return None
        try:
            return self._begin_now(realm, place, own_id)
        except Conflict:
            return None  # another server was faster, or the resource was just changed
        except SkiwayError as error:
            # One broken resource must not block the others.
            log.warning("%s %s of account %s cannot be scheduled: %s", self.noun, own_id, account_id, error)
            return None

    @abstractmethod
    def _begin_now(self, realm: Realm, place: Pointer, own_id: str) -> v1.Job | None:
        """Move the pointer and enqueue the job."""


class JobSchedule(Schedule):
    """The scheduled connectors of all accounts of a store."""

    noun = "connector"
    prefix = keys.SCHEDULE

    def _begin_now(self, realm: Realm, place: Pointer, own_id: str) -> v1.Job | None:
        connector = realm.all(CONNECTOR).find(keys.connector(realm.account_id, own_id))
        if connector is None or not _is_scheduled(connector.value):
            self.stores.pointers.compare_and_delete(place.key, expect=place.version)
            return None
        now = realm.clock()
        following = Turn(now, max(now + _interval(connector.value), _not_before(connector.value)))
        moved = Put(place.key, following.text, expect=place.version)
        return enqueue_unless_active(realm, connector, also=[moved])


@dataclass(frozen=True, slots=True)
class Turn:
    """When something is due, and when that was decided."""

    decided_at: datetime
    due_at: datetime

    @classmethod
    def read(cls, place: Pointer) -> Turn:
        """The turn that a pointer holds. An unreadable one is due."""
        try:
            decided_at, due_at = map(datetime.fromisoformat, place.blob_uri.split(" ")[:2])
            return cls(decided_at.astimezone(UTC), due_at.astimezone(UTC))
        except ValueError:
            log.warning("%s is unreadable and therefore due now", place.key)
            return cls(_LONG_AGO, _LONG_AGO)

    @property
    def text(self) -> str:
        """The turn as a pointer holds it."""
        return f"{self.decided_at.isoformat()} {self.due_at.isoformat()}"

    def is_due(self, now: datetime) -> bool:
        """Whether it is due, or was decided by a wrong clock."""
        return self.due_at <= now or self.decided_at > now + MAX_CLOCK_SKEW


_LONG_AGO: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _schedule(connector: v1.Connector) -> tuple[object, ...]:
    return _is_scheduled(connector), _interval(connector), _not_before(connector)


def _is_scheduled(connector: v1.Connector) -> bool:
    return connector.policy.enabled and connector.state == v1.CS_ACTIVE


def _interval(connector: v1.Connector) -> timedelta:
    return connector.policy.interval.ToTimedelta() or DEFAULT_INTERVAL


def _not_before(connector: v1.Connector) -> datetime:
    return connector.policy.not_before.ToDatetime(UTC)
