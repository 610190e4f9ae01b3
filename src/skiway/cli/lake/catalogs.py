"""`skiway catalogs`, `skiway namespaces` and `skiway views`; how DuckDB attaches catalogs, and search in them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group, suggestion
from skiway.cli.lake.tables import Parent, call_function, namespaces_in
from skiway.cli.options import key_values
from skiway.errors import NotFound
from skiway.presentation.tables import row_count

if TYPE_CHECKING:
    from skiway.client.metastore import Catalog, Namespace, SearchHit, View

catalogs_app = group("catalogs", "Manage catalogs, the top level of names. DuckDB attaches a catalog by its name.")
namespaces_app = group(
    "namespaces", "Manage namespaces, the hierarchy of names below a catalog. DuckDB calls them schemas."
)

CatalogName = Annotated[str, typer.Argument(metavar="CATALOG", help="Name, such as lake.")]
NamespaceName = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="Full name, such as lake.sales or lake.sales.eu.")
]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="Description for users.")]
Properties = Annotated[list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="Property; repeatable.")]
Cascade = Annotated[bool, typer.Option("--cascade", help="Delete its contents too.")]

COLUMNS = ["name", "description", "created_at"]


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A catalog or a namespace in the output."""

    name: str
    id: str
    description: str | None
    properties: dict[str, str]
    created_at: datetime | None
    updated_at: datetime | None
    damage: str | None = None

    @classmethod
    def of(cls, container: Catalog | Namespace) -> ContainerRecord:
        """Convert a resource of the client."""
        return cls(
            str(container),
            str(container.id),
            container.description,
            dict(container.properties),
            None if container.damage else container.created_at,
            None if container.damage else container.updated_at,
            container.damage or None,
        )


@command(catalogs_app, "list")
def list_catalogs(call: Call) -> None:
    """List the catalogs of the account."""
    found = map(ContainerRecord.of, call.lake.catalogs())
    call.print_rows(found, COLUMNS, empty="there are no catalogs; create one with: skiway catalogs create lake")


@command(catalogs_app, "get")
def get_catalog(call: Call, name: CatalogName) -> None:
    """Show a catalog."""
    call.print_record(ContainerRecord.of(call.lake.catalogs.get(name)))


@command(catalogs_app, "create")
def create_catalog(
    call: Call, name: CatalogName, description: Description = None, properties: Properties = None
) -> None:
    """Create an empty catalog."""
    pairs = key_values(properties, "--property")
    created = ContainerRecord.of(call.lake.catalogs.create(name, description=description, properties=pairs))
    call.print_result(f"created catalog {created.name}", created)


@command(catalogs_app, "delete")
def delete_catalog(call: Call, name: CatalogName, cascade: Cascade = False) -> None:
    """Delete a catalog."""
    deleted = ContainerRecord.of(call.lake.catalogs.get(name))
    call.lake.catalogs.delete(name, cascade=cascade)
    call.print_result(f"deleted catalog {deleted.name}", deleted)


