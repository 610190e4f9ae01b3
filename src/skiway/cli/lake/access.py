"""`skiway accounts`, `skiway grants` and `skiway policies`: who owns catalogs, and who may see and change what."""

from __future__ import annotations

from enum import StrEnum
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command, confirm, group
from skiway.cli.lake.resources import commands_for, state_of
from skiway.cli.options import Description, TableName, Yes, key_values
from skiway.cli.rendering import fields_of
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.resources import POLICY
from skiway.presentation.tables import picked

if TYPE_CHECKING:
    from skiway.client.metastore import Account, Policy
    from skiway.client.metastore.governance import Grant, ObjectKind

accounts_app = group(
    "accounts", "Manage accounts, which own catalogs. Platform administrators see all, others their own."
)

AccountName = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Id or name, such as default.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Tag; repeatable.")]
Quotas = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="KEY=NUMBER", help="Quota below the server's, such as caller.scans=4; repeatable."),
]

ACCOUNT_COLUMNS = ["id", "name", "description", "created_at"]


def _account(account: Account) -> dict[str, Any]:
    """An account in the output."""
    return {**picked(account, "id", "name", "description", "tags", "quotas"), **state_of(account)}


@command(accounts_app, "list")
def list_accounts(call: Call) -> None:
    """List the accounts that the caller may see."""
    call.print_rows(map(_account, call.lake.accounts()), ACCOUNT_COLUMNS, empty="there are no accounts")


@command(accounts_app, "get")
def get_account(call: Call, which: AccountName) -> None:
    """Show an account."""
    call.print_record(_account(_find_account(call, which)))


@command(accounts_app, "create")
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
        name, id=own_id, description=description, tags=pairs, quotas=_quotas(quotas) if quotas else None
    )
    call.print_result(f"created account {made.id}", _account(made))


@command(accounts_app, "update")
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
    given = {
        "name": name,
        "description": description,
        "tags": None if tags is None else key_values(tags, "--tag"),
        "quotas": None if quotas is None else _quotas(quotas),
    }
    changes: Any = {key: value for key, value in given.items() if value is not None}
    if not changes:
        raise InvalidArgument("nothing to change: give --name, --description, --tag or --quota")
    changed = call.lake.accounts.update(_find_account(call, which).id, **changes)
    call.print_result(f"updated account {changed.id}", _account(changed))


@command(accounts_app, "delete")
def delete_account(call: Call, which: AccountName, yes: Yes = False) -> None:
    """Delete an account, which must be empty."""
    account = _find_account(call, which)
    confirm(f"Delete account {account.id}?", yes=yes)
    call.lake.accounts.delete(account.id)
    call.print_result(f"deleted account {account.id}", _account(account))


def _quotas(given: list[str]) -> dict[str, float]:
    found = {}
    for name, text in key_values(given, "--quota", example="caller.scans=4").items():
        try:
            found[name] = float(text)
        except ValueError:
            raise typer.BadParameter(f"{name}={text} is not a number", param_hint="--quota") from None
    return {name: value for name, value in found.items() if value}


def _find_account(call: Call, id_or_name: str) -> Account:
    """The account with this id, or else with this name."""
    try:
        return call.lake.accounts.get(id_or_name)
    except NotFound as error:
        for account in call.lake.accounts():
            if account.name == id_or_name:
                return account
        raise error from None


grants_app = group(
    "grants",
    "Grant users and roles privileges on catalogs, namespaces, tables and views, in addition to account roles.",
)


Privilege = StrEnum("Privilege", ["read", "write", "manage"])
Kind = StrEnum("Kind", ["catalog", "namespace", "table", "view"])
ObjectName = Annotated[
    str, typer.Argument(metavar="OBJECT", help="Full name, such as lake, lake.sales or lake.sales.people.")
]
Grantee = Annotated[str, typer.Option("--to", metavar="GRANTEE", help="user:<subject> or role:<name>.")]
KindOption = Annotated[
    Kind | None, typer.Option("--kind", help="What the name means, if it is the name of several objects.")
]


