"""`skiway gc`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from skiway.cli.settings_of import settings_of
from skiway.errors import InvalidArgument
from skiway.runtime.gc_sweeps import once_round
from skiway.runtime.lake import warehouse_of
from skiway.runtime.secret_keeping import secrets_of
from skiway.runtime.stores import stores_of

__all__ = ["collect"]

NOUNS = {"cas": "blob", "pointer": "pointer", "jobs": "job", "secrets": "secret", "warehouse": "file"}


def collect(home: Path, file: Path | None, given: Sequence[str], *, dry_run: bool) -> None:
    """Go once through the store; every line names what goes, or would."""
    settings = settings_of(home, file, given)
    if not home.is_dir():
        raise InvalidArgument(f"there is no home {home}: name the one of your server with --home")
    removed, damaged = Counter[str](), 0
    warehouse = warehouse_of(settings) if settings.gc.warehouse.enabled else None
    with stores_of(settings, home) as stores:
        for sweep, done in once_round(stores, secrets_of(settings), settings.gc, dry_run=dry_run, warehouse=warehouse):
            removed[sweep] += len(done.removed)
            damaged += len(done.damaged)
            for name in done.removed:
                typer.echo(f"{NOUNS[sweep]}  {name}")
            for name in done.damaged:
                typer.echo(f"its content is lost: {name}", err=True)
    counts = described((removed[sweep], noun) for sweep, noun in NOUNS.items())
    typer.echo(f"{'would remove' if dry_run else 'removed'} {counts}", err=True)
    if damaged:
        raise typer.Exit(1)


def described(counts: Iterable[tuple[int, str]]) -> str:
    """Such as `0 blobs, 1 pointer and 2 secrets`."""
    *most, last = (f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return f"{', '.join(most)} and {last}"
