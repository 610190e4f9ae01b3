"""Commands that run or administer a server: `serve`, `worker`, `gc`, `config` and `tokens`."""

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
from skiway.cli.options import key_values, load_settings, prepare_grpc
from skiway.config import FILE_NAME, Settings, shown, store_urls
from skiway.config.settings import SHORT_FORMS
from skiway.config.sources import from_environment, from_file, from_flags
from skiway.errors import InvalidArgument, Unavailable
from skiway.runtime.authentication import roles as known_roles
from skiway.runtime.gc.sweeps import once_round
from skiway.runtime.lake import warehouse_of
from skiway.runtime.stores import secrets_of, stores_of
from skiway.security import Roles, TokenEntry, TokenFile, new_token

__all__ = ["collect_garbage", "create_token", "serve", "show_settings", "work"]

AUTH = {
    "dev": "dev: every caller can do everything",
    "token": "token; create one with: skiway tokens new NAME --account default --role administrator",
    "oidc": "tokens of an identity provider",
}
NOUNS = {"cas": "blob", "pointer": "pointer", "jobs": "job", "secrets": "secret", "warehouse": "file"}
UNFOLDED = 10_000


def serve(home: Path, file: Path | None, given: Sequence[str], *, ready_file: Path | None) -> None:
    """Run the server until a signal stops it."""
    settings = load_settings(home, file, given)
    prepare_grpc()
    from skiway.runtime import process

    console = Console(file=sys.stderr)

    def greet(addresses: Mapping[str, str]) -> None:
        if console.is_terminal:
            console.print(_banner(settings, home, addresses), soft_wrap=True)

    process.serve(settings, home, ready_file=ready_file or home / READY_FILE, on_ready=greet)


def _banner(settings: Settings, home: Path, addresses: Mapping[str, str]) -> Text:
    """The addresses of a server, and how to connect to it."""
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


# -- worker ------------------------------------------------------------------------------------------------------------


def work(home: Path, file: Path | None, given: Sequence[str]) -> None:
    """Run jobs until a signal stops the worker; unfinished jobs are returned to the queue."""
    settings = load_settings(home, file, given)
    _check_home(home)
    _check_shared(settings, home)
    from skiway.runtime import workers

    console = Console(file=sys.stderr)

    def greet() -> None:
        if console.is_terminal:
            console.print("[bold]skiway worker[/bold] is waiting for jobs; stop it with Ctrl-C", highlight=False)

    workers.work(settings, home, on_ready=greet)


def _check_home(home: Path) -> None:
    if not home.is_dir():
        raise InvalidArgument(f"there is no home {home}: give the home of your server with --home")


def _check_shared(settings: Settings, home: Path) -> None:
    """Reject stores in memory, which other processes cannot share."""
    urls = store_urls(settings, home)
    stores = {"kv": urls.pointers, "blob": urls.blobs, "secrets": settings.secrets.backend}
    for name, url in stores.items():
        if url.startswith("memory"):
            raise InvalidArgument(
                f"a worker must share its stores with a server, but {name} is in memory: give the home and settings of "
                "your server with --home, --config and --set",
                key="worker.store.memory",
            )


# -- gc ----------------------------------------------------------------------------------------------------------------


def collect_garbage(home: Path, file: Path | None, given: Sequence[str], *, dry_run: bool) -> None:
    """Sweep the whole store once; print a line for everything that is, or would be, deleted."""
    settings = load_settings(home, file, given)
    _check_home(home)
    deleted, damaged = Counter[str](), 0
    warehouse = warehouse_of(settings) if settings.gc.warehouse.enabled else None
    with stores_of(settings, home) as stores:
        for sweep, result in once_round(
            stores, secrets_of(settings), settings.gc, dry_run=dry_run, warehouse=warehouse
        ):
            deleted[sweep] += len(result.removed)
            damaged += len(result.damaged)
            for name in result.removed:
                typer.echo(f"{NOUNS[sweep]}  {name}")
            for name in result.damaged:
                typer.echo(f"content is missing: {name}", err=True)
    counts = _join_counts((deleted[sweep], noun) for sweep, noun in NOUNS.items())
    typer.echo(f"{'would delete' if dry_run else 'deleted'} {counts}", err=True)
    if damaged:
        raise typer.Exit(1)


