"""`skiway jobs`, and the jobs that other commands start: their output, progress and exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.output import counted
from skiway.errors import PermissionDenied
from skiway.presentation.tables import format_size, picked

if TYPE_CHECKING:
    from skiway.client.metastore import Job, Metastore
    from skiway.model import v1

PARTIAL: Final = 3
INTERRUPTED: Final = 130
MAX_ERRORS: Final = 10

app = group("jobs", "Manage jobs, which sync connectors, and profile and maintain tables in the background.")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="Job id.")]
Watch = Annotated[bool, typer.Option("--watch/--no-watch", "-w", help="Follow the job until it ends.")]
Reporter = Callable[["Job"], None]


State = StrEnum("State", ["queued", "running", "succeeded", "partial", "failed", "cancelled"])


def job_record(job: Job, names: Mapping[str, str]) -> dict[str, Any]:
    """A job in the output. The counts are those of the last attempt; `errors` has the first errors by table.

    A job that profiles a managed table has no connector. `progress` is that of a job that has not ended. `names` are those of
    connectors by id.
    """
    message, started, finished = job.message, job.started_at, job.finished_at
    return {
        "id": job.id,
        "connector": names.get(message.connector_id.id, message.connector_id.id) or None,
        "table_id": message.table_id.id or None,
        **picked(job, "state", "phase"),
        **picked(
            message, "tables=tables_scanned", "changed=tables_changed", "failed=errors", "attempt", "full=full_rescan"
        ),
        **picked(job, "created_at", "started_at", "finished_at"),
        "took": finished - started if started and finished else None,
        "message": message.message,
        "errors": job.errors,
        "damage": job.damage or None,
        "progress": None if job.is_over or job.damage else describe_progress(job),
        "spark_ui": job.spark_ui or None,
    }


@command(app, "list")
def list_(
    call: Call,
    connector: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this connector.")] = None,
    state: Annotated[State | None, typer.Option(help="Only jobs in this state.")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Maximum number of jobs.")] = 20,
) -> None:
    """List jobs, newest first."""
    connector_id = call.lake.connectors.get(connector).id if connector else None
    names = connector_names(call.lake)
    found = call.lake.jobs(connector=connector_id, state=state and state.value, page_size=limit)
    records = [job_record(each, names) for each in islice(found, limit)]
    columns = ["id", "state", "connector", "tables", "failed", "took", "created_at", "changed"]
    call.print_rows(records, columns, empty="there are no such jobs; start one with: skiway connectors sync")


@command(app, "get")
def get(call: Call, job: JobId) -> None:
    """Show a job."""
    call.print_record(job_record(call.lake.jobs.get(job), connector_names(call.lake)))


@command(app, "log")
def log(call: Call, job: JobId) -> None:
    """Print the log of a job, which is kept at the end of each attempt."""
    found = call.lake.jobs.get(job)
    text = call.lake.jobs.log(found)
    if call.is_for_people and not text:
        typer.echo(f"job {found.id} is {found.state} and has no log yet; a log is kept when an attempt ends", err=True)
    elif call.is_for_people:
        typer.echo(text, nl=False)
    else:
        call.print_record({"id": found.id, "state": found.state, "log": text})


@command(app, "cancel")
def cancel(call: Call, job: JobId) -> None:
    """Cancel a queued job, or ask a running one to stop."""
    cancelled = call.lake.jobs.cancel(job)
    results = {"running": "is stopping", "cancelled": "is cancelled"}
    outcome = results.get(cancelled.state, f"has already {_ended(cancelled.state)}")
    call.print_result(f"job {cancelled.id} {outcome}", job_record(cancelled, connector_names(call.lake)))


@command(app, "watch")
def watch(call: Call, job: JobId) -> None:
    """Follow a job until it ends.

    The exit code is 0 if all of it succeeded, 3 if some tables failed, else 1. Ctrl-C does not stop the job.
    """
    follow(call, call.lake.jobs.get(job))


def connector_names(lake: Metastore) -> dict[str, str]:
    """Return the names of all connectors by id; none for callers who may read tables but not manage connectors."""
    try:
        return {str(each.id): each.name for each in lake.connectors()}
    except PermissionDenied:
        return {}


# -- jobs that other commands start ------------------------------------------------------------------------------------


def report_start(call: Call, job: Job, names: Mapping[str, str], *, watch: bool) -> None:
    """Print that a job was started or, with `watch`, follow it."""
    if watch:
        follow(call, job)
        return
    call.print_result(
        f"job {job.id} is {job.state}; follow it with: skiway jobs watch {job.id}", job_record(job, names)
    )


def follow(call: Call, job: Job) -> None:
    """Report the progress of a job until it ends, and exit as `report_end` does. Ctrl-C does not stop the job."""
    advice = f"follow it with `skiway jobs watch {job.id}`, or cancel it with `skiway jobs cancel {job.id}`"
    with interruptible(job, advice), _progress_reporter() as report:
        ended = call.lake.jobs.wait(job, on_change=report)
    report_end(call, ended, connector_names(call.lake))


@contextmanager
def interruptible(job: Job, advice: str) -> Iterator[None]:
    """Let Ctrl-C end the wait for a job, and say that the job itself keeps running."""
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(f"job {job.id} keeps running: {advice}", err=True)
        raise typer.Exit(INTERRUPTED) from None


def run_to_end(
    call: Call,
    job: Job,
    wait: Callable[..., Job],
    *,
    watch: bool,
    figures: Callable[[Job], Mapping[str, Any]] | None = None,
) -> None:
    """Print the result of a job that a command started; with `watch`, at its end. Exit with 1 if it failed.

    `wait` waits for the job. `figures` returns what the job has done, for programs.
    """
    if watch:
        with interruptible(job, f"cancel it with `skiway jobs cancel {job.id}`"):
            job = wait(job, on_change=_line_reporter(with_end=False))
    record = job_record(job, {})
    message = job.message.message or f"follow it with: skiway jobs watch {job.id}"
    call.print_result(f"job {job.id} {job.state}: {message}", {"job": record, **figures(job)} if figures else record)
    if job.is_over and job.state != "succeeded":
        raise typer.Exit(1)


def report_end(call: Call, job: Job, names: Mapping[str, str]) -> None:
    """Print the result of a job that has ended; exit with 3 if some tables failed, and with 1 if it failed."""
    message, failed = job.message, job.message.errors
    figures = f": {counts(message)}" if message.tables_scanned else ""
    outcome = f"job {job.id} {_ended(job.state)}{figures}"
    call.print_result(outcome, job_record(job, names))
    if call.is_for_people:
        for line in _error_lines(job.errors, failed) or ([message.message] if message.message else []):
            typer.echo(line, err=True)
    if job.state == "partial":
        raise typer.Exit(PARTIAL)
    if job.state != "succeeded" or failed:
        raise typer.Exit(1)


def _ended(state: str) -> str:
    return "succeeded only in part" if state == "partial" else state


def counts(pass_: v1.Job | v1.SyncCaptureResponse) -> str:
    """How many tables a job or a pass has processed, changed and failed to process."""
    return f"{counted(pass_.tables_scanned, 'table')}, {pass_.tables_changed:,} changed, {pass_.errors:,} failed"


def _error_lines(errors: dict[str, str], count: int) -> list[str]:
    lines = [f"  {table}: {message}" for table, message in list(errors.items())[:MAX_ERRORS]]
    return [*lines, f"  … and {count - len(lines)} more"] if count > len(lines) else lines


# -- progress ----------------------------------------------------------------------------------------------------------


@contextmanager
def _progress_reporter() -> Iterator[Reporter]:
    """A progress bar on a terminal, else a line for each change; on stderr, so that stdout has only the result."""
    from skiway.cli import rendering

    screen = rendering.console(stderr=True)
    if not screen.is_terminal:
        yield _line_reporter()
        return
    from rich.console import Group
    from rich.live import Live
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.text import Text

    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn(), console=screen
    )
    task = bar.add_task("waiting for a worker", total=None)
    with Live(bar, console=screen, refresh_per_second=8, transient=True) as live:

        def report(job: Job) -> None:
            total = 1.0 if job.tables_total else None  # without a total the bar only pulses
            bar.update(task, description=describe_progress(job), completed=job.fraction_done, total=total)
            live.update(Group(bar, *(Text(line, style="red") for line in _error_lines(job.errors, job.message.errors))))

        yield report


def _line_reporter(*, with_end: bool = True) -> Reporter:
    """Print a line for each change; the state at the end is also the result of some commands, so that they leave it out."""
    last = ""

    def report(job: Job) -> None:
        nonlocal last
        failed = f", {job.message.errors:,} failed" if job.message.errors and not job.is_over else ""
        line = f"{describe_progress(job)}{failed}"
        if line != last and (with_end or not job.is_over):
            typer.echo(f"job {job.id}: {line}", err=True)
        last = line

    return report


def describe_progress(job: Job) -> str:
    """Return the state of a job in a few words, such as `metadata, 1 of 3 tables`."""
    match job.state:
        case "queued" if job.message.attempt:
            return f"attempt {job.message.attempt} failed, waiting for the next one"
        case "queued":
            return "queued, waiting for a worker"
        case "running" if job.tables_total:
            tables = f"{job.tables_done:,} of {counted(job.tables_total, 'table')}"
            files = f", {job.files_done:,} of {job.files_total:,} files" if job.files_total else ""
            rows = f", {job.rows_done:,} of {job.rows_total:,} rows" if job.rows_total else ""
            sizes = f", {format_size(job.bytes_done)} of {format_size(job.bytes_total)}" if job.bytes_total else ""
            left = f", about {_rounded(job.remaining)} left" if job.remaining is not None else ""
            return f"{job.phase or 'running'}, {tables}{files}{rows}{sizes}{left}"
        case "running":
            return "running"
    return job.state


def _rounded(time: timedelta) -> str:
    """A duration in its two largest units, such as `3 min` or `2 h 5 min`."""
    seconds = round(time.total_seconds())
    if seconds < 60:
        return f"{seconds} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
