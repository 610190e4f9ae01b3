"""`skiway tables`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.jobs import connector_names
from skiway.errors import PreconditionFailed
from skiway.presentation.table_records import TableRecord

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
    found: Iterable[TableRecord] = (TableRecord.of(each, names) for each in tables_in(call.lake, parent))
    columns = ["name", "format", "origin", "rows", "data_files", "size_bytes"]
    if call.is_for_people:
        found = list(found)
        columns += ["problem"] if any(each.problem for each in found) else []
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


@command(app, "undrop")
def undrop(call: Call, name: TableName) -> None:
    """Restore a managed table that was dropped in the last three days, with its snapshots."""
    done = call_function(call, name, "undrop")
    call.print_result(f"restored table {name} with {done['snapshots']} snapshots", done)


@command(app, "partition-by")
def partition_by(
    call: Call,
    name: TableName,
    partitions: Annotated[
        str, typer.Argument(metavar="PARTITIONS", help="List such as 'day(ts), bucket(16, id)'; '' for none.")
    ],
) -> None:
    """Partition the rows of a managed table that are written from now on."""
    done = call_function(call, name, "partition_by", partitions)
    call.print_result(f"new rows of {name} are partitioned by {done['now'] or 'nothing'}", done)


@command(app, "sort-by")
def sort_by(
    call: Call,
    name: TableName,
    columns: Annotated[str, typer.Argument(metavar="COLUMNS", help="List such as 'ts DESC, id'; '' for no order.")],
) -> None:
    """Sort the rows of a managed table that are written from now on, within files."""
    done = call_function(call, name, "sort_by", columns)
    call.print_result(f"new rows of {name} are sorted by {done['now'] or 'nothing'}", done)


@command(app, "merge")
def merge(
    call: Call,
    name: TableName,
    source: Annotated[str, typer.Argument(metavar="SQL", help="Query for the rows to merge.")],
    on: Annotated[str, typer.Argument(metavar="CONDITION", help="Condition such as 'target.id = source.id'.")],
    clauses: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="WHEN clauses; by default rows that match are updated, and others inserted."),
    ] = None,
) -> None:
    """Merge the rows of a query into a managed table, like MERGE INTO, in one commit."""
    done = call_function(call, name, "merge", source, on, clauses=clauses)
    counts = ", ".join(f"{done[each]} {each}" for each in ("inserted", "updated", "deleted"))
    call.print_result(f"merged into {name}: {counts}", done)


@command(app, "refresh")
def refresh(
    call: Call,
    name: TableName,
    wait: Annotated[float, typer.Option(metavar="SECONDS", min=0, max=3600, help="How long to wait for it.")] = 60,
) -> None:
    """Read the current state of a mirrored table from its source."""
    done = call_function(call, name, "refresh", wait_s=wait)
    message = f": {done['message']}" if done["message"] else ""
    call.print_result(f"refreshing {name}: job {done['job_id']} is {done['state']}{message}", done)
    if done["state"] in ("failed", "cancelled", "partial"):
        raise typer.Exit(1)


@command(app, "histogram")
def histogram(
    call: Call,
    name: TableName,
    column: Annotated[str, typer.Argument(metavar="COLUMN")],
    bins: Annotated[int, typer.Option(metavar="N", min=1, max=1000, help="Number of ranges or values.")] = 20,
) -> None:
    """Count the values of a column: numbers and times by range, others by value."""
    found = function_rows(call, name, "histogram", column, bins=bins)
    call.print_rows([HistogramRow(**row) for row in found], [*HistogramRow.__slots__], empty=f"{name} has no rows")


@dataclass(frozen=True, slots=True)
class HistogramRow:
    """A range of values, or a value, and how often it occurs."""

    kind: str
    lower: str | None
    upper: str | None
    count: int
    share: float
    bar: str


def call_function(call: Call, name: str, function: str, *arguments: object, **named: object) -> dict[str, object]:
    """Call a function of the schema `skiway` with the full name of a table or view; return its only row."""
    (row,) = function_rows(call, name, function, *arguments, **named)
    return row


def function_rows(call: Call, name: str, function: str, *arguments: object, **named: object) -> list[dict[str, Any]]:
    """Call a function of the schema `skiway` with the full name of a table or view; return its rows."""
    from skiway.airport.wire.duckdb_sql import identifier
    from skiway.cli.sql.scans import sql_name
    from skiway.client.metastore.names import segments

    catalog, schema, own_name = sql_name(segments(name, resource="table"))
    with call.airport(catalog) as lake:
        path = f"{identifier(schema)}.{identifier(own_name)}"
        return list(lake.call(f"skiway.{function}", path, *arguments, named=named).read_all().to_pylist())


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