def _join_counts(counts: Iterable[tuple[int, str]]) -> str:
    """Return text such as `0 blobs, 1 pointer and 2 secrets`."""
    *most, last = (f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    return f"{', '.join(most)} and {last}"


# -- config ------------------------------------------------------------------------------------------------------------


def show_settings(home: Path, file: Path | None, given: Sequence[str], *, as_json: bool) -> None:
    """Print all settings with their values and origins."""
    values = shown(load_settings(home, file, given))
    origins = _origins(home, file, given)
    rows = [(key, value, origins.get(key, "default")) for key, value in values.items()]
    if as_json:
        entries = [{"key": key, "value": value, "origin": origin} for key, value, origin in rows]
        typer.echo(json.dumps(entries, indent=2))
        return
    _print_table(rows)


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    """Wrap lines on a terminal; in a pipe or file, print one line per setting."""
    setting = Column("setting", min_width=max(len(key) for key, _, _ in rows))
    table = Table(
        setting, Column("value", overflow="fold"), Column("origin", overflow="fold"), box=None, pad_edge=False
    )
    for key, value, origin in rows:
        table.add_row(*map(Text, (key, value, origin)), style="dim" if origin == "default" else "bold")
    Console(width=None if sys.stdout.isatty() else UNFOLDED).print(table)


def _origins(home: Path, file: Path | None, given: Sequence[str]) -> dict[str, str]:
    """The origin of each setting that does not have its default."""
    found = file or home / FILE_NAME
    sources = (
        from_file(found) if file or found.is_file() else (),
        from_environment(os.environ),
        from_flags(key_values(given, "--set")),
    )
    return {SHORT_FORMS.get(each.key, each.key): each.origin for each in chain.from_iterable(sources)}


# -- tokens ------------------------------------------------------------------------------------------------------------


def create_token(
    home: Path,
    file: Path | None,
    given: Sequence[str],
    *,
    name: str,
    account: str,
    roles: Sequence[str],
    days: int | None,
) -> None:
    """Store the hash of a new token, and print the token."""
    settings = load_settings(home, file, given)
    _check_roles(roles, known_roles(settings), account=account)
    path = settings.auth.tokens.file or home / "tokens.toml"
    expires_at = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    token = new_token(name, account, roles=roles, expires_at=expires_at)
    _append_token(token.entry, path)
    typer.echo(f"the token was added to {path}; it is shown only once:", err=True)
    typer.echo(token.text.reveal())


def _check_roles(given: Sequence[str], known: Roles, *, account: str) -> None:
    """Reject unknown roles, which would grant nothing."""
    for role in given:
        if role.strip().lower() not in known.table():
            raise InvalidArgument(f"role {role!r} does not exist: choose from {', '.join(sorted(known.table()))}")
    if not account and known.platform_admin not in given:
        raise InvalidArgument(
            f"a token without an account is only for the role {known.platform_admin}: give an account, or that role"
        )


def _append_token(entry: TokenEntry, path: Path) -> None:
    if path.suffix.lower() == ".json":
        raise InvalidArgument(f"cannot add tokens to the JSON file {path}: use a TOML file")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Appended with one write, so that readers never see half an entry, and concurrent commands both succeed.
        with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600), "rb+", buffering=0) as tokens:
            TokenFile(path)  # raises if the existing content is invalid
            tokens.write(f"\n{entry.toml()}".encode())
    except OSError as error:
        raise Unavailable(f"cannot write the tokens file {path}: {error.strerror}") from error
