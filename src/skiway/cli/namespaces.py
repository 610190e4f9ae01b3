"""Namespaces: where tables are, in a hierarchy below a catalog. DuckDB calls them schemas."""

from __future__ import annotations

from typing import Annotated

import typer

from skiway.cli.catalogs import Cascade, Description, PlaceRecord, Properties
from skiway.cli.command import Call, noun, verb
from skiway.cli.options import pairs

__all__ = []


app = noun("namespaces", __doc__)

Name = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="With its catalog, such as lake.sales or lake.sales.eu.")
]


@verb(app, "list")
def list_(
    call: Call,
    parent: Annotated[
        str | None,
        typer.Argument(metavar="CATALOG", help="Below this catalog or namespace; below all catalogs without."),
    ] = None,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Those further below, too.")] = False,
) -> None:
    """List namespaces."""
    parents = [parent] if parent else [str(each) for each in call.lake.catalogs()]
    found = (PlaceRecord.of(each) for one in parents for each in call.lake.namespaces(one, recursive=recursive))
    call.rows(found, ["name", "description", "created_at"], nothing="there are no namespaces here")


@verb(app, "get")
def get(call: Call, name: Name) -> None:
    """Show one namespace."""
    call.record(PlaceRecord.of(call.lake.namespaces.get(name)))


@verb(app, "create")
def create(call: Call, name: Name, description: Description = None, properties: Properties = None) -> None:
    """Make a new namespace, and with it those of its parents that are missing."""
    noted = pairs(properties, "--property")
    made = PlaceRecord.of(call.lake.namespaces.create(name, description=description, properties=noted))
    call.done(f"created namespace {made.name}", made)


@verb(app, "delete")
def delete(call: Call, name: Name, cascade: Cascade = False) -> None:
    """Delete a namespace."""
    gone = PlaceRecord.of(call.lake.namespaces.get(name))
    call.lake.namespaces.delete(name, cascade=cascade)
    call.done(f"deleted namespace {gone.name}", gone)
