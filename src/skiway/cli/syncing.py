"""Work that is begun: `skiway connectors sync`, a job that makes both passes or one pass at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from skiway.cli.jobs import JobRecord, counted

if TYPE_CHECKING:
    from skiway.cli.calling import Call
    from skiway.client.metastore import Job

__all__ = ["Part", "begun", "captured", "told"]


@dataclass(frozen=True, slots=True)
class Part:
    """Which of a connector's tables are meant, as they are called here; nothing said means all."""

    namespaces: Sequence[str] = ()
    table: str = ""


@dataclass(frozen=True, slots=True)
class Captured:
    """What one pass brought home, as it is written."""

    connector: str
    mode: str
    tables: int
    changed: int
    failed: int
    errors: dict[str, str]


def begun(call: Call, name: str, part: Part, *, full: bool, watch: bool) -> None:
    """Begin a job, or find the one that does the same already; follow it to its end if asked to."""
    job = call.lake.connectors.sync(name, full_rescan=full, namespaces=part.namespaces, table=part.table)
    told(call, job, {job.message.connector_id.id: name}, watch=watch)


def told(call: Call, job: Job, names: Mapping[str, str], *, watch: bool) -> None:
    """Say that a job was begun, or follow it to its end."""
    if watch:
        from skiway.cli.watching import watched

        watched(call, job)
        return
    call.done(f"job {job.id} is {job.state}: skiway jobs watch {job.id}", JobRecord.of(job, names))


def captured(call: Call, name: str, mode: str, part: Part) -> None:
    """Make one pass, however long it takes; exit code 1 if a table failed."""
    with call.metastore(timeout_s=None) as patient:
        done = patient.connectors.capture(
            name, statistics=mode == "stats", namespaces=part.namespaces, table=part.table
        )
    errors = {each.table: each.message for each in done.table_errors}
    record = Captured(name, mode, done.tables_scanned, done.tables_changed, done.errors, errors)
    call.done(f"{mode}: {counted(record.tables, record.changed, record.failed)}", record)
    if record.failed:
        if not call.as_json:
            for failed, message in errors.items():
                typer.echo(f"  {failed}: {message}", err=True)
        raise typer.Exit(1)