def _grant(call: Call, grant: Grant) -> dict[str, Any]:
    """A grant in the output, with the name of its object."""
    damage = grant.damage or None
    return {
        "object": "(unknown)" if damage else call.name_of(grant.kind, grant.object_id),
        "kind": "-" if damage else grant.kind,
        **picked(grant, "object_id", "grantee"),
        "privilege": "none" if damage else grant.privilege,
        "created_at": None if damage else grant.created_at,
        "damage": damage,
    }


@command(grants_app, "list")
def list_grants(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="OBJECT", help="Full name; all objects by default.")] = None,
    grantee: Annotated[str, typer.Option("--to", metavar="GRANTEE", help="Only those to this user or role.")] = "",
    kind: KindOption = None,
) -> None:
    """List the grants on an object, or on all objects."""
    records = [_grant(call, grant) for grant in call.lake.grants(name, kind=_kind(kind), grantee=grantee)]
    records.sort(key=itemgetter("object", "kind", "grantee"))
    columns = ["object", "kind", "grantee", "privilege", "created_at"]
    call.print_rows(records, columns, empty="there are no grants")


@command(grants_app, "create")
def create_grant(
    call: Call,
    name: ObjectName,
    grantee: Grantee,
    privilege: Annotated[
        Privilege, typer.Option("--privilege", help="manage includes write, which includes read.")
    ] = Privilege.read,
    kind: KindOption = None,
) -> None:
    """Grant a privilege on an object and everything in it.

    It replaces the privilege that the user or role has on the object.
    """
    chosen: Any = privilege.value
    grant = call.lake.grants.add(name, grantee, chosen, kind=_kind(kind))
    record = _grant(call, grant)
    call.print_result(f"{grant.grantee} may {grant.privilege} {grant.kind} {record['object']}", record)


@command(grants_app, "delete")
def delete_grant(call: Call, name: ObjectName, grantee: Grantee, kind: KindOption = None, yes: Yes = False) -> None:
    """Revoke the privilege that a user or role has on an object.

    Privileges on what contains the object remain.
    """
    confirm(f"Revoke the grant on {name} to {grantee}?", yes=yes)
    revoked = call.lake.grants.revoke(name, grantee, kind=_kind(kind))
    outcome = f"revoked the grant on {name} to {grantee}" if revoked else f"{grantee} has no grant on {name} itself"
    call.print_result(outcome, {"object": name, "grantee": grantee, "revoked": revoked})


def _kind(kind: Kind | None) -> ObjectKind | None:
    chosen: Any = kind and kind.value
    return chosen  # type: ignore[no-any-return]


def _shown_policy(call: Call, policy: Policy) -> dict[str, Any]:
    """A policy with the names of its objects in the place of their ids."""
    record = {**fields_of(policy), "on": [call.name_of(kind, object_id) for kind, object_id in policy.objects]}
    del record["objects"]
    return record


policies_app = commands_for(POLICY, shown=_shown_policy)


@command(policies_app, "tags")
def list_tags(call: Call, table: TableName) -> None:
    """List the tags of a table's columns."""
    records = [{"column": column, "tags": tags} for column, tags in call.lake.policies.tags(table).items()]
    call.print_rows(records, ["column", "tags"], empty="no column has a tag")


@command(policies_app, "tag")
def tag_column(
    call: Call,
    table: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The name of a column.")],
    tags: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags, such as pii; without any, they are removed.")
    ] = None,
) -> None:
    """Replace the tags of a column, which it keeps when it is renamed."""
    call.lake.policies.tag(table, column, tags or [])
    outcome = f"tagged {table}.{column}: {', '.join(tags)}" if tags else f"removed the tags of {table}.{column}"
    call.print_result(outcome, {"column": column, "tags": tags or []})
