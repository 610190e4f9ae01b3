"""The health of a table: its files, what maintenance would gain, dry runs, and buttons that start the jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from skiway.client.metastore import Table
from skiway.client.metastore.maintenance import MaintenancePlan, clean_task, expire_task, optimize_task
from skiway.errors import InvalidArgument
from skiway.model import v1
from skiway.web.rendering import path_to
from skiway.web.visits import Redirect, Visit, optional

__all__ = ["maintain", "upkeep_data"]

MAX_PLANNED: Final = 500
TASKS: Final[Mapping[str, Callable[[], v1.MaintenanceTask]]] = {
    "optimize": optimize_task,
    "expire": expire_task,
    "clean": clean_task,
}
FIGURES: Final = (
    "rows",
    "data_files",
    "data_bytes",
    "target_file_bytes",
    "small_files",
    "small_bytes",
    "delete_files",
    "delete_bytes",
    "equality_delete_files",
    "deleted_rows",
    "deleted_share",
    "manifests",
    "manifest_bytes",
    "snapshots",
    "expirable_snapshots",
    "expirable_bytes",
    "orphan_files",
    "orphan_bytes",
    "reclaimable_bytes",
    "files_saved",
    "expected_gain",
)


def upkeep_data(visit: Visit, table: Table, *, is_managed: bool) -> dict[str, Any]:
    """The health of a table now. The parameter `plan` asks for a dry run of an action, and `job` for the state of a job."""
    if not is_managed:
        reason = "This table is a mirror: it is maintained in its source."
        return {"figures": None, "sizes": [], "decisions": [], "plan": None, "job": None, "reason": reason}
    health, reason = optional(lambda: visit.lake.maintenance.health(table))
    action = visit.query.get("plan", "")
    plan, no_plan = optional(lambda: _plan(visit, table, action)) if action else (None, "")
    job, no_job = optional(lambda: _job(visit, table)) if "job" in visit.query else (None, "")
    return {
        "figures": None if health is None else {name: getattr(health, name) for name in FIGURES},
        "sizes": [_sizes(each) for each in health.sizes] if health else [],
        "decisions": [
            {"action": each.action, "is_due": each.is_due, "reason": each.reason} for each in health.decisions
        ]
        if health
        else [],
        "plan": plan,
        "job": job,
        "reason": reason or no_plan or no_job,
    }


def maintain(visit: Visit) -> Redirect:
    """Start the job of an action, with the rules of the table."""
    visit.table_path()  # raises for other addresses
    job = visit.lake.maintenance.start(visit.names, _task(visit.form.get("action", "")))
    return Redirect(f"{path_to('tables', *visit.names)}?tab=health&job={job.id}")


def _task(action: str) -> v1.MaintenanceTask:
    if action not in TASKS:
        raise InvalidArgument(f"{action[:40]!r} is not an action: use {', '.join(TASKS)}", key="form.invalid")
    return TASKS[action]()


def _job(visit: Visit, table: Table) -> dict[str, Any]:
    """A job of the table. Whoever may read the table may see it, unlike other jobs."""
    job = visit.lake.maintenance.get(table, visit.query["job"])
    action = job.message.maintenance.WhichOneof("task")
    return {
        "id": job.id,
        "action": action,
        "state": job.state,
        "is_over": job.is_over,
        "message": job.message.message,
    }


def _sizes(each: v1.FileSizes) -> dict[str, Any]:
    return {
        "from_bytes": each.from_bytes,
        "to_bytes": each.to_bytes or None,
        "files": each.files,
        "bytes": each.bytes,
    }


def _plan(visit: Visit, table: Table, action: str) -> dict[str, Any]:
    found: MaintenancePlan = visit.lake.maintenance.plan(table, _task(action))
    return {
        "action": action,
        "refs": found.refs,
        "snapshots": [
            {"id": each.snapshot_id, "expires": each.expires, "reason": each.reason} for each in found.snapshots
        ][:MAX_PLANNED],
        "files": [
            {"path": each.location, "size_bytes": each.size_bytes, "group": each.group or None, "reason": each.reason}
            for each in found.files[:MAX_PLANNED]
        ],
        "file_count": len(found.files),
        "size_bytes": sum(each.size_bytes for each in found.files),
        "snapshot_count": sum(each.expires for each in found.snapshots),
    }
