"""`skiway tokens new`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer

from skiway.cli.settings_of import settings_of
from skiway.errors import InvalidArgument, Unavailable
from skiway.runtime.entrance import roles as known_roles
from skiway.security import Roles, TokenEntry, TokenFile, new_token

__all__ = ["new"]


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
