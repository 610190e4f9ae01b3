"""`skiway accounts`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.options import key_values
from skiway.errors import InvalidArgument, NotFound

if TYPE_CHECKING:
    from skiway.client.metastore import Account

__all__ = ["app"]

app = group("accounts", "Manage accounts, which own catalogs. Platform administrators see all, others their own.")

AccountName = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Id or name, such as default.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="Description for users.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Tag; repeatable.")]
Quotas = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="KEY=NUMBER", help="Quota below the server's, such as caller.scans=4; repeatable."),
]

COLUMNS = ["id", "name", "description", "created_at"]


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account in the output."""

    id: str
    name: str
    description: str | None
    tags: dict[str, str]
    quotas: dict[str, float]
    created_at: datetime | None
    updated_at: datetime | None
    damage: str | None = None

    @classmethod
    def of(cls, account: Account) -> AccountRecord:
        """Convert a resource of the client."""
        return cls(
            str(account.id),
            account.name,
            account.description,
            dict(account.tags),
            dict(account.quotas),
            None if account.damage else account.created_at,
            None if account.damage else account.updated_at,
            account.damage or None,
        )


@command(app, "list")
def list_accounts(call: Call) -> None:
    """List the accounts that the caller may see."""
    call.print_rows(map(AccountRecord.of, call.lake.accounts()), COLUMNS, empty="there are no accounts")


@command(app, "get")
def get_account(call: Call, which: AccountName) -> None:
    """Show an account."""
    call.print_record(AccountRecord.of(_find(call, which)))


@command(app, "create")
def create_account(
    call: Call,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name for users.")],
    own_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id in tokens and paths; random by default.")
    ] = None,
    description: Description = None,
    tags: Tags = None,
    quotas: Quotas = None,
) -> None:
    """Create an empty account. Only platform administrators may."""
    pairs = key_values(tags, "--tag")
    made = call.lake.accounts.create(
        name, id=own_id, description=description, tags=pairs, quotas=_numbers(quotas) if quotas else None
    )
    created = AccountRecord.of(made)
    call.print_result(f"created account {created.id}", created)


@command(app, "update")
def update_account(
    call: Call,
    which: AccountName,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="New name.")] = None,
    description: Description = None,
    tags: Tags = None,
    quotas: Quotas = None,
) -> None:
    """Change the name, description, tags or quotas of an account.

    The given tags, or quotas, replace all others; a quota of 0 is none.
    """
    from skiway.client.metastore.collection import KEEP

    if name is None and description is None and tags is None and quotas is None:
        raise InvalidArgument("nothing to change: give --name, --description, --tag or --quota")
    changed = call.lake.accounts.update(
        _find(call, which).id,
        name=KEEP if name is None else name,
        description=KEEP if description is None else description,
        tags=KEEP if tags is None else key_values(tags, "--tag"),
        quotas=KEEP if quotas is None else _numbers(quotas),
    )
    call.print_result(f"updated account {changed.id}", AccountRecord.of(changed))


@command(app, "delete")
def delete_account(call: Call, which: AccountName) -> None:
    """Delete an account, which must be empty."""
    deleted = AccountRecord.of(_find(call, which))
    call.lake.accounts.delete(deleted.id)
    call.print_result(f"deleted account {deleted.id}", deleted)


def _numbers(given: list[str]) -> dict[str, float]:
    found = {}
    for name, text in key_values(given, "--quota", example="caller.scans=4").items():
        try:
            found[name] = float(text)
        except ValueError:
            raise typer.BadParameter(f"{name}={text} is not a number", param_hint="--quota") from None
    return {name: value for name, value in found.items() if value}


def _find(call: Call, id_or_name: str) -> Account:
    """The account with this id, or else with this name."""
    try:
        return call.lake.accounts.get(id_or_name)
    except NotFound as error:
        named = [each for each in call.lake.accounts() if each.name == id_or_name]
        if not named:
            raise error from None
        return named[0]
