"""`skiway catalogs` and `skiway namespaces`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.options import key_values

if TYPE_CHECKING:
    from skiway.client.metastore import Catalog, Namespace

__all__ = ["Description"]

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
