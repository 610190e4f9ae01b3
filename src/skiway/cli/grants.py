"""`skiway grants`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group

if TYPE_CHECKING:
    from skiway.client.metastore.grants import Grant
    from skiway.client.metastore.objects import ObjectKind

__all__ = ["app"]

app = group(
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

COLUMNS = ["object", "kind", "grantee", "privilege", "created_at"]


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


@command(app, "list")
def list_grants(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="OBJECT", help="Full name; all objects by default.")] = None,
    grantee: Annotated[str, typer.Option("--to", metavar="GRANTEE", help="Only those to this user or role.")] = "",
    kind: KindOption = None,
) -> None:
    """List the grants on an object, or on all objects."""
    found = [GrantRecord.of(call, each) for each in call.lake.grants(name, kind=_kind(kind), grantee=grantee)]
    found.sort(key=lambda each: (each.object, each.kind, each.grantee))
    call.print_rows(found, COLUMNS, empty="there are no grants")


@command(app, "add")
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


@command(app, "revoke")
def revoke_grant(call: Call, name: ObjectName, grantee: Grantee, kind: KindOption = None) -> None:
    """Revoke the privilege that a user or role has on an object.

    Privileges on what contains the object remain.
    """
    revoked = call.lake.grants.revoke(name, grantee, kind=_kind(kind))
    outcome = f"revoked the grant on {name} to {grantee}" if revoked else f"{grantee} has no grant on {name} itself"
    call.print_result(outcome, RevokedRecord(name, grantee, revoked))


def _kind(kind: Kind | None) -> ObjectKind | None:
    return None if kind is None else kind.value
