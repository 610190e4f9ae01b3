"""`skiway policies`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.catalogs import Description
from skiway.cli.command import Call, command, group

if TYPE_CHECKING:
    from skiway.client.metastore import Policy

__all__ = ["app"]

app = group(
    "policies",
    "Decide which rows of tables and views callers see, and what of their columns.",
)


class Mask(StrEnum):
    """The choices of `--mask`."""

    null = "null"
    hash = "hash"
    partial = "partial"


PolicyName = Annotated[str, typer.Argument(metavar="POLICY", help="The name of a policy.")]
TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Full name, such as lake.sales.people.")]
To = Annotated[
    list[str],
    typer.Option("--to", metavar="CALLER", help="everyone, user:<subject>, group:<name> or role:<name>."),
]
Except = Annotated[
    list[str], typer.Option("--except", metavar="CALLER", help="A caller, group or role that it does not restrict.")
]
On = Annotated[
    list[str],
    typer.Option("--on", metavar="OBJECT", help="A catalog, namespace, table or view; without any, the whole account."),
]
Filter = Annotated[
    str | None,
    typer.Option("--filter", metavar="SQL", help="The rows that callers see, such as \"region = caller('region')\"."),
]
MaskOption = Annotated[Mask | None, typer.Option("--mask", help="What callers see instead of the values.")]
MaskSql = Annotated[
    str | None,
    typer.Option(
        "--mask-sql", metavar="SQL", help="An expression over the row that callers see instead of the values."
    ),
]
Columns = Annotated[
    list[str], typer.Option("--column", metavar="NAME", help="A column to mask; * stands for any characters.")
]
Tags = Annotated[list[str], typer.Option("--tag", metavar="TAG", help="The columns with this tag, such as pii.")]
IfVersion = Annotated[
    int | None, typer.Option("--if-version", metavar="NUMBER", help="Fail if the stored version is another one.")
]


@dataclass(frozen=True, slots=True)
class PolicyRecord:
    """A policy in the output."""

    name: str
    id: str
    on: list[str]
    to: list[str]
    exceptions: list[str]
    rule: str
    columns: list[str]
    tags: list[str]
    description: str | None
    version: int | None
    created_at: datetime | None
    damage: str | None = None

    @classmethod
    def of(cls, call: Call, policy: Policy) -> PolicyRecord:
        """Convert a policy of the client, and look up the names of its objects."""
        if policy.damage:
            nothing: list[str] = []
            lists = (nothing, nothing, nothing, "-", nothing, nothing)
            return cls(policy.name, str(policy.id), *lists, None, None, None, policy.damage)
        rule = f"rows: {policy.row_filter}" if policy.row_filter is not None else f"mask: {policy.mask}"
        return cls(
            policy.name,
            str(policy.id),
            [_path(call, kind, object_id) for kind, object_id in policy.objects],
            list(policy.subjects),
            list(policy.exceptions),
            rule,
            list(policy.columns),
            list(policy.tags),
            policy.description or None,
            policy.version,
            policy.created_at,
        )


@dataclass(frozen=True, slots=True)
class TagRecord:
    """The tags of a column in the output."""

    column: str
    tags: list[str]


@command(app, "list")
def list_policies(call: Call) -> None:
    """List the policies of the account."""
    found = [PolicyRecord.of(call, each) for each in call.lake.policies()]
    call.print_rows(found, ["name", "on", "to", "rule", "columns", "tags"], empty="there are no policies")


@command(app, "get")
def get(call: Call, name: PolicyName) -> None:
    """Show a policy and its stored version."""
    call.print_record(PolicyRecord.of(call, call.lake.policies.get(name)))


@command(app, "create")
def create(
    call: Call,
    name: PolicyName,
    to: To,
    on: On = [],  # noqa: B006 - typer copies it
    exceptions: Except = [],  # noqa: B006
    row_filter: Filter = None,
    mask: MaskOption = None,
    mask_sql: MaskSql = None,
    columns: Columns = [],  # noqa: B006
    tags: Tags = [],  # noqa: B006
    description: Description = None,
) -> None:
    """Create a policy, after the server has checked its expression.

    It holds from the next statement on. Row filters and masks are SQL over the columns of one row; caller('subject'),
    caller('roles'), caller('groups') and caller('<claim>') are the caller's.
    """
    made = call.lake.policies.create(
        name,
        to=to,
        on=on,
        exceptions=exceptions,
        row_filter=row_filter,
        mask=None if mask is None else mask.value,
        mask_sql=mask_sql,
        columns=columns,
        tags=tags,
        description=description,
    )
    call.print_result(f"created policy {name}", PolicyRecord.of(call, made))


@command(app, "update")
def update(
    call: Call,
    name: PolicyName,
    new_name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The new name.")] = None,
    to: To = [],  # noqa: B006
    on: On = [],  # noqa: B006
    exceptions: Except = [],  # noqa: B006
    row_filter: Filter = None,
    mask: MaskOption = None,
    mask_sql: MaskSql = None,
    columns: Columns = [],  # noqa: B006
    tags: Tags = [],  # noqa: B006
    description: Description = None,
    if_version: IfVersion = None,
) -> None:
    """Change a policy. Lists are replaced as a whole, and a rule together with its columns."""
    lists: dict[str, Any] = {"to": to, "on": on, "exceptions": exceptions, "tags": tags}
    texts = {"new_name": new_name, "description": description}
    changed = call.lake.policies.update(
        name,
        row_filter=row_filter,
        mask=None if mask is None else mask.value,
        mask_sql=mask_sql,
        columns=columns,
        if_version=if_version,
        **{key: value for key, value in lists.items() if value},
        **{key: value for key, value in texts.items() if value is not None},
    )
    call.print_result(f"updated policy {changed.name}", PolicyRecord.of(call, changed))


@command(app, "delete")
def delete(call: Call, name: PolicyName, if_version: IfVersion = None) -> None:
    """Delete a policy. Callers see the original rows and values again."""
    call.lake.policies.delete(name, if_version=if_version)
    call.print_result(f"deleted policy {name}", {"name": name})


@command(app, "tags")
def tags(call: Call, table: TableName) -> None:
    """List the tags of a table's columns."""
    found = [TagRecord(column, list(given)) for column, given in call.lake.policies.tags(table).items()]
    call.print_rows(found, ["column", "tags"], empty="no column has a tag")


@command(app, "tag")
def tag(
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
    call.print_result(outcome, TagRecord(column, given or []))


def _path(call: Call, kind: str, object_id: Any) -> str:
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
