"""`skiway tokens`: the static tokens of servers with `auth.mode` `token`. It works on the home of a server, not through it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import HomeCall, confirm, group, home_command
from skiway.cli.options import Yes, duration
from skiway.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from skiway.metastore.platform import AccountDirectory
    from skiway.security import Roles, TokenEntry
    from skiway.storage import Stores

app = group("tokens", "Manage access tokens, for servers with auth.mode=token.")


@home_command(app, "create")
def create_token(
    call: HomeCall,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The owner's name, which appears in logs.")],
    account: Annotated[str, typer.Option(metavar="ID", help="Account; empty for a platform role.")],
    role: Annotated[
        list[str] | None, typer.Option(metavar="ROLE", help="A role; repeatable. Without one, the token can only read.")
    ] = None,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="When the token expires, such as 90d; never by default.")
    ] = None,
) -> None:
    """Create a token and print it once.

    The tokens file stores only its hash. Running servers reload the file by themselves.
    """
    from skiway.runtime.authentication import roles as known_roles
    from skiway.security import new_token
    from skiway.security.tokens import add_token

    _check_roles(role or [], known_roles(call.settings), account=account)
    account_id = _existing(call, account) if account else ""
    expires_at = None if ttl is None else datetime.now(UTC).replace(microsecond=0) + duration(ttl, "--ttl")
    token = new_token(name, account_id, roles=role or [], expires_at=expires_at)
    path = _file(call)
    add_token(path, token.entry)
    typer.echo(f"the token was added to {path}; it is shown only once:", err=True)
    entry, text = token.entry, token.text.reveal()
    record = _named(entry) | {"roles": list(entry.roles), "expires_at": entry.expires_at, "token": text}
    call.print_result(text, record)


@home_command(app, "list")
def list_tokens(call: HomeCall) -> None:
    """List the tokens: owners, accounts, roles, expiry and last use.

    The last use is accurate to a minute.
    """
    from skiway.metastore.platform import AccountDirectory, token_uses
    from skiway.security import TokenFile

    path = _file(call)
    entries = TokenFile(path).entries() if path.exists() else ()
    records = []
    if entries:
        with _stores(call) as stores:
            accounts = None if stores is None else AccountDirectory(stores)
            uses = {} if stores is None else token_uses(stores)
            records = [_record(entry, accounts, uses) for entry in entries]
    columns = ["name", "id", "account", "roles", "state", "expires_at", "last_used_at"]
    empty = "there are no tokens; create one with: skiway tokens create NAME"
    call.print_rows(records, columns, empty=empty)


@home_command(app, "delete")
def delete_token(
    call: HomeCall,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name or id, as `skiway tokens list` shows it.")],
    every: Annotated[bool, typer.Option("--all", help="Revoke all tokens of this name.")] = False,
    yes: Yes = False,
) -> None:
    """Revoke a token. Running servers reject it from the next call on."""
    from skiway.metastore.platform import forget_token
    from skiway.security.tokens import remove_token

    confirm(f"Revoke token {name}?", yes=yes)
    removed = remove_token(_file(call), name, every=every)
    with _stores(call) as stores:
        for entry in removed:
            if stores is not None:
                forget_token(stores, entry.sha256)
            if call.is_for_people:
                typer.echo(f"revoked token {_named(entry)['id']} of {entry.name}")
    call.print_for_programs(map(_named, removed), ["name", "id", "account"])


def _named(entry: TokenEntry) -> dict[str, object]:
    from skiway.security.tokens import token_id

    return {"name": entry.name, "id": token_id(entry), "account": entry.account}


def _record(entry: TokenEntry, accounts: AccountDirectory | None, uses: Mapping[str, datetime]) -> dict[str, object]:
    if entry.expires_at is not None and entry.expires_at <= datetime.now(UTC):
        state = "expired"
    elif entry.account and accounts is not None and accounts.find(entry.account) != entry.account:
        state = "no account"
    else:
        state = "valid"
    return _named(entry) | {
        "roles": list(entry.roles),
        "state": state,
        "expires_at": entry.expires_at,
        "last_used_at": uses.get(entry.sha256),
    }


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


def _existing(call: HomeCall, account: str) -> str:
    """The id of the account with this id or name. A new store gets the account `default`, as at the start of a server."""
    from skiway.metastore.platform import AccountDirectory
    from skiway.metastore.seeding import seed_home

    with _stores(call) as stores:
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
def _stores(call: HomeCall) -> Iterator[Stores | None]:
    """The stores of the servers; None if a server keeps them in its memory."""
    from skiway.runtime.stores import store_urls, stores_of

    if store_urls(call.settings, call.home).pointers.startswith("memory"):
        yield None
        return
    with stores_of(call.settings, call.home) as stores:
        yield stores


def _file(call: HomeCall) -> Path:
    return call.settings.auth.tokens.file or call.home / "tokens.toml"
