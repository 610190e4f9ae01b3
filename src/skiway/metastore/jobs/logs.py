"""The logs of jobs. A log is stored with its job, at the end of each attempt, and is deleted with it."""

from __future__ import annotations

from skiway.errors import AlreadyExists, Contention, NotFound, PreconditionFailed
from skiway.metastore.jobs.api import get
from skiway.metastore.jobs.queue import JobQueue, Lease
from skiway.metastore.records import keys
from skiway.metastore.records.errors import failure
from skiway.metastore.records.kinds import JOB, JOB_LOG
from skiway.metastore.records.realm import Realm, timestamp
from skiway.metastore.records.repository import Repository
from skiway.metastore.records.updates import retrying
from skiway.model import v1
from skiway.storage import Check
from skiway.telemetry.job_logs import MAX_BYTES, CollectedLog, RecentLines

__all__ = ["get_log", "keep_log"]


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
        try:
            if current is None:
                logs.create(after, also=lambda _: [unchanged])
            else:
                logs.update(current, after, also=lambda _: [unchanged])
        except (AlreadyExists, NotFound, PreconditionFailed):
            raise failure(Contention, "store.contended", what=f"job {job_id}") from None

    retrying(attempt)


def get_log(realm: Realm, request: v1.GetReconcileJobLogRequest) -> v1.GetReconcileJobLogResponse:
    """Return the log of a job. It is empty if no attempt has ended."""
    job = get(realm, v1.GetReconcileJobRequest(job_id=request.job_id)).job
    found = realm.all(JOB_LOG).named(keys.job_log(realm.account_id, job.job_id))
    if found is None:
        return v1.GetReconcileJobLogResponse(job_id=job.job_id)
    note = f"… {found.dropped_lines} older lines were dropped: a log has at most {MAX_BYTES // 1024} KB\n"
    return v1.GetReconcileJobLogResponse(
        job_id=job.job_id,
        text=f"{note if found.dropped_lines else ''}{found.text}",
        dropped_lines=found.dropped_lines,
        updated_at=found.updated_at,
    )
