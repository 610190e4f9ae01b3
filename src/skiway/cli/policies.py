"""`skiway policies`: the commands of all resources, and those for the tags of columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command
from skiway.cli.rendering import fields_of
from skiway.cli.resources import commands_for
from skiway.resources import POLICY

if TYPE_CHECKING:
    from skiway.client.metastore import Policy

__all__ = ["app"]


def _shown(call: Call, policy: Policy) -> dict[str, Any]:
    """A policy with the names of its objects in the place of their ids."""
    found = {**fields_of(policy), "on": [_path(call, kind, object_id) for kind, object_id in policy.objects]}
    del found["objects"]
    return found


app = commands_for(POLICY, shown=_shown)

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Full name, such as lake.sales.people.")]


@command(app, "tags")
def tags(call: Call, table: TableName) -> None:
    """List the tags of a table's columns."""
    found = [{"column": column, "tags": given} for column, given in call.lake.policies.tags(table).items()]
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
    call.print_result(outcome, {"column": column, "tags": given or []})


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
