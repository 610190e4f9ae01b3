"""Catalogs: what an account has, at the top. DuckDB attaches one by its name."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, noun, verb
from skiway.cli.options import pairs

if TYPE_CHECKING:
    from skiway.client.metastore import Catalog, Namespace

__all__ = ["Cascade", "Description", "PlaceRecord", "Properties"]


app = noun("catalogs", __doc__)

Name = Annotated[str, typer.Argument(metavar="CATALOG", help="Such as lake.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="What people should know of it.")]
Properties = Annotated[list[str] | None, typer.Option("--property", metavar="KEY=VALUE", help="A note; repeatable.")]
Cascade = Annotated[bool, typer.Option("--cascade", help="With all that it holds.")]


@dataclass(frozen=True, slots=True)
class PlaceRecord:
    """A catalog or a namespace, as it is written."""

    name: str
    id: str
    description: str | None
    properties: dict[str, str]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, place: Catalog | Namespace) -> PlaceRecord:
        """What there is to tell of it."""
        return cls(
            str(place),
            str(place.id),
            place.description,
            dict(place.properties),
            place.created_at,
            place.updated_at,
        )


@verb(app, "list")
def list_(call: Call) -> None:
    """List the catalogs of the account."""
    found = map(PlaceRecord.of, call.lake.catalogs())
    call.rows(
        found, ["name", "description", "created_at"], nothing="there are no catalogs: skiway catalogs create lake"
    )


@verb(app, "get")
def get(call: Call, name: Name) -> None:
    """Show one catalog."""
    call.record(PlaceRecord.of(call.lake.catalogs.get(name)))


@verb(app, "create")
def create(call: Call, name: Name, description: Description = None, properties: Properties = None) -> None:
    """Make a new catalog, with nothing in it."""
    noted = pairs(properties, "--property")
    made = PlaceRecord.of(call.lake.catalogs.create(name, description=description, properties=noted))
    call.done(f"created catalog {made.name}", made)


@verb(app, "delete")
def delete(call: Call, name: Name, cascade: Cascade = False) -> None:
    """Delete a catalog."""
    gone = PlaceRecord.of(call.lake.catalogs.get(name))
    call.lake.catalogs.delete(name, cascade=cascade)
    call.done(f"deleted catalog {gone.name}", gone)
