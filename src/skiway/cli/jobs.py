"""A job followed to its end: a bar on a terminal, a line for each change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from skiway.cli import rendering
from skiway.cli.command import Call, noun, verb

if TYPE_CHECKING:
    from skiway.cli.command import Call
    from skiway.client.metastore import Job, Metastore

__all__ = ["Part", "begun", "captured", "connector_names", "described", "finished", "told", "watched"]

INTERRUPTED: Final = 130
ERRORS_SHOWN: Final = 10

Tell = Callable[["Job"], None]


def watched(call: Call, job: Job) -> None:
    """Follow a job, and say what came of it: exit code 1 unless all of it succeeded. Ctrl-C leaves it running."""
    try:
        with _teller() as tell:
            over = call.lake.jobs.wait(job, on_change=tell)
    except KeyboardInterrupt:
        typer.echo(
            f"job {job.id} goes on: follow it with `skiway jobs watch {job.id}`, "
            f"or stop it with `skiway jobs cancel {job.id}`",
            err=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    finished(call, JobRecord.of(over, connector_names(call.lake)))


def finished(call: Call, job: JobRecord) -> None:
    """Say what came of a job that is over."""
    counts = counted(job.tables, job.changed, job.failed)
    call.done(f"job {job.id} {job.state}{f': {counts}' if job.tables else ''}", job)
    if not call.as_json:
        for line in _errors(job.errors, job.failed) or ([job.message] if job.message else []):
            typer.echo(line, err=True)
    if job.state != "succeeded" or job.failed:
        raise typer.Exit(1)


def _errors(errors: dict[str, str], count: int) -> list[str]:
    lines = [f"  {table}: {message}" for table, message in list(errors.items())[:ERRORS_SHOWN]]
    return [*lines, f"  … and {count - len(lines)} more"] if count > len(lines) else lines


@contextmanager
def _teller() -> Iterator[Tell]:
    """Who tells people of changes; on the error stream, so that the answer alone is on the other."""
    screen = rendering.console(stderr=True)
    if not screen.is_terminal:
        yield _lines()
        return
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn(), console=screen
    )
    task = bar.add_task("waiting for a worker", total=None)
    with Live(bar, console=screen, refresh_per_second=8, transient=True) as live:

        def tell(job: Job) -> None:
            total = 1.0 if job.tables_total else None  # a bar that only moves, while it is not known how far it is
            bar.update(task, description=described(job), completed=job.fraction_done, total=total)
            live.update(Group(bar, *(Text(line, style="red") for line in _errors(job.errors, job.message.errors))))

        yield tell


def described(job: Job) -> str:
    """What a job does now."""
    match job.state:
        case "queued":
            return "queued, waiting for a worker"
        case "running" if job.tables_total:
            tables = f"{job.tables_done:,} of {job.tables_total:,} table{'' if job.tables_total == 1 else 's'}"
            files = f", {job.files_done:,} of {job.files_total:,} files" if job.files_total else ""
            return f"{job.phase}, {tables}{files}"
        case "running":
            return "running"
    return job.state


def _lines() -> Tell:
    last = ""

    def tell(job: Job) -> None:
        nonlocal last
        failed = f", {job.message.errors:,} failed" if job.message.errors and not job.is_over else ""
        line = f"{described(job)}{failed}"
        if line != last:
            typer.echo(f"job {job.id}: {line}", err=True)
        last = line

    return tell


# --------------------
# Jobs: the work on connectors, done in the background by the server or by workers.


app = noun("jobs", __doc__)

Id = Annotated[str, typer.Argument(metavar="JOB", help="Its id.")]


class State(StrEnum):
    """How far a job can be."""

    queued = "queued"
    running = "running"
    succeeded = "succeeded"
    failed = "failed"
    cancelled = "cancelled"


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job, as it is written. Counts are those of its last attempt; `errors` are by table, the first ones.

    A job that profiles a managed table has no connector.
    """

    id: str
    connector: str | None
    table_id: str | None
    state: str
    phase: str
    tables: int
    changed: int
    failed: int
    attempt: int
    full: bool
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    took: timedelta | None
    message: str
    errors: dict[str, str]

    @classmethod
    def of(cls, job: Job, names: Mapping[str, str]) -> JobRecord:
        """What there is to tell of it, with the names of connectors by their ids."""
        told = job.message
        started, finished = job.started_at, job.finished_at
        return cls(
            job.id,
            names.get(told.connector_id.id, told.connector_id.id) or None,
            told.table_id.id or None,
            job.state,
            job.phase,
            told.tables_scanned,
            told.tables_changed,
            told.errors,
            told.attempt,
            told.full_rescan,
            job.created_at,
            started,
            finished,
            finished - started if started and finished else None,
            told.message,
            job.errors,
        )


@verb(app, "list")
def list_(
    call: Call,
    connector: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this connector.")] = None,
    state: Annotated[State | None, typer.Option(help="Only those in this state.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="How many at most.")] = 20,
) -> None:
    """List jobs, the newest first."""
    of = call.lake.connectors.get(connector).id if connector else None
    names = connector_names(call.lake)
    found = call.lake.jobs(connector=of, state=state and state.value, page_size=limit)
    records = [JobRecord.of(each, names) for each in islice(found, limit)]
    columns = ["id", "state", "connector", "tables", "failed", "took", "created_at", "changed"]
    call.rows(records, columns, nothing="there are no such jobs: skiway connectors sync begins one")


@verb(app, "get")
def get(call: Call, job: Id) -> None:
    """Show one job."""
    call.record(JobRecord.of(call.lake.jobs.get(job), connector_names(call.lake)))


@verb(app, "cancel")
def cancel(call: Call, job: Id) -> None:
    """Cancel a job that waits; tell one that runs to stop."""
    now = JobRecord.of(call.lake.jobs.cancel(job), connector_names(call.lake))
    told = {"running": "was told to stop", "cancelled": "is cancelled"}.get(now.state, f"had {now.state} before")
    call.done(f"job {now.id} {told}", now)


@verb(app, "watch")
def watch(call: Call, job: Id) -> None:
    """Follow a job to its end. Exit code 0 if all of it succeeded, else 1; Ctrl-C leaves it running."""
    # dropped import

    watched(call, call.lake.jobs.get(job))


def counted(tables: int, changed: int, failed: int) -> str:
    """What became of tables."""
    return f"{tables:,} table{'' if tables == 1 else 's'}, {changed:,} changed, {failed:,} failed"


def connector_names(lake: Metastore) -> dict[str, str]:
    """What connectors are called, by id."""
    return {str(each.id): each.name for each in lake.connectors()}


# --------------------
# Work that is begun: `skiway connectors sync`, a job that makes both passes or one pass at once.


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
        # dropped import

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
