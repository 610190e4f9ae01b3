"""`skiway views`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.catalogs import Description
from skiway.cli.command import Call, command, group
from skiway.cli.tables import Parent, call_function, namespaces_in

if TYPE_CHECKING:
    from skiway.client.metastore import View

__all__ = ["app"]

app = group("views", "Manage views: queries with a name, which clients read like tables.")

ViewName = Annotated[str, typer.Argument(metavar="VIEW", help="Full name, such as lake.sales.totals.")]


@dataclass(frozen=True, slots=True)
class ViewRecord:
    """A view in the output."""

    name: str
    id: str
    description: str | None
    sql: dict[str, str]
    columns: list[str]
    reads: list[str]
    rights: str
    definer: str | None
    damage: str | None = None

    @classmethod
    def of(cls, view: View) -> ViewRecord:
        """Convert a resource of the client."""
        message = view.message
        return cls(
            str(view),
            str(view.id),
            view.description or None,
            dict(view.sql),
            [f"{each.name} {each.logical_type}" for each in message.output_columns],
            [".".join([each.catalog, *each.path, each.name]) for each in message.base_relations],
            view.rights,
            view.message.definer.subject or None,
            view.damage or None,
        )


@command(app, "list")
def list_(call: Call, parent: Parent = None) -> None:
    """List views and what they read."""
    found = (ViewRecord.of(view) for each in namespaces_in(call.lake, parent) for view in call.lake.views(each))
    call.print_rows(
        found, ["name", "reads", "description"], empty="there are no views here; create one with skiway views create"
    )


@command(app, "get")
def get(call: Call, name: ViewName) -> None:
    """Show a view, with its SQL and its columns."""
    call.print_record(ViewRecord.of(call.lake.views.get(name)))


@command(app, "create")
def create(
    call: Call,
    name: ViewName,
    sql: Annotated[str, typer.Argument(metavar="SQL", help="The query, such as 'SELECT id FROM lake.sales.people'.")],
    replace: Annotated[bool, typer.Option("--replace", help="Replace a view of this name.")] = False,
    dialect: Annotated[str, typer.Option(metavar="NAME", help="The dialect of the SQL, such as spark.")] = "duckdb",
    rights: Annotated[
        str,
        typer.Option(
            metavar="RIGHTS",
            help="Read the tables with the rights of the reader (invoker) or of the creator (definer).",
        ),
    ] = "invoker",
    description: Description = None,
) -> None:
    """Create a view, after the server has checked its query.

    Names without a schema in the query are those of the view's own namespace.
    """
    named = {"replace": replace, "dialect": dialect, "comment": description, "rights": rights}
    done = call_function(call, name, "create_view", sql, **named)
    call.print_result(f"{done['action']} view {name}", ViewRecord.of(call.lake.views.get(name)))


@command(app, "delete")
def delete(call: Call, name: ViewName) -> None:
    """Delete a view."""
    call_function(call, name, "drop_view")
    call.print_result(f"deleted view {name}", {"name": name})
