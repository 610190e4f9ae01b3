"""`skiway accounts`, `skiway grants` and `skiway policies`: who owns catalogs, and who may see and change what."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.lake.resources import commands_for
from skiway.cli.options import key_values
from skiway.cli.rendering import fields_of
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.resources import POLICY

if TYPE_CHECKING:
    from skiway.client.metastore import Account, Policy
    from skiway.client.metastore.governance import Grant, ObjectKind

accounts_app = group(
    "accounts", "Manage accounts, which own catalogs. Platform administrators see all, others their own."
)

AccountName = Annotated[str, typer.Argument(metavar="ACCOUNT", help="Id or name, such as default.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="Description for users.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="Tag; repeatable.")]
Quotas = Annotated[
    list[str] | None,
    typer.Option("--quota", metavar="KEY=NUMBER", help="Quota below the server's, such as caller.scans=4; repeatable."),
]

ACCOUNT_COLUMNS = ["id", "name", "description", "created_at"]


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


@command(accounts_app, "list")
def list_accounts(call: Call) -> None:
    """List the accounts that the caller may see."""
    call.print_rows(map(AccountRecord.of, call.lake.accounts()), ACCOUNT_COLUMNS, empty="there are no accounts")


@command(accounts_app, "get")
def get_account(call: Call, which: AccountName) -> None:
    """Show an account."""
    call.print_record(AccountRecord.of(_find_account(call, which)))


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
    created = AccountRecord.of(made)
    call.print_result(f"created account {created.id}", created)


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
    from skiway.client.metastore.collection import KEEP

    if name is None and description is None and tags is None and quotas is None:
        raise InvalidArgument("nothing to change: give --name, --description, --tag or --quota")
    changed = call.lake.accounts.update(
        _find_account(call, which).id,
        name=KEEP if name is None else name,
        description=KEEP if description is None else description,
        tags=KEEP if tags is None else key_values(tags, "--tag"),
        quotas=KEEP if quotas is None else _quotas(quotas),
    )
    call.print_result(f"updated account {changed.id}", AccountRecord.of(changed))


@command(accounts_app, "delete")
def delete_account(call: Call, which: AccountName) -> None:
    """Delete an account, which must be empty."""
    deleted = AccountRecord.of(_find_account(call, which))
    call.lake.accounts.delete(deleted.id)
    call.print_result(f"deleted account {deleted.id}", deleted)


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
        named = [each for each in call.lake.accounts() if each.name == id_or_name]
        if not named:
            raise error from None
        return named[0]


grants_app = group(
    "grants",
    "Grant users and roles privileges on catalogs, namespaces, tables and views, in addition to account roles.",
)


class Privilege(StrEnum):
    """The choices of `--privilege`."""

    read = "read"
    write = "write"
    manage = "manage"


class Kind(StrEnum):
    """The choices of `--kind`."""

    catalog = "catalog"
    namespace = "namespace"
    table = "table"
    view = "view"


ObjectName = Annotated[
    str, typer.Argument(metavar="OBJECT", help="Full name, such as lake, lake.sales or lake.sales.people.")
]
Grantee = Annotated[str, typer.Option("--to", metavar="GRANTEE", help="user:<subject> or role:<name>.")]
KindOption = Annotated[
    Kind | None, typer.Option("--kind", help="What the name means, if it is the name of several objects.")
]

GRANT_COLUMNS = ["object", "kind", "grantee", "privilege", "created_at"]


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """A grant in the output."""

    object: str
    kind: str
    object_id: str
    grantee: str
    privilege: str
    created_at: datetime | None
    damage: str | None = None

    @classmethod
    def of(cls, call: Call, grant: Grant) -> GrantRecord:
        """Convert a grant of the client, and look up the name of its object."""
        from skiway.client.metastore import dotted

        if grant.damage:
            return cls("(unknown)", "-", str(grant.object_id), grant.grantee, "none", None, grant.damage)
        directory = call.lake.directory
        paths = {
            "catalog": directory.catalog_path,
            "namespace": directory.namespace_path,
            "table": directory.table_path,
            "view": directory.view_path,
        }
        path = paths[grant.kind](grant.object_id)
        name = "(deleted)" if path is None else dotted(path)
        return cls(name, grant.kind, str(grant.object_id), grant.grantee, grant.privilege, grant.created_at)


@dataclass(frozen=True, slots=True)
class RevokedRecord:
    """What was revoked."""

    object: str
    grantee: str
    revoked: bool


@command(grants_app, "list")
def list_grants(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="OBJECT", help="Full name; all objects by default.")] = None,
    grantee: Annotated[str, typer.Option("--to", metavar="GRANTEE", help="Only those to this user or role.")] = "",
    kind: KindOption = None,
) -> None:
    """List the grants on an object, or on all objects."""
    found = [GrantRecord.of(call, each) for each in call.lake.grants(name, kind=_kind(kind), grantee=grantee)]
    found.sort(key=lambda each: (each.object, each.kind, each.grantee))
    call.print_rows(found, GRANT_COLUMNS, empty="there are no grants")


@command(grants_app, "add")
def add_grant(
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
    added = call.lake.grants.add(name, grantee, privilege.value, kind=_kind(kind))
    record = GrantRecord.of(call, added)
    call.print_result(f"{record.grantee} may {record.privilege} {record.kind} {record.object}", record)


@command(grants_app, "revoke")
def revoke_grant(call: Call, name: ObjectName, grantee: Grantee, kind: KindOption = None) -> None:
    """Revoke the privilege that a user or role has on an object.

    Privileges on what contains the object remain.
    """
    revoked = call.lake.grants.revoke(name, grantee, kind=_kind(kind))
    outcome = f"revoked the grant on {name} to {grantee}" if revoked else f"{grantee} has no grant on {name} itself"
    call.print_result(outcome, RevokedRecord(name, grantee, revoked))


def _kind(kind: Kind | None) -> ObjectKind | None:
    return None if kind is None else kind.value


def _shown_policy(call: Call, policy: Policy) -> dict[str, Any]:
    """A policy with the names of its objects in the place of their ids."""
    found = {**fields_of(policy), "on": [_object_path(call, kind, object_id) for kind, object_id in policy.objects]}
    del found["objects"]
    return found


policies_app = commands_for(POLICY, shown=_shown_policy)

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Full name, such as lake.sales.people.")]


@command(policies_app, "tags")
def list_tags(call: Call, table: TableName) -> None:
    """List the tags of a table's columns."""
    found = [{"column": column, "tags": given} for column, given in call.lake.policies.tags(table).items()]
    call.print_rows(found, ["column", "tags"], empty="no column has a tag")


@command(policies_app, "tag")
def tag_column(
    call: Call,
    table: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="The name of a column.")],
    given: Annotated[
        list[str] | None, typer.Argument(metavar="[TAG]...", help="Tags, such as pii; without any, they are removed.")
    ] = None,
) -> None:
    """Replace the tags of a column, which it keeps when it is renamed."""
    call.lake.policies.tag(table, column, given or [])
    outcome = f"tagged {table}.{column}: {', '.join(given)}" if given else f"removed the tags of {table}.{column}"
    call.print_result(outcome, {"column": column, "tags": given or []})


def _object_path(call: Call, kind: str, object_id: Any) -> str:
    from skiway.client.metastore import dotted

    directory = call.lake.directory
    paths = {
        "catalog": directory.catalog_path,
        "namespace": directory.namespace_path,
        "table": directory.table_path,
        "view": directory.view_path,
    }
    path = paths[kind](object_id)
    return "(deleted)" if path is None else dotted(path)
