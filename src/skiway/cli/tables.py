"""Tables: Iceberg tables that are made here, and tables that connectors mirror."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, noun, verb
from skiway.cli.table_records import TableRecord

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Table

__all__ = ["At", "Name", "Parent", "tables_in"]


app = noun("tables", __doc__)

Name = Annotated[str, typer.Argument(metavar="TABLE", help="With catalog and namespace, such as lake.sales.people.")]
Parent = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="In this namespace or catalog; in all without.")
]
At = Annotated[
    int | None, typer.Option("--at", metavar="SNAPSHOT", help="In this snapshot; unless given, in the current one.")
]


@verb(app, "list")
def list_(call: Call, parent: Parent = None) -> None:
    """List tables with their rows and sizes."""
    from skiway.cli.jobs import connector_names

    names = connector_names(call.lake)
    found = (TableRecord.of(each, names) for each in tables_in(call.lake, parent))
    columns = ["name", "format", "origin", "rows", "data_files", "size_bytes"]
    call.rows(found, columns, nothing="there are no tables here: skiway sql, or skiway connectors create")


@verb(app, "get")
def get(call: Call, name: Name, at: At = None) -> None:
    """Show a table and its columns, now or as they were in a snapshot."""
    from skiway.cli import rendering
    from skiway.cli.jobs import connector_names

    record = TableRecord.of(call.lake.tables.get(name, at=at), connector_names(call.lake))
    call.record(record)
    if not call.as_json:
        typer.echo()
        rendering.write_rows(record.columns, ["name", "type", "required"], nothing="it has no columns")


@verb(app, "describe")
def describe(call: Call, name: Name, at: At = None) -> None:
    """Show what is known of a table's columns: NULLs, distinct values, bounds, and how values spread."""
    from skiway.cli.describe import described

    described(call, name, at)


@verb(app, "create")
def create(
    call: Call,
    name: Name,
    columns: Annotated[
        list[str], typer.Argument(metavar="COLUMN", help="As in SQL, such as 'id BIGINT NOT NULL' 'name VARCHAR'.")
    ],
) -> None:
    """Make a new, empty Iceberg table."""
    from skiway.cli.jobs import connector_names
    from skiway.cli.sql.session import Session
    from skiway.cli.sql.statements import create_table
    from skiway.client.metastore.names import dotted, segments

    *namespace, _ = segments(name, resource="table")
    call.lake.namespaces.get(dotted(namespace))
    with Session(call) as session:
        create_table(session, name, columns)
    made = TableRecord.of(call.lake.tables.get(name), connector_names(call.lake))
    call.done(f"created table {made.name}", made)


@verb(app, "delete")
def delete(call: Call, name: Name) -> None:
    """Delete a table with its snapshots and statistics. The files of a mirrored table stay where they are."""
    from skiway.cli.jobs import connector_names
    from skiway.cli.sql.scans import spoken

    table = call.lake.tables.get(name)
    gone = TableRecord.of(table, connector_names(call.lake))
    if gone.origin == "managed":
        catalog, schema, own = spoken(table.path)
        with call.airport(catalog) as lake:
            lake.drop_table((schema, own))
    else:
        call.lake.tables.delete(table)
    call.done(f"deleted table {gone.name}", gone)


def tables_in(lake: Metastore, parent: str | None) -> Iterator[Table]:
    """The tables of a namespace; of a catalog, those of all its namespaces; without a parent, all."""
    from skiway.client.metastore.names import segments

    if parent is None:
        for catalog in lake.catalogs():
            yield from tables_in(lake, str(catalog))
    elif len(segments(parent, resource="catalog or namespace")) > 1:
        yield from lake.tables(parent)
    else:
        for namespace in lake.namespaces(parent, recursive=True):
            yield from lake.tables(namespace)
