"""Tables: Iceberg tables that are made here, and tables that connectors mirror."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.calling import Call, noun, verb

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Table

app = noun("tables", __doc__)

Name = Annotated[str, typer.Argument(metavar="TABLE", help="With catalog and namespace, such as lake.sales.people.")]
Parent = Annotated[
    str | None, typer.Argument(metavar="NAMESPACE", help="In this namespace or catalog; in all without.")
]
At = Annotated[
    int | None, typer.Option("--at", metavar="SNAPSHOT", help="In this snapshot; unless given, in the current one.")
]


@dataclass(frozen=True, slots=True)
class ColumnRecord:
    """A column, as it is written."""

    name: str
    type: str
    required: bool


@dataclass(frozen=True, slots=True)
class TableRecord:
    """A table, as it is written. `rows` and what follows it are of its current snapshot; None where they are unknown."""

    name: str
    id: str
    format: str
    origin: str
    description: str | None
    location: str | None
    rows: int | None
    data_files: int | None
    size_bytes: int | None
    snapshot_id: int | None
    columns: tuple[ColumnRecord, ...]
    properties: dict[str, str]
    created_at: datetime
    updated_at: datetime

    @classmethod
    def of(cls, table: Table, names: dict[str, str]) -> TableRecord:
        """What there is to tell of it, with the names of connectors by their ids."""
        stats, upstream = table.stats, table.upstream
        managed = table.message.metadata_location
        return cls(
            str(table),
            str(table.id),
            "iceberg" if managed else format_of(table),
            "managed" if managed else names.get(upstream.connector_id.id, "-") if upstream else "-",
            table.description,
            managed or (upstream.uri if upstream else None),
            stats.row_count,
            stats.data_file_count,
            stats.total_size_bytes,
            stats.snapshot_id,
            columns_of(table.schema_json),
            dict(table.properties),
            table.created_at,
            table.updated_at,
        )


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
    from skiway.cli.describing import described

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
    from skiway.client.metastore.names import dotted, segments

    *namespace, _ = segments(name, resource="table")
    call.lake.namespaces.get(dotted(namespace))
    with Session(call) as session:
        session.create_table(name, columns)
    made = TableRecord.of(call.lake.tables.get(name), connector_names(call.lake))
    call.done(f"created table {made.name}", made)


@verb(app, "delete")
def delete(call: Call, name: Name) -> None:
    """Delete a table with its snapshots and statistics. The files of a mirrored table stay where they are."""
    from skiway.cli.jobs import connector_names
    from skiway.cli.sql.names import spoken

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


def format_of(table: Table) -> str:
    """Of which format a mirrored table is."""
    from skiway.model import v1

    if table.upstream is None or not table.upstream.format:
        return "-"
    return v1.TableFormat.Name(table.upstream.format).removeprefix("TF_").lower()


def columns_of(schema_json: str) -> tuple[ColumnRecord, ...]:
    """The columns that a schema in JSON tells of."""
    fields = json.loads(schema_json or "{}").get("fields", [])
    return tuple(ColumnRecord(each["name"], type_name(each["type"]), bool(each.get("required"))) for each in fields)


def type_name(told: Any) -> str:
    """A type on one line, such as `list<struct<a: int>>`."""
    if isinstance(told, str):
        return told
    match told.get("type"):
        case "list":
            return f"list<{type_name(told['element'])}>"
        case "map":
            return f"map<{type_name(told['key'])}, {type_name(told['value'])}>"
        case "struct":
            members = ", ".join(f"{each['name']}: {type_name(each['type'])}" for each in told["fields"])
            return f"struct<{members}>"
    return str(told.get("type"))
