"""`skiway tables health`, `optimize`, `expire` and `clean`: the maintenance of managed tables."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command, confirm
from skiway.cli.lake.jobs import Watch, run_to_end
from skiway.cli.lake.tables import app
from skiway.cli.options import TableName, Yes, duration
from skiway.presentation.tables import health_data, scalar_fields

if TYPE_CHECKING:
    from skiway.client.metastore.jobs import MaintenancePlan
    from skiway.model import v1

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")]
OlderThan = Annotated[str | None, typer.Option(metavar="DURATION", help="Age, such as 7d or 12h.")]


Engine = StrEnum("Engine", ["process", "spark"])


def _health(name: str, health: v1.TableHealth) -> dict[str, Any]:
    """The health of a table in the output. The last range of sizes has no end."""
    data = health_data(health)
    return {"table": name, "snapshot_id": health.snapshot_id or None, **data.pop("figures"), **data}


def _planned(kind: str, name: str, action: str, **facts: object) -> dict[str, object]:
    """A snapshot, ref or file in the output of a dry run."""
    missing = {"size_bytes": None, "created_at": None, "group": None, "reason": ""}
    return {"kind": kind, "name": name, "action": action, **missing, **facts}


@command(app, "health")
def health(call: Call, name: TableName) -> None:
    """Show the files, deletes and snapshots of a managed table, and which maintenance is worth it."""
    from skiway.cli import rendering

    record = _health(name, call.lake.maintenance.health(name))
    call.print_record(record)
    if not call.is_for_people:
        return
    for title, rows in (("sizes", record["sizes"]), ("decisions", record["decisions"])):
        typer.echo()
        rendering.write_rows(rows, list(rows[0]) if rows else [], empty=f"there are no {title}")


@command(app, "optimize")
def optimize(
    call: Call,
    name: TableName,
    target_size: Annotated[
        int | None, typer.Option(metavar="MB", min=1, help="Size of files; 512, or the table's property, by default.")
    ] = None,
    min_files: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Pack at least N small files of a partition; 5 by default.")
    ] = None,
    max_deleted: Annotated[
        float | None,
        typer.Option(metavar="SHARE", min=0, max=1, help="Rewrite files with more deleted rows; 0.1 by default."),
    ] = None,
    sort: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Rewrite all files, sorted by a list such as 'ts DESC, id'.")
    ] = "",
    z_order: Annotated[
        str, typer.Option(metavar="COLUMNS", help="Rewrite all files in the z-order of 2 to 6 columns, such as 'x, y'.")
    ] = "",
    engine: Annotated[
        Engine | None,
        typer.Option(help="Where to run: in the process of the worker, or on Spark. By default as settings say."),
    ] = None,
    dry_run: DryRun = False,
    watch: Watch = True,
) -> None:
    """Pack small files of a managed table, apply deletes, and merge manifests; rows stay the same."""
    from skiway.client.metastore.jobs import optimize_task

    task = optimize_task(
        target_file_bytes=target_size * 1_000_000 if target_size else None,
        min_files=min_files,
        max_deleted=max_deleted,
        sort=sort,
        z_order=[each.strip() for each in z_order.split(",") if each.strip()],
        engine=None if engine is None else "spark" if engine is Engine.spark else "process",
    )
    _run(call, name, task, dry_run=dry_run, watch=watch)


@command(app, "expire")
def expire(
    call: Call,
    name: TableName,
    older_than: OlderThan = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Keep N snapshots of each branch, whatever their age.")
    ] = None,
    dry_run: DryRun = False,
    watch: Watch = True,
    yes: Yes = False,
) -> None:
    """Remove old snapshots of a managed table, and the files that only they use.

    By default snapshots expire after five days, or as the table's properties say. Tags, heads of branches, leased snapshots,
    and those that a transaction may read stay.
    """
    from skiway.client.metastore.jobs import expire_task

    confirm(f"Expire snapshots of {name}, and delete their files?", yes=yes or dry_run)
    task = expire_task(older_than=_age(older_than), keep_last=keep_last)
    _run(call, name, task, dry_run=dry_run, watch=watch)


@command(app, "clean")
def clean(
    call: Call,
    name: TableName,
    older_than: OlderThan = None,
    dry_run: DryRun = False,
    watch: Watch = True,
    yes: Yes = False,
) -> None:
    """Remove files of a managed table that none of its states references.

    By default those older than three days, or than gc.warehouse.min_age_ms. The age must be longer than any statement takes.
    """
    from skiway.client.metastore.jobs import clean_task

    confirm(f"Delete files of {name} that nothing references?", yes=yes or dry_run)
    _run(call, name, clean_task(older_than=_age(older_than)), dry_run=dry_run, watch=watch)


def _age(text: str | None) -> timedelta | None:
    return None if text is None else duration(text, "--older-than")


def _run(call: Call, name: str, task: v1.MaintenanceTask, *, dry_run: bool, watch: bool) -> None:
    if dry_run:
        with call.metastore(timeout_s=None) as lake:
            _print_plan(call, lake.maintenance.plan(name, task), task.WhichOneof("task") or "")
        return
    job = call.lake.maintenance.start(name, task)
    run_to_end(
        call,
        job,
        lambda job, on_change: call.lake.maintenance.wait(name, job, on_change=on_change),
        watch=watch,
        figures=lambda job: scalar_fields(job.message.maintenance_result),
    )


def _print_plan(call: Call, plan: MaintenancePlan, action: str) -> None:
    from skiway.client.metastore.resources import time_of

    acts = "rewrite" if action == "optimize" else "delete"
    records = [_planned("ref", each, "expire") for each in plan.refs]
    records += (
        _planned(
            "snapshot",
            str(each.snapshot_id),
            "expire" if each.expires else "keep",
            created_at=time_of(each.created_at) if each.HasField("created_at") else None,
            reason=each.reason,
        )
        for each in plan.snapshots
    )
    records += (
        _planned("file", each.location, acts, size_bytes=each.size_bytes, group=each.group or None, reason=each.reason)
        for each in plan.files
    )
    columns = ["kind", "action", "name", "size_bytes", "reason"]
    call.print_rows(records, columns, empty="there is nothing to do")
