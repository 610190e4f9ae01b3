"""Maintenance of managed tables: their health, what a task would do, and tasks as jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, Literal

from skiway.client.metastore.collection import Area
from skiway.client.metastore.jobs import Job, watched
from skiway.client.metastore.names import Ref, table_id
from skiway.model import v1

__all__ = ["Engine", "Maintenance", "MaintenancePlan", "clean_task", "expire_task", "optimize_task"]


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
        job_id = job.id if isinstance(job, Job) else job
        return Job(self._calls.rpc("GetMaintenance", table_id=table_id(self._calls, table), job_id=job_id).job)

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