@command(namespaces_app, "list")
def list_namespaces(
    call: Call,
    parent: Annotated[
        str | None,
        typer.Argument(metavar="CATALOG", help="Catalog or namespace to list; all catalogs by default."),
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Include namespaces at all levels.")] = False,
) -> None:
    """List namespaces."""
    parents = [parent] if parent else [str(each) for each in call.lake.catalogs()]
    found = (ContainerRecord.of(each) for one in parents for each in call.lake.namespaces(one, recursive=recursive))
    call.print_rows(found, COLUMNS, empty="there are no namespaces here")


@command(namespaces_app, "get")
def get_namespace(call: Call, name: NamespaceName) -> None:
    """Show a namespace."""
    call.print_record(ContainerRecord.of(call.lake.namespaces.get(name)))


@command(namespaces_app, "create")
def create_namespace(
    call: Call, name: NamespaceName, description: Description = None, properties: Properties = None
) -> None:
    """Create a namespace, including missing parents."""
    pairs = key_values(properties, "--property")
    created = ContainerRecord.of(call.lake.namespaces.create(name, description=description, properties=pairs))
    call.print_result(f"created namespace {created.name}", created)


@command(namespaces_app, "delete")
def delete_namespace(call: Call, name: NamespaceName, cascade: Cascade = False) -> None:
    """Delete a namespace."""
    deleted = ContainerRecord.of(call.lake.namespaces.get(name))
    call.lake.namespaces.delete(name, cascade=cascade)
    call.print_result(f"deleted namespace {deleted.name}", deleted)


views_app = group("views", "Manage views: queries with a name, which clients read like tables.")

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


@command(views_app, "list")
def list_views(call: Call, parent: Parent = None) -> None:
    """List views and what they read."""
    found = (ViewRecord.of(view) for each in namespaces_in(call.lake, parent) for view in call.lake.views(each))
    call.print_rows(
        found, ["name", "reads", "description"], empty="there are no views here; create one with skiway views create"
    )


@command(views_app, "get")
def get_view(call: Call, name: ViewName) -> None:
    """Show a view, with its SQL and its columns."""
    call.print_record(ViewRecord.of(call.lake.views.get(name)))


@command(views_app, "create")
def create_view(
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


@command(views_app, "delete")
def delete_view(call: Call, name: ViewName) -> None:
    """Delete a view."""
    call_function(call, name, "drop_view")
    call.print_result(f"deleted view {name}", {"name": name})


attach_app = group("attach", None)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in the output."""

    statement: str


@command(attach_app, "attach")
def attach(
    call: Call,
    catalogs: Annotated[
        list[str] | None, typer.Argument(metavar="[CATALOG]...", help="Catalogs; by default all that you can see.")
    ] = None,
    show_token: Annotated[bool, typer.Option("--show-token", help="Print your token in the statements.")] = False,
) -> None:
    """Print the statements that attach catalogs in DuckDB.

    Without --show-token, insert your token yourself.
    """
    from skiway.airport.wire.duckdb_sql import attach_statement, secret_statement  # which imports pyarrow

    visible = [str(each) for each in call.lake.catalogs()]
    for name in catalogs or ():
        if name not in visible:
            hint = suggestion(name, visible)
            raise NotFound(f"there is no catalog {name}{f'; {hint}' if hint else ''}")
    location = call.location
    statements = ["INSTALL airport FROM community;", "LOAD airport;"]
    if (token := call.access_token) is not None:
        statements.append(secret_statement(location, token if show_token else None))
    statements += (attach_statement(name, location) for name in catalogs or visible)
    if call.is_for_people:
        typer.echo("\n".join(statements))
    else:
        call.print_rows(map(Statement, statements), ["statement"], empty="")


search_app = group("search", None)


@dataclass(frozen=True, slots=True)
class HitRecord:
    """A result in the output."""

    name: str
    kind: str
    found_in: str
    format: str
    rows: int | None
    size_bytes: int | None
    comment: str
    id: str
    damage: str | None = None
    rows_are_bound: bool = False

    @classmethod
    def of(cls, hit: SearchHit) -> HitRecord:
        """Convert a result of the client."""
        from skiway.client.metastore import dotted

        found = hit.object
        return cls(
            dotted(found.path),
            found.kind,
            hit.found_in,
            found.format,
            row_count(found.rows, is_bound=found.rows_are_bound),
            found.size_bytes,
            found.comment,
            str(found.id),
            found.damage or None,
            found.rows_are_bound,
        )


@command(search_app, "search")
def search(
    call: Call,
    words: Annotated[list[str], typer.Argument(metavar="WORD", help="Each word must occur.")],
    limit: Annotated[int, typer.Option("--limit", metavar="NUMBER", min=1, max=100, help="How many results.")] = 20,
) -> None:
    """Search names, columns, comments and tags of catalogs, namespaces, tables and views; the best results first."""
    text = " ".join(words)
    found = call.lake.search(text, limit=limit)
    call.print_rows(
        map(HitRecord.of, found),
        ["name", "kind", "found_in", "rows", "comment"],
        empty=f"nothing that you can see matches {text!r}: try fewer or shorter words",
    )
    if found.incomplete is not None:
        typer.echo(found.incomplete.reason, err=True)
