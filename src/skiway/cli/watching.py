"""A job followed to its end: a bar on a terminal, a line for each change elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import typer
from rich.console import Group
from rich.live import Live
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from skiway.cli import rendering
from skiway.cli.jobs import JobRecord, connector_names, counted

if TYPE_CHECKING:
    from skiway.cli.calling import Call
    from skiway.client.metastore import Job

__all__ = ["described", "finished", "watched"]

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
