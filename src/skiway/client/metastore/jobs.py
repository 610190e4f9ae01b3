"""Jobs: background work that syncs connectors, profiles tables and maintains them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal

from skiway.client.metastore.calls import Calls, Id, Ref, table_id
from skiway.client.metastore.collection import Area, Listing, listing_of
from skiway.client.metastore.resources import Attribute, enum_name, time_of
from skiway.errors import InvalidArgument, TimedOut
from skiway.model import v1

STATES: Final = {enum_name(name): number for name, number in v1.JobState.items() if number}
FINAL_STATES: Final = ("succeeded", "partial", "failed", "cancelled")
PHASES: Final = {v1.CAP_METADATA_ONLY_CORE: "metadata", v1.CAP_STATS_ONLY_ASYNC: "statistics"}


@dataclass(frozen=True, slots=True)
class Job:
    """A job as of when it was read. `message` is the message that the server sent."""

    message: v1.Job

    id = Attribute[str]("job_id")
    """The id."""
    state = Attribute[str]()
    """`queued`, `running`, `succeeded`, `partial` (some tables failed), `failed` or `cancelled`."""
    damage = Attribute[str]()
    """In listings, what is wrong if the record is lost or corrupt; then only id and state are known. Otherwise ""."""
    created_at = Attribute[datetime]()
    """The time of creation."""
    started_at = Attribute[datetime | None]()
    """The start of the last attempt; None before the first."""
    finished_at = Attribute[datetime | None]()
    """The time when the job ended; None while it has not."""
    tables_now = Attribute[Sequence[str]]("progress.tables")
    """The tables that are being processed."""
    tables_done = Attribute[int]("progress.tables_done")
    """The number of tables that this phase has finished, including failed ones."""
    tables_total = Attribute[int]("progress.tables_total")
    """The number of tables of this phase."""
    files_done = Attribute[int]("progress.files_done")
    """The number of files that the job has profiled."""
    files_total = Attribute[int]("progress.files_total")
    """The number of files to profile, of the tables started so far."""
    rows_done = Attribute[int]("progress.rows_done")
    """The number of rows in these files that are done; 0 if it is not known."""
    rows_total = Attribute[int]("progress.rows_total")
    """The number of rows in all of these files; 0 if it is not known."""
    bytes_done = Attribute[int]("progress.bytes_done")
    """The size of the files that are done; 0 if it is not known."""
    bytes_total = Attribute[int]("progress.bytes_total")
    """The size of all of these files; 0 if it is not known."""
    spark_ui = Attribute[str]("progress.spark_ui")
    """The address of the web interface of Spark that runs the job; empty if it has none."""

    @classmethod
    def started(cls, calls: Calls, request: v1.TriggerReconcileRequest) -> Job:
        """Start a job, or find the one that already does the same; return it."""
        job_id = calls.call(request, v1.TriggerReconcileResponse).job_id
        return cls(calls.rpc("GetReconcileJob", job_id=job_id).job)

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.state in FINAL_STATES

    @property
    def errors(self) -> dict[str, str]:
        """The first errors, by table."""
        return {each.table: each.message for each in self.message.table_errors}

    @property
    def phase(self) -> str:
        """The current or last phase: `metadata` or `statistics`; "" before the first. Of other jobs, their task."""
        if self.message.HasField("maintenance"):
            return self.message.maintenance.WhichOneof("task") or ""
        for task in ("quality", "pipeline"):
            if self.message.HasField(task):
                return task
        return PHASES.get(getattr(self.message.progress, "pass"), "")

    @property
    def fraction_done(self) -> float:
        """The progress of the phase between 0 and 1, by tables; by bytes or files if there is only one table."""
        if self.is_over or not self.tables_total:
            return float(self.is_over)
        if self.tables_total == 1 and self.bytes_total:
            return self.bytes_done / self.bytes_total
        if self.tables_total == 1 and self.files_total:
            return self.files_done / self.files_total
        return self.tables_done / self.tables_total

    @property
    def remaining(self) -> timedelta | None:
        """About how long the phase will still take, at the speed of this attempt so far; None if that is not known."""
        done = self.fraction_done
        if self.is_over or not 0 < done < 1 or self.started_at is None:
            return None
        taken = time_of(self.message.updated_at) - self.started_at
        return taken * ((1 - done) / done)


class Jobs(Area):
    """`lake.jobs`, identified by id."""

    def __call__(
        self, *, connector: Id | v1.ResourceId | None = None, state: str | None = None, page_size: int | None = None
    ) -> Listing[Job]:
        """List jobs, newest first; optionally those of one connector or in one state."""
        connector_id = v1.ResourceId(id=connector, kind=v1.RK_CONNECTOR) if isinstance(connector, Id) else connector

        def fields() -> Mapping[str, object]:
            return {"connector_id": connector_id, "state": _state(state)}

        return listing_of(self._calls, "ListReconcileJobs", "jobs", Job, page_size, fields)

    def get(self, job: str | Job) -> Job:
        """Return the job in its current state; raise `NotFound` if there is none."""
        return Job(self._calls.rpc("GetReconcileJob", job_id=_id(job)).job)

    def log(self, job: str | Job) -> str:
        """Return what the attempts at the job logged; "" if none has ended. The oldest lines of a long log are dropped."""
        return str(self._calls.rpc("GetReconcileJobLog", job_id=_id(job)).text)

    def cancel(self, job: str | Job) -> Job:
        """Cancel a queued job, or ask a running one to stop; return it."""
        return Job(self._calls.rpc("CancelReconcileJob", job_id=_id(job)).job)

    def watch(self, job: str | Job, *, timeout_s: float | None = None, every_s: float = 0.5) -> Iterator[Job]:
        """Yield the job now and after each change, until it ends; raise `TimedOut` after `timeout_s`."""
        return watched(lambda: self.get(job), timeout_s=timeout_s, every_s=every_s)

    def wait(
        self,
        job: str | Job,
        *,
        timeout_s: float | None = None,
        every_s: float = 0.5,
        on_change: Callable[[Job], None] = lambda _: None,
    ) -> Job:
        """Wait for a job to end and return it; raise `TimedOut` after `timeout_s`. `on_change` is called after each change."""
        for now in self.watch(job, timeout_s=timeout_s, every_s=every_s):
            on_change(now)
        return now


def watched(get: Callable[[], Job], *, timeout_s: float | None, every_s: float) -> Iterator[Job]:
    """Yield the job that `get` returns, now and after each change, until it ends; raise `TimedOut` after `timeout_s`."""
    ends_at = None if timeout_s is None else time.monotonic() + timeout_s
    last: Job | None = None
    while True:
        now = get()
        if last is None or _visible(now) != _visible(last):
            yield now
            last = now
        if now.is_over:
            return
        if ends_at is not None and time.monotonic() + every_s > ends_at:
            raise TimedOut(
                f"job {now.id} is still {now.state} after {timeout_s:g} s; increase timeout_s to wait longer",
                key="job.not.over",
            )
        time.sleep(every_s)


def _visible(job: Job) -> v1.Job:
    """The job without the fields that change whenever its lease is renewed."""
    visible = v1.Job()
    visible.CopyFrom(job.message)
    visible.ClearField("lease_expires_at")
    visible.ClearField("updated_at")
    return visible


def _id(job: str | Job) -> str:
    return job.id if isinstance(job, Job) else job


def _state(name: str | None) -> v1.JobState.ValueType:
    if name is None:
        return v1.JS_UNSPECIFIED
    if name not in STATES:
        raise InvalidArgument(
            f"{name!r} is not a state of jobs: use {', '.join(STATES)}", key="field.invalid", field="state"
        )
    return v1.JobState.ValueType(STATES[name])


Engine = Literal["process", "spark"]
ENGINES: Final[Mapping[str, v1.OptimizeEngine.ValueType]] = {"process": v1.OE_PROCESS, "spark": v1.OE_SPARK}


@dataclass(frozen=True, slots=True)
class MaintenancePlan:
    """What a task would do now: the snapshots that expire or stay, the refs that expire, and the files to delete or rewrite."""

    snapshots: list[v1.PlannedSnapshot] = field(default_factory=list)
    files: list[v1.PlannedFile] = field(default_factory=list)
    refs: list[str] = field(default_factory=list)


def optimize_task(
    *,
    target_file_bytes: int | None = None,
    min_files: int | None = None,
    max_deleted: float | None = None,
    sort: str = "",
    z_order: Sequence[str] = (),
    engine: Engine | None = None,
) -> v1.MaintenanceTask:
    """Pack small files, apply deletes, and put rows in the order of `sort`, such as `ts DESC, id`, or of a z-order.

    Without an `engine`, the settings of the server decide whether Spark is used.
    """
    task = v1.OptimizeTask(
        target_file_bytes=target_file_bytes or 0,
        min_files=min_files or 0,
        max_deleted=max_deleted,
        sort=sort,
        z_order=z_order,
        engine=v1.OE_UNSPECIFIED if engine is None else ENGINES[engine],
    )
    return v1.MaintenanceTask(optimize=task)


def expire_task(*, older_than: timedelta | None = None, keep_last: int | None = None) -> v1.MaintenanceTask:
    """Remove old snapshots, and the files that only they use. The table's properties replace arguments that are None."""
    task = v1.ExpireTask(keep_last=keep_last or 0)
    if older_than is not None:
        task.older_than.FromTimedelta(older_than)
    return v1.MaintenanceTask(expire=task)


