"""Namespaces: where tables are, in a hierarchy below a catalog. DuckDB calls them schemas."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.calling import Call, noun, verb
from skiway.cli.catalogs import Cascade, Description, Properties
from skiway.cli.options import pairs

if TYPE_CHECKING:
    from skiway.client.metastore import Namespace

app = noun("namespaces", __doc__)

Name = Annotated[
    str, typer.Argument(metavar="NAMESPACE", help="With its catalog, such as lake.sales or lake.sales.eu.")
]


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace, as it is written."""

    name: str
    id: str
    description: str | None
    properties: dict[str, str]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, namespace: Namespace) -> NamespaceRecord:
        """What there is to tell of it."""
        return cls(
            str(namespace),
            str(namespace.id),
            namespace.description,
            dict(namespace.properties),
            namespace.created_at,
            namespace.updated_at,
        )


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
    found = (NamespaceRecord.of(each) for one in parents for each in call.lake.namespaces(one, recursive=recursive))
    call.rows(found, ["name", "description", "created_at"], nothing="there are no namespaces here")


@verb(app, "get")
def get(call: Call, name: Name) -> None:
    """Show one namespace."""
    call.record(NamespaceRecord.of(call.lake.namespaces.get(name)))


@verb(app, "create")
def create(call: Call, name: Name, description: Description = None, properties: Properties = None) -> None:
    """Make a new namespace, and with it those of its parents that are missing."""
    noted = pairs(properties, "--property")
    made = NamespaceRecord.of(call.lake.namespaces.create(name, description=description, properties=noted))
    call.done(f"created namespace {made.name}", made)


@verb(app, "delete")
def delete(call: Call, name: Name, cascade: Cascade = False) -> None:
    """Delete a namespace."""
    gone = NamespaceRecord.of(call.lake.namespaces.get(name))
    call.lake.namespaces.delete(name, cascade=cascade)
    call.done(f"deleted namespace {gone.name}", gone)
