"""`skiway serve`."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from skiway import __version__
from skiway.cli.command import READY_FILE
from skiway.cli.options import flags, prepare_grpc, settings_of
from skiway.config import FILE_NAME, Settings, shown, store_urls
from skiway.config.settings import SHORT_FORMS
from skiway.config.sources import from_environment, from_file, from_flags
from skiway.errors import InvalidArgument, Unavailable
from skiway.runtime.authentication import roles as known_roles
from skiway.runtime.gc.sweeps import once_round
from skiway.runtime.lake import warehouse_of
from skiway.runtime.stores import secrets_of, stores_of
from skiway.security import Roles, TokenEntry, TokenFile, new_token

__all__ = ["collect", "new", "serve", "show", "work"]

AUTH = {
    "dev": "dev: whoever reaches it may do everything",
    "token": "tokens; make one with: skiway tokens new NAME --account default --role administrator",
    "oidc": "tokens of an identity provider",
}


def serve(home: Path, file: Path | None, given: Sequence[str], *, ready_file: Path | None) -> None:
    """Run the server until a signal ends it."""
    settings = settings_of(home, file, given)
    prepare_grpc()
    from skiway.runtime import process

    console = Console(file=sys.stderr)

    def greet(addresses: Mapping[str, str]) -> None:
        if console.is_terminal:
            console.print(banner(settings, home, addresses), soft_wrap=True)

    process.serve(settings, home, ready_file=ready_file or home / READY_FILE, on_ready=greet)


def banner(settings: Settings, home: Path, addresses: Mapping[str, str]) -> Text:
    """What a person wants to know who just started a server."""
    facts = {
        **addresses,
        "home": str(home),
        "auth": AUTH[settings.auth.mode],
        "duckdb": f"ATTACH 'lake' (TYPE airport, LOCATION '{addresses['airport']}');",
        "python": f'from skiway.client import Metastore; Metastore("{addresses["rpc"]}")',
        "stop": "Ctrl-C",
    }
    lines = [(f"\n  {name:<8}{fact}", "") for name, fact in facts.items()]
    return Text.assemble(("skiway", "bold"), f" {__version__}", *lines)


# --------------------
# `skiway worker`.


def work(home: Path, file: Path | None, given: Sequence[str]) -> None:
    """Work on jobs until a signal ends it; what is under way then is given back."""
    settings = settings_of(home, file, given)
    if not home.is_dir():
        raise InvalidArgument(f"there is no home {home}: name the one of your server with --home")
    _check_shared(settings, home)
    from skiway.runtime import workers

    console = Console(file=sys.stderr)

    def greet() -> None:
        if console.is_terminal:
            console.print("[bold]skiway worker[/bold] waits for jobs; stop it with Ctrl-C", highlight=False)

    workers.work(settings, home, on_ready=greet)


def _check_shared(settings: Settings, home: Path) -> None:
    """A worker is of use where others put jobs and keep their secrets."""
    urls = store_urls(settings, home)
    kept = {"kv": urls.pointers, "blob": urls.blobs, "secrets": settings.secrets.backend}
    for name, place in kept.items():
        if place.startswith("memory"):
            raise InvalidArgument(
                f"a worker shares its stores with servers, but {name} is kept in memory, which is one process's own: name"
                " the home and settings of your server with --home, --config and --set",
                key="worker.store.memory",
            )


# --------------------
# `skiway gc`.


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


# --------------------
# `skiway config`.


UNFOLDED = 10_000


def show(home: Path, file: Path | None, given: Sequence[str], *, as_json: bool) -> None:
    """Print every setting with its value and origin."""
    values = shown(settings_of(home, file, given))
    origins = _origins(home, file, given)
    rows = [(key, value, origins.get(key, "default")) for key, value in values.items()]
    if as_json:
        entries = [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]
        typer.echo(json.dumps(entries, indent=2))
        return
    _print_table(rows)


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    """Folded to the terminal; elsewhere one line per setting, for grep."""
    setting = Column("setting", min_width=max(len(key) for key, _, _ in rows))
    table = Table(
        setting, Column("value", overflow="fold"), Column("origin", overflow="fold"), box=None, pad_edge=False
    )
    for key, value, origin in rows:
        table.add_row(*map(Text, (key, value, origin)), style="dim" if origin == "default" else "bold")
    Console(width=None if sys.stdout.isatty() else UNFOLDED).print(table)


def _origins(home: Path, file: Path | None, given: Sequence[str]) -> dict[str, str]:
    """Where each setting was set that is not as it is by default."""
    found = file or home / FILE_NAME
    sources = (
        from_file(found) if file or found.is_file() else (),
        from_environment(os.environ),
        from_flags(flags(given)),
    )
    return {SHORT_FORMS.get(each.key, each.key): each.origin for each in chain.from_iterable(sources)}


# --------------------
# `skiway tokens new`.


def new(
    home: Path,
    file: Path | None,
    given: Sequence[str],
    *,
    name: str,
    account: str,
    roles: Sequence[str],
    days: int | None,
) -> None:
    """Keep the hash of a new token, and print the token."""
    settings = settings_of(home, file, given)
    _check_roles(roles, known_roles(settings), account=account)
    path = settings.auth.tokens.file or home / "tokens.toml"
    expires_at = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    made = new_token(name, account, roles=roles, expires_at=expires_at)
    _keep(made.entry, path)
    typer.echo(f"{path} knows this token now. It is shown only here:", err=True)
    typer.echo(made.text.reveal())


def _check_roles(asked: Sequence[str], known: Roles, *, account: str) -> None:
    """A role that nobody knows would grant nothing, and its owner would wonder why."""
    for role in asked:
        if role.strip().lower() not in known.table():
            raise InvalidArgument(f"there is no role {role!r}: choose from {', '.join(sorted(known.table()))}")
    if not account and known.platform_admin not in asked:
        raise InvalidArgument(
            f"a token without an account is for the role {known.platform_admin} only: name an account, or that role"
        )


def _keep(entry: TokenEntry, path: Path) -> None:
    if path.suffix.lower() == ".json":
        raise InvalidArgument(f"the tokens file {path} is JSON, and tokens are added to TOML only: use tokens.toml")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Appended in one write, so that no reader sees half of it, and of two who do this at once both succeed.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "rb+", buffering=0) as tokens:
            TokenFile(path)  # what is there must be right, or nobody could tell which entry was wrong
            tokens.write(f"\n{entry.toml()}".encode())
    except OSError as error:
        raise Unavailable(f"the tokens file {path} cannot be written: {error.strerror}") from error