def clean_task(*, older_than: timedelta | None = None) -> v1.MaintenanceTask:
    """Remove files that no state of the table references; those older than three days by default."""
    task = v1.CleanTask()
    if older_than is not None:
        task.older_than.FromTimedelta(older_than)
    return v1.MaintenanceTask(clean=task)


class Maintenance(Area):
    """`lake.maintenance`, for managed tables, which are named like in `lake.tables`."""

    def health(self, table: Ref) -> v1.TableHealth:
        """Return the health of a table: its files, deletes and snapshots, and what maintenance would gain."""
        found: v1.TableHealth = self._calls.rpc("GetTableHealth", table_id=table_id(self._calls, table)).health
        return found

    def plan(self, table: Ref, task: v1.MaintenanceTask) -> MaintenancePlan:
        """Return everything that a task would do now, without doing it."""
        plan = MaintenancePlan()
        request = v1.PlanMaintenanceRequest(table_id=table_id(self._calls, table), task=task)
        for part in self._calls.stream(request, v1.PlanMaintenanceResponse):
            plan.snapshots.extend(part.snapshots)
            plan.files.extend(part.files)
            plan.refs.extend(part.refs)
        return plan

    def start(self, table: Ref, task: v1.MaintenanceTask) -> Job:
        """Start a job for a task; return it, or the running one that does the same."""
        return Job(self._calls.rpc("StartMaintenance", table_id=table_id(self._calls, table), task=task).job)

    def get(self, table: Ref, job: str | Job) -> Job:
        """Return a job of a table in its current state. It requires the right to read the table."""
        return Job(self._calls.rpc("GetMaintenance", table_id=table_id(self._calls, table), job_id=_id(job)).job)

    def wait(
        self,
        table: Ref,
        job: str | Job,
        *,
        timeout_s: float | None = None,
        every_s: float = 0.3,
        on_change: Callable[[Job], None] = lambda _: None,
    ) -> Job:
        """Wait for a job to end and return it; raise `TimedOut` after `timeout_s`. `on_change` is called after each change."""
        for now in watched(lambda: self.get(table, job), timeout_s=timeout_s, every_s=every_s):
            on_change(now)
        return now
