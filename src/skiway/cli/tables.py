"""`skiway tables`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.jobs import connector_names
from skiway.cli.table_records import TableRecord
from skiway.errors import PreconditionFailed

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Namespace, Table

__all__ = ["AtSnapshot", "Parent", "TableName", "app", "call_function", "namespaces_in", "tables_in"]

app = group("tables", "Manage tables: the lake's own Iceberg tables, and tables that connectors mirror.")

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="Full name, such as lake.sales.people.")]
Parent = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="Namespace or catalog to list; all catalogs by default.")
]
AtSnapshot = Annotated[
    int | None, typer.Option("--at", metavar="SNAPSHOT", help="Snapshot id; the current snapshot by default.")
]


@command(app, "list")
def list_(call: Call, parent: Parent = None) -> None:
    """List tables with their rows and sizes."""
    names = connector_names(call.lake)
    found = (TableRecord.of(each, names) for each in tables_in(call.lake, parent))
    columns = ["name", "format", "origin", "rows", "data_files", "size_bytes"]
    call.print_rows(
        found, columns, empty="there are no tables here; create some with skiway sql or skiway connectors create"
    )


@command(app, "get")
def get(call: Call, name: TableName, at: AtSnapshot = None) -> None:
    """Show a table and its columns."""
    from skiway.cli import rendering

    record = TableRecord.of(call.lake.tables.get(name, at=at), connector_names(call.lake))
    call.print_record(record)
    if call.is_for_people:
        typer.echo()
        rendering.write_rows(record.columns, ["name", "type", "required"], empty="the table has no columns")


@command(app, "describe")
def describe(call: Call, name: TableName, at: AtSnapshot = None) -> None:
    """Show statistics of a table's columns.

    For each column: NULLs, distinct values, minimum and maximum, and the distribution of values.
    """
    from skiway.cli.describe import print_description

    print_description(call, name, at)


@command(app, "create")
def create(
    call: Call,
    name: TableName,
    columns: Annotated[
        list[str], typer.Argument(metavar="COLUMN", help="Column in SQL, such as 'id BIGINT NOT NULL'; repeatable.")
    ],
) -> None:
    """Create an empty Iceberg table."""
    from skiway.cli.sql.session import Session
    from skiway.cli.sql.statements import create_table
    from skiway.client.metastore.names import dotted, segments

    *namespace, _ = segments(name, resource="table")
    call.lake.namespaces.get(dotted(namespace))
    with Session(call) as session:
        create_table(session, name, columns)
    created = TableRecord.of(call.lake.tables.get(name), connector_names(call.lake))
    call.print_result(f"created table {created.name}", created)


@command(app, "delete")
def delete(call: Call, name: TableName) -> None:
    """Delete a table with its snapshots and statistics.

    The files of a mirrored table are not deleted.
    """
    from skiway.cli.sql.scans import sql_name
    from skiway.client.metastore.names import segments

    deleted: TableRecord | None = None
    try:
        table = call.lake.tables.get(name)
        deleted = TableRecord.of(table, connector_names(call.lake))
    except PreconditionFailed as error:
        if error.key != "resource.damaged":
            raise
    if deleted is None or deleted.origin == "managed":
        catalog, schema, own_name = sql_name(segments(name, resource="table"))
        with call.airport(catalog) as lake:
            lake.drop_table((schema, own_name))
    else:
        call.lake.tables.delete(table)
    if deleted is None:
        call.print_result(f"deleted table {name}, which was damaged", {"name": name})
    else:
        call.print_result(f"deleted table {deleted.name}", deleted)


def call_function(call: Call, name: str, function: str, *arguments: object, **named: object) -> dict[str, object]:
    """Call a function of the schema `skiway` with the full name of a table or view; return its row."""
    from skiway.airport.wire.duckdb_sql import identifier
    from skiway.cli.sql.scans import sql_name
    from skiway.client.metastore.names import segments

    catalog, schema, own_name = sql_name(segments(name, resource="table"))
    with call.airport(catalog) as lake:
        path = f"{identifier(schema)}.{identifier(own_name)}"
        (row,) = lake.call(f"skiway.{function}", path, *arguments, named=named).read_all().to_pylist()
        return dict(row)


def tables_in(lake: Metastore, parent: str | None) -> Iterator[Table]:
    """Yield the tables of a namespace, of all namespaces of a catalog, or of all catalogs."""
    for namespace in namespaces_in(lake, parent):
        yield from lake.tables(namespace)


def namespaces_in(lake: Metastore, parent: str | None) -> Iterator[str | Namespace]:
    """Yield a namespace, all namespaces of a catalog, or those of all catalogs."""
    from skiway.client.metastore.names import segments

    if parent is None:
        for catalog in lake.catalogs():
            yield from namespaces_in(lake, str(catalog))
    elif len(segments(parent, resource="catalog or namespace")) > 1:
        yield parent
    else:
        yield from lake.namespaces(parent, recursive=True)
