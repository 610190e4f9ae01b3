"""Commands that maintain the stores of a server: `check`, `backup`, `restore` and `migrate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import HomeCall, group, home_command, progress
from skiway.cli.output import counted

if TYPE_CHECKING:
    from skiway.config import Settings

app = group("maintenance", None)


@home_command(app, "check")
def check(
    call: HomeCall,
    files: Annotated[
        bool, typer.Option(help="Check that the files of managed tables exist, which lists the warehouse.")
    ] = True,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair the order of times in the history of managed tables.")
    ] = False,
) -> None:
    """Check the integrity of the stores.

    Every pointer must have its blob, every resource its names, and every managed table its files. Servers may run
    at the same time. The exit code is 1 if there is a defect.
    """
    if repair and not files:
        raise typer.BadParameter("--repair repairs managed tables: leave out --no-files")
    _check(call, files=files, repair=repair, documents=True)


def _check(call: HomeCall, *, files: bool = True, repair: bool = False, documents: bool = False) -> None:
    """Check the stores, print the defects and a summary, and exit with 1 if there is a defect."""
    from skiway.metastore.maintenance import Checker, Defect
    from skiway.runtime.lake import warehouse_of
    from skiway.runtime.stores import stores_of

    settings, home = call.settings, call.existing_home
    with stores_of(settings, home, any_format=not repair) as stores, progress("checking") as bar:
        checker = Checker(stores, warehouse_of(settings) if files else None, repair=repair)
        found: list[Defect] = []
        for defect in checker.defects():
            found.append(defect)
            if call.is_for_people:
                bar.end()
                typer.echo(f"{defect.place}: {defect.problem}")
    if documents:
        call.print_for_programs(found, ["place", "problem"])
    for each in checker.repaired:
        typer.echo(f"repaired {each}", err=True)
    checked = ", ".join(counted(count, noun) for noun, count in checker.counts.items()) or "an empty store"
    typer.echo(f"checked {checked}: {counted(len(found), 'defect') if found else 'no defects'}", err=True)
    if found:
        raise typer.Exit(1)


@home_command(app, "backup")
def back_up(
    call: HomeCall, folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the backup.")]
) -> None:
    """Back up the stores while servers run.

    The backup contains everything that was committed when the command began. It has the secrets, so protect it like the
    home. The files of the warehouse are listed, but not copied.
    """
    from skiway.metastore.maintenance import write_backup
    from skiway.runtime.lake import warehouse_of
    from skiway.runtime.stores import stores_of

    settings, folder = call.settings, folder.expanduser()
    with stores_of(settings, call.existing_home, any_format=True) as stores, progress("backing up"):
        done = write_backup(stores, folder, secrets=_secrets(settings), warehouse=warehouse_of(settings))
    parts = (
        f"{counted(done.pointers, 'pointer')}, {counted(done.blobs, 'blob')} and {counted(done.secrets, 'secret file')}"
    )
    call.print_result(f"wrote {parts} to {folder}", done)
    typer.echo(
        f"the warehouse {done.warehouse} has {counted(done.warehouse_files, 'file')}, listed but not copied", err=True
    )
    for uri in done.missing:
        typer.echo(f"content is missing: {uri}", err=True)
    if done.missing:
        raise typer.Exit(1)


@home_command(app, "restore")
def restore(call: HomeCall, folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a backup.")]) -> None:
    """Restore a backup into empty stores, and check them."""
    from skiway.metastore.maintenance import restore_backup
    from skiway.runtime.lake import warehouse_of
    from skiway.runtime.stores import stores_of

    settings, folder = call.settings, folder.expanduser()
    with stores_of(settings, call.home, any_format=True) as stores, progress("restoring"):
        done = restore_backup(stores, folder, secrets=_secrets(settings), warehouse=warehouse_of(settings))
    call.print_result(f"restored {done.pointers:,} pointers and {done.blobs:,} blobs of {done.created_at}", done)
    _check(call)


@home_command(app, "migrate")
def migrate(
    call: HomeCall,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the steps, but change nothing.")] = False,
) -> None:
    """Bring the stores to the format of this version.

    Upgrade all servers and make a backup first: servers of older versions cannot use the stores any more. An interrupted
    migration continues when the command is run again.
    """
    from skiway.metastore.migrations import STEPS, pending_steps, store_format
    from skiway.metastore.migrations import migrate as run_steps
    from skiway.runtime.stores import secrets_of, stores_of

    settings = call.settings
    with stores_of(settings, call.existing_home, any_format=True) as stores:
        found = store_format(stores)
        pending = pending_steps(found, STEPS)
        state = f"the store has format {found.version}{'' if found.complete else ', incomplete'}"
        steps: list[dict[str, object]] = []
        with progress("migrating") as bar:
            for step in pending if dry_run else run_steps(stores, secrets_of(settings), STEPS):
                steps.append({"format": step.to, "title": step.title})
                if call.is_for_people:
                    bar.end()
                    typer.echo(f"format {step.to}: {step.title}")
        call.print_for_programs(steps, ["format", "title"])
        if not pending:
            typer.echo(f"{state}: there is nothing to migrate", err=True)
        elif dry_run:
            typer.echo(f"{state}: would run {counted(len(pending), 'step')}", err=True)
        else:
            typer.echo(f"the store has format {store_format(stores).version}", err=True)


def _secrets(settings: Settings) -> Path | None:
    """The folder of the secrets store, if it is one."""
    return settings.secrets.file.directory if settings.secrets.backend == "file" else None
