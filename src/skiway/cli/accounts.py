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

COLUMNS = ["id", "name", "description", "created_at"]


@dataclass(frozen=True, slots=True)
class AccountRecord:
    """An account in the output."""

    id: str
    name: str
    description: str | None
    tags: dict[str, str]
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
) -> None:
    """Create an empty account. Only platform administrators may."""
    pairs = key_values(tags, "--tag")
    created = AccountRecord.of(call.lake.accounts.create(name, id=own_id, description=description, tags=pairs))
    call.print_result(f"created account {created.id}", created)


@command(app, "update")
def update_account(
    call: Call,
    which: AccountName,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="New name.")] = None,
    description: Description = None,
    tags: Tags = None,
) -> None:
    """Change the name, description or tags of an account."""
    from skiway.client.metastore.collection import KEEP

    if name is None and description is None and tags is None:
        raise InvalidArgument("nothing to change: give --name, --description or --tag")
    changed = call.lake.accounts.update(
        _find(call, which).id,
        name=KEEP if name is None else name,
        description=KEEP if description is None else description,
        tags=KEEP if tags is None else key_values(tags, "--tag"),
    )
    call.print_result(f"updated account {changed.id}", AccountRecord.of(changed))


@command(app, "delete")
def delete_account(call: Call, which: AccountName) -> None:
    """Delete an account, which must be empty."""
    deleted = AccountRecord.of(_find(call, which))
    call.lake.accounts.delete(deleted.id)
    call.print_result(f"deleted account {deleted.id}", deleted)


def _find(call: Call, id_or_name: str) -> Account:
    """The account with this id, or else with this name."""
    try:
        return call.lake.accounts.get(id_or_name)
    except NotFound as error:
        named = [each for each in call.lake.accounts() if each.name == id_or_name]
        if not named:
            raise error from None
        return named[0]
