"""Commands that maintain the stores of a server: `check`, `backup`, `restore` and `migrate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from skiway.cli.command import progress
from skiway.cli.options import load_settings, require_home
from skiway.cli.output import Output
from skiway.cli.rendering import write_record, write_records
from skiway.metastore.maintenance import Checker, Defect, restore_backup, write_backup
from skiway.metastore.migrations import STEPS, pending_steps, store_format
from skiway.metastore.migrations import migrate as run_steps
from skiway.runtime.lake import warehouse_of
from skiway.runtime.stores import secrets_of, stores_of

if TYPE_CHECKING:
    from skiway.config import Settings


def check(home: Path, file: Path | None, given: Sequence[str], *, files: bool, repair: bool, output: Output) -> None:
    """Check the stores; print a line for each defect, and exit with 1 if there is any."""
    settings = load_settings(home, file, given)
    require_home(home)
    if repair and not files:
        raise typer.BadParameter("--repair repairs managed tables: leave out --no-files")
    if _check(settings, home, files=files, repair=repair, output=output):
        raise typer.Exit(1)


def _check(
    settings: Settings, home: Path, *, files: bool, repair: bool = False, output: Output | None = Output.table
) -> int:
    """Check the stores, print the summary and, if `output` is given, the defects; return the number of defects."""
    with stores_of(settings, home, any_format=not repair) as stores, progress("checking") as bar:
        checker = Checker(stores, warehouse_of(settings) if files else None, repair=repair)
        found: list[Defect] = []
        for defect in checker.defects():
            found.append(defect)
            if output is Output.table:
                bar.end()
                typer.echo(f"{defect.place}: {defect.problem}")
    if output not in (None, Output.table):
        write_records(output, found, ["place", "problem"], empty="")
    for each in checker.repaired:
        typer.echo(f"repaired {each}", err=True)
    checked = ", ".join(_count(count, noun) for noun, count in checker.counts.items()) or "an empty store"
    typer.echo(f"checked {checked}: {_count(len(found), 'defect') if found else 'no defects'}", err=True)
    return len(found)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def back_up(home: Path, file: Path | None, given: Sequence[str], folder: Path, *, output: Output) -> None:
    """Write a backup into a new folder."""
    settings = load_settings(home, file, given)
    require_home(home)
    with stores_of(settings, home, any_format=True) as stores, progress("backing up"):
        done = write_backup(stores, folder, secrets=_secrets(settings), warehouse=warehouse_of(settings))
    parts = (
        f"{_count(done.pointers, 'pointer')}, {_count(done.blobs, 'blob')} and {_count(done.secrets, 'secret file')}"
    )
    if output is Output.table:
        typer.echo(f"wrote {parts} to {folder}")
    else:
        write_record(output, done)
    typer.echo(
        f"the warehouse {done.warehouse} has {_count(done.warehouse_files, 'file')}, listed but not copied", err=True
    )
    for uri in done.missing:
        typer.echo(f"content is missing: {uri}", err=True)
    if done.missing:
        raise typer.Exit(1)


def restore(home: Path, file: Path | None, given: Sequence[str], folder: Path, *, output: Output) -> None:
    """Restore a backup into an empty home, and check the result."""
    settings = load_settings(home, file, given)
    with stores_of(settings, home, any_format=True) as stores, progress("restoring"):
        done = restore_backup(stores, folder, secrets=_secrets(settings), warehouse=warehouse_of(settings))
    if output is Output.table:
        typer.echo(f"restored {done.pointers:,} pointers and {done.blobs:,} blobs of {done.created_at}")
        defects = _check(settings, home, files=True)
    else:
        write_record(output, done)
        defects = _check(settings, home, files=True, output=None)
    if defects:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step of a migration in the output."""

    format: int
    title: str


def migrate(home: Path, file: Path | None, given: Sequence[str], *, dry_run: bool, output: Output) -> None:
    """Bring the stores to the format of this version; print each step."""
    settings = load_settings(home, file, given)
    require_home(home)
    with stores_of(settings, home, any_format=True) as stores:
        found = store_format(stores)
        pending = pending_steps(found, STEPS)
        state = f"the store has format {found.version}{'' if found.complete else ', incomplete'}"
        steps: list[StepRecord] = []
        with progress("migrating") as bar:
            for step in pending if dry_run else run_steps(stores, secrets_of(settings), STEPS):
                steps.append(StepRecord(step.to, step.title))
                if output is Output.table:
                    bar.end()
                    typer.echo(f"format {step.to}: {step.title}")
        if output is not Output.table:
            write_records(output, steps, ["format", "title"], empty="")
        if not pending:
            typer.echo(f"{state}: there is nothing to migrate", err=True)
        elif dry_run:
            typer.echo(f"{state}: would run {_count(len(pending), 'step')}", err=True)
        else:
            typer.echo(f"the store has format {store_format(stores).version}", err=True)


def _secrets(settings: Settings) -> Path | None:
    """The folder of the secrets store, if it is one."""
    return settings.secrets.file.directory if settings.secrets.backend == "file" else None
