"""`skiway tokens`: the static tokens of servers with `auth.mode` `token`. It works on the home of a server, not through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import typer

from skiway.cli.options import load_settings
from skiway.cli.output import Output
from skiway.cli.rendering import write_record, write_records
from skiway.config import Settings
from skiway.errors import InvalidArgument, NotFound
from skiway.metastore.platform import AccountDirectory, forget_token, token_uses
from skiway.metastore.seeding import seed_home
from skiway.runtime.authentication import roles as known_roles
from skiway.runtime.stores import store_urls, stores_of
from skiway.security import Roles, TokenEntry, TokenFile, new_token
from skiway.security.tokens import add_token, remove_token, token_id
from skiway.storage import Stores


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """A token in the output."""

    name: str
    id: str
    account: str
    roles: list[str]
    state: str
    expires_at: datetime | None
    last_used_at: datetime | None


@dataclass(frozen=True, slots=True)
class NewToken:
    """A new token in the output, the only one that has its text."""

    name: str
    id: str
    account: str
    roles: list[str]
    expires_at: datetime | None
    token: str


@dataclass(frozen=True, slots=True)
class RevokedToken:
    """A token in the output that is valid no longer."""

    name: str
    id: str
    account: str


def create_token(
    home: Path,
    file: Path | None,
    given: Sequence[str],
    *,
    name: str,
    account: str,
    roles: Sequence[str],
    days: int | None,
    output: Output,
) -> None:
    """Store the hash of a new token, and print the token."""
    settings = load_settings(home, file, given)
    _check_roles(roles, known_roles(settings), account=account)
    account_id = _existing(settings, home, account) if account else ""
    expires_at = None if days is None else datetime.now(UTC).replace(microsecond=0) + timedelta(days=days)
    token = new_token(name, account_id, roles=roles, expires_at=expires_at)
    path = _file(settings, home)
    add_token(path, token.entry)
    typer.echo(f"the token was added to {path}; it is shown only once:", err=True)
    if output is Output.table:
        typer.echo(token.text.reveal())
    else:
        entry = token.entry
        made = NewToken(name, token_id(entry), entry.account, list(entry.roles), entry.expires_at, token.text.reveal())
        write_record(output, made)


def list_tokens(home: Path, file: Path | None, given: Sequence[str], *, output: Output) -> None:
    """Print all tokens of the tokens file, with their states."""
    settings = load_settings(home, file, given)
    path = _file(settings, home)
    entries = TokenFile(path).entries() if path.exists() else ()
    records: list[TokenRecord] = []
    if entries:
        with _stores(settings, home) as stores:
            accounts = None if stores is None else AccountDirectory(stores)
            uses = {} if stores is None else token_uses(stores)
            records = [_record(entry, accounts, uses) for entry in entries]
    columns = ["name", "id", "account", "roles", "state", "expires_at", "last_used_at"]
    write_records(output, records, columns, empty="there are no tokens; create one with: skiway tokens new NAME")


def revoke_token(
    home: Path, file: Path | None, given: Sequence[str], *, name: str, every: bool, output: Output
) -> None:
    """Remove a token from the tokens file."""
    settings = load_settings(home, file, given)
    removed = remove_token(_file(settings, home), name, every=every)
    with _stores(settings, home) as stores:
        for entry in removed:
            if stores is not None:
                forget_token(stores, entry.sha256)
            if output is Output.table:
                typer.echo(f"revoked token {token_id(entry)} of {entry.name}")
    if output is not Output.table:
        revoked = [RevokedToken(entry.name, token_id(entry), entry.account) for entry in removed]
        write_records(output, revoked, ["name", "id", "account"], empty="")


def _record(entry: TokenEntry, accounts: AccountDirectory | None, uses: Mapping[str, datetime]) -> TokenRecord:
    if entry.expires_at is not None and entry.expires_at <= datetime.now(UTC):
        state = "expired"
    elif entry.account and accounts is not None and accounts.find(entry.account) != entry.account:
        state = "no account"
    else:
        state = "valid"
    used = uses.get(entry.sha256)
    return TokenRecord(entry.name, token_id(entry), entry.account, list(entry.roles), state, entry.expires_at, used)


def _check_roles(given: Sequence[str], known: Roles, *, account: str) -> None:
    """Reject roles that would grant nothing: unknown ones, platform roles in an account, and account roles without one."""
    names = {role.strip().lower(): role for role in given}
    platform = known.platform_table()
    for name, role in names.items():
        if name not in known.table():
            raise InvalidArgument(f"role {role!r} does not exist: choose from {', '.join(sorted(known.table()))}")
        if account and name in platform:
            raise InvalidArgument(f"{role} is a role of the platform, not of an account: give it with --account ''")
        if not account and name not in platform:
            raise InvalidArgument(f"{role} is a role of an account: name the account with --account")
    if not account and not names:
        raise InvalidArgument(
            f"a token without an account is only for the role {' or '.join(platform)}: give an account, or that role"
        )


def _existing(settings: Settings, home: Path, account: str) -> str:
    """The id of the account with this id or name. A new store gets the account `default`, as at the start of a server."""
    with _stores(settings, home) as stores:
        if stores is None:
            return account
        seed_home(stores)
        found = AccountDirectory(stores).find(account)
    if found is None:
        raise NotFound(
            f"account {account!r} does not exist, so a token for it would be rejected: create it with "
            "`skiway accounts create`, or name an existing one (`skiway accounts list`)",
            key="account",
            id=account,
        )
    return found


@contextmanager
def _stores(settings: Settings, home: Path) -> Iterator[Stores | None]:
    """The stores of the servers; None if a server keeps them in its memory."""
    if store_urls(settings, home).pointers.startswith("memory"):
        yield None
        return
    with stores_of(settings, home) as stores:
        yield stores


def _file(settings: Settings, home: Path) -> Path:
    return settings.auth.tokens.file or home / "tokens.toml"
