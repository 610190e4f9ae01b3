"""`skiway tables health`, `optimize`, `expire` and `clean`: the maintenance of managed tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command
from skiway.cli.lake.jobs import INTERRUPTED, JobRecord, describe_progress
from skiway.cli.lake.tables import TableName, app
from skiway.config.fields import DURATION

if TYPE_CHECKING:
    from skiway.client.metastore import Job
    from skiway.client.metastore.jobs import MaintenancePlan
    from skiway.model import v1

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only list what would be done.")]
Background = Annotated[bool, typer.Option("--background", help="Start the job and do not wait for its end.")]
OlderThan = Annotated[str | None, typer.Option(metavar="DURATION", help="Age, such as 7d or 12h.")]


class Engine(StrEnum):
    """Where an optimization runs."""

    process = "process"
    spark = "spark"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """An action in the output: whether it is worth it now, and why."""

    action: str
    is_due: bool
    reason: str


@dataclass(frozen=True, slots=True)
class SizesRecord:
    """How many data files have a size in a range; the last range has no end."""

    from_bytes: int
    to_bytes: int | None
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HealthRecord:
    """The health of a table in the output."""

    table: str
    snapshot_id: int | None
    rows: int
    data_files: int
    data_bytes: int
    target_file_bytes: int
    small_files: int
    small_bytes: int
    delete_files: int
    delete_bytes: int
    equality_delete_files: int
    deleted_rows: int
    deleted_share: float
    manifests: int
    manifest_bytes: int
    snapshots: int
    expirable_snapshots: int
    expirable_bytes: int
    orphan_files: int
    orphan_bytes: int
    reclaimable_bytes: int
    files_saved: int
    expected_gain: float
    sizes: list[SizesRecord]
    decisions: list[DecisionRecord]

    @classmethod
    def of(cls, name: str, health: v1.TableHealth) -> HealthRecord:
        """Convert the message."""
        plain = {
            each: getattr(health, each)
            for each in cls.__slots__
            if each not in ("table", "snapshot_id", "sizes", "decisions")
        }
        sizes = [SizesRecord(each.from_bytes, each.to_bytes or None, each.files, each.bytes) for each in health.sizes]
        decisions = [DecisionRecord(each.action, each.is_due, each.reason) for each in health.decisions]
        return cls(table=name, snapshot_id=health.snapshot_id or None, sizes=sizes, decisions=decisions, **plain)


@dataclass(frozen=True, slots=True)
class PlannedRecord:
    """A snapshot, ref or file in the output of a dry run."""

    kind: str
    name: str
    action: str
    size_bytes: int | None = None
    created_at: datetime | None = None
    group: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ResultRecord:
    """A job of maintenance in the output, and what it has done."""

    job: JobRecord
    files_rewritten: int
    files_added: int
    bytes_rewritten: int
    bytes_added: int
    groups_given_up: int
    snapshots_removed: int
    files_removed: int
    bytes_removed: int


@command(app, "health")
def health(call: Call, name: TableName) -> None:
    """Show the files, deletes and snapshots of a managed table, and which maintenance is worth it."""
    from skiway.cli import rendering

    record = HealthRecord.of(name, call.lake.maintenance.health(name))
    call.print_record(record)
    if not call.is_for_people:
        return
    for title, rows in (("sizes", record.sizes), ("decisions", record.decisions)):
        typer.echo()
        rendering.write_rows(rows, list(type(rows[0]).__slots__) if rows else [], empty=f"there are no {title}")


@command(app, "optimize")
def optimize(
    call: Call,
    name: TableName,
    target_size: Annotated[
        int | None, typer.Option(metavar="MB", min=1, help="Size of files; 512, or the table's property, by default.")
    ] = None,
    min_files: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Pack so many small files of a partition; 5 by default.")
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
    background: Background = False,
) -> None:
    """Pack small files of a managed table, apply deletes, and merge manifests; rows stay the same."""
    from skiway.client.metastore.jobs import optimize_task

    task = optimize_task(
        target_file_bytes=target_size * 1_000_000 if target_size else None,
        min_files=min_files,
        max_deleted=max_deleted,
        sort=sort,
        z_order=[each.strip() for each in z_order.split(",") if each.strip()],
        engine=None if engine is None else engine.value,
    )
    _run(call, name, task, dry_run=dry_run, background=background)


@command(app, "expire")
def expire(
    call: Call,
    name: TableName,
    older_than: OlderThan = None,
    keep_last: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Keep so many snapshots of each branch, whatever their age.")
    ] = None,
    dry_run: DryRun = False,
    background: Background = False,
) -> None:
    """Remove old snapshots of a managed table, and the files that only they use.

    By default snapshots expire after five days, or as the table's properties say. Tags, heads of branches, leased snapshots,
    and those that a transaction may read stay.
    """
    from skiway.client.metastore.jobs import expire_task

    task = expire_task(older_than=_duration(older_than), keep_last=keep_last)
    _run(call, name, task, dry_run=dry_run, background=background)


@command(app, "clean")
def clean(
    call: Call, name: TableName, older_than: OlderThan = None, dry_run: DryRun = False, background: Background = False
) -> None:
    """Remove files of a managed table that none of its states references.

    By default those older than three days, or than gc.warehouse.min_age_ms. The age must be longer than any statement takes.
    """
    from skiway.client.metastore.jobs import clean_task

    _run(call, name, clean_task(older_than=_duration(older_than)), dry_run=dry_run, background=background)


def _run(call: Call, name: str, task: v1.MaintenanceTask, *, dry_run: bool, background: bool) -> None:
    if dry_run:
        with call.metastore(timeout_s=None) as lake:
            _print_plan(call, lake.maintenance.plan(name, task), task.WhichOneof("task") or "")
        return
    job = call.lake.maintenance.start(name, task)
    if not background:
        try:
            job = call.lake.maintenance.wait(name, job, on_change=_reporter())
        except KeyboardInterrupt:
            typer.echo(f"job {job.id} keeps running: cancel it with `skiway jobs cancel {job.id}`", err=True)
            raise typer.Exit(INTERRUPTED) from None
    _print_end(call, job)


def _reporter() -> Callable[[Job], None]:
    last = [""]

    def report(job: Job) -> None:
        line = describe_progress(job)
        if line != last[0] and not job.is_over:
            typer.echo(f"job {job.id}: {line}", err=True)
        last[0] = line

    return report


def _print_end(call: Call, job: Job) -> None:
    result = job.message.maintenance_result
    figures = {field: getattr(result, field) for field in ResultRecord.__slots__ if field != "job"}
    done = job.message.message or f"follow it with: skiway jobs watch {job.id}"
    call.print_result(f"job {job.id} {job.state}: {done}", ResultRecord(JobRecord.of(job, {}), **figures))
    if job.is_over and job.state != "succeeded":
        raise typer.Exit(1)


def _print_plan(call: Call, plan: MaintenancePlan, action: str) -> None:
    from skiway.client.metastore.resources import time_of

    acts = "rewrite" if action == "optimize" else "delete"
    records = [PlannedRecord("ref", each, "expire") for each in plan.refs]
    records += (
        PlannedRecord(
            "snapshot",
            str(each.snapshot_id),
            "expire" if each.expires else "keep",
            created_at=time_of(each.created_at) if each.HasField("created_at") else None,
            reason=each.reason,
        )
        for each in plan.snapshots
    )
    records += (
        PlannedRecord("file", each.location, acts, each.size_bytes, group=each.group or None, reason=each.reason)
        for each in plan.files
    )
    columns = ["kind", "action", "name", "size_bytes", "reason"]
    call.print_rows(records, columns, empty="there is nothing to do")


def _duration(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return DURATION.read(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not {DURATION.takes}", param_hint="--older-than") from None
