"""`skiway tables`, with the statistics of their columns in `skiway tables describe`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from skiway.cli import rendering
from skiway.cli.command import Call, command, confirm, group
from skiway.cli.lake.catalogs import namespaces_in
from skiway.cli.lake.jobs import connector_names
from skiway.cli.options import AtSnapshot, Parent, TableName, Yes, duration
from skiway.cli.output import Column, Output, write_texts
from skiway.errors import PreconditionFailed
from skiway.presentation.tables import AtMost, ColumnProfile, TableRecord, column_profiles, picked, row_count

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Table

app = group("tables", "Manage tables: the lake's own Iceberg tables, and tables that connectors mirror.")


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
    from skiway.client.metastore.resources import TableStats

    table = call.lake.tables.get(name, at=at)
    if at is not None:
        call.lake.snapshots.get(table, at)  # a wrong id is an error, and not a snapshot without statistics
    record = TableRecord.of(table, connector_names(call.lake))
    stats = call.lake.statistics.find(table, at) or TableStats(None)
    numbers = {key: int(stats.properties[name]) for key, name in COUNTED.items() if name in stats.properties}
    columns = list(column_profiles(call.lake, record, at))
    description = {
        **picked(record, "name", "format", "origin"),
        "snapshot_id": stats.snapshot_id if stats else at,
        "rows": row_count(stats.row_count, is_bound=stats.row_count_is_bound),
        "rows_quality": stats.properties.get("quality.row_count"),
        "rows_profiled": numbers.get("rows_profiled"),
        "sample_files": numbers.get("sample_files"),
        "data_files": stats.data_file_count,
        "size_bytes": stats.total_size_bytes,
        "columns": columns,
        "problem": record.problem,
        "files_not_profiled": numbers.get("files_not_profiled"),
    }
    if not call.is_for_people:
        call.print_record(description)
        return
    rendering.write_fields({key: value for key, value in description.items() if key not in HIDDEN})
    typer.echo()
    _write_columns(description, columns)


@command(app, "create")
def create(
    call: Call,
    name: TableName,
    columns: Annotated[
        list[str], typer.Argument(metavar="COLUMN", help="Column in SQL, such as 'id BIGINT NOT NULL'; repeatable.")
    ],
) -> None:
    """Create an empty Iceberg table."""
    from skiway.client.metastore.calls import dotted, segments
    from skiway.duckdb.statements import create_table

    *namespace, _ = segments(name, resource="table")
    call.lake.namespaces.get(dotted(namespace))
    with call.sql_session() as session:
        create_table(session, name, columns)
    created = TableRecord.of(call.lake.tables.get(name), connector_names(call.lake))
    call.print_result(f"created table {created.name}", created)


@command(app, "comment")
def comment_on_table(
    call: Call,
    name: TableName,
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What others should know; empty removes it.")],
    column: Annotated[str, typer.Option(metavar="NAME", help="A column of a managed table.")] = "",
    is_view: Annotated[bool, typer.Option("--view", help="The name is that of a view.")] = False,
) -> None:
    """Set the comment of a table, of one of its columns, or of a view; everybody sees it who sees the table."""
    if column:
        done = call.function(name, "comment_on", column, text)
        return call.print_result(f"commented on {column} of {name}", done)
    objects: Any = call.lake.views if is_view else call.lake.tables
    objects.update(name, description=text)
    return call.print_result(f"commented on {name}", {"name": name, "description": text})


@command(app, "delete")
def delete(call: Call, name: TableName, yes: Yes = False) -> None:
    """Delete a table with its snapshots and statistics.

    The files of a mirrored table are not deleted.
    """
    from skiway.client.metastore.calls import segments
    from skiway.foundation.resources import schema_name

    deleted: TableRecord | None = None
    try:
        table = call.lake.tables.get(name)
        deleted = TableRecord.of(table, connector_names(call.lake))
    except PreconditionFailed as error:
        if error.key != "resource.damaged":
            raise
    confirm(f"Delete table {name}?", yes=yes)
    if deleted is None or deleted.origin == "managed":
        catalog, *namespace, own_name = segments(name, resource="table")
        with call.airport(catalog) as lake:
            lake.drop_table((schema_name(namespace), own_name))
    else:
        call.lake.tables.delete(table)
    if deleted is None:
        call.print_result(f"deleted table {name}, which was damaged", {"name": name})
    else:
        call.print_result(f"deleted table {deleted.name}", deleted)


@command(app, "undrop")
def undrop(call: Call, name: TableName) -> None:
    """Restore a managed table that was dropped in the last three days, with its snapshots."""
    done = call.function(name, "undrop")
    call.print_result(f"restored table {name} with {done['snapshots']} snapshots", done)


Partitions = Annotated[
    str, typer.Argument(metavar="PARTITIONS", help="List such as 'day(ts), bucket(16, id)'; '' for none.")
]


@command(app, "partition-by")
def partition_by(call: Call, name: TableName, partitions: Partitions) -> None:
    """Partition the rows of a managed table that are written from now on."""
    done = call.function(name, "partition_by", partitions)
    call.print_result(f"new rows of {name} are partitioned by {done['now'] or 'nothing'}", done)


@command(app, "sort-by")
def sort_by(
    call: Call,
    name: TableName,
    columns: Annotated[str, typer.Argument(metavar="COLUMNS", help="List such as 'ts DESC, id'; '' for no order.")],
) -> None:
    """Sort the rows of a managed table that are written from now on, within files."""
    done = call.function(name, "sort_by", columns)
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
    done = call.function(name, "merge", source, on, clauses=clauses)
    counts = ", ".join(f"{done[each]} {each}" for each in ("inserted", "updated", "deleted"))
    call.print_result(f"merged into {name}: {counts}", done)


@command(app, "refresh")
def refresh(
    call: Call,
    name: TableName,
    wait: Annotated[str, typer.Option(metavar="DURATION", help="How long to wait for it, at most 1h.")] = "60s",
) -> None:
    """Read the current state of a mirrored table from its source."""
    done = call.function(name, "refresh", wait_s=duration(wait, "--wait").total_seconds())
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
    rows = call.function_rows(name, "histogram", column, bins=bins)
    columns = ["kind", "lower", "upper", "count", "share", "bar"]
    call.print_rows(rows, columns, empty=f"{name} has no rows")


def tables_in(lake: Metastore, parent: str | None) -> Iterator[Table]:
    """Yield the tables of a namespace, of all namespaces of a catalog, or of all catalogs."""
    for namespace in namespaces_in(lake, parent):
        yield from lake.tables(namespace)


MARKS: Final = {"exact": "", "estimate": "≈", "bound": "≤", "sample": "~"}
LEGEND: Final = "≈ estimate, ± its error with 95 % confidence; ≤ upper bound; ⊂ within these bounds; others are exact"
SAMPLE_LEGEND: Final = (
    "~ from the sample; bounds, and ± of distinct values, hold for the whole table with 95 % confidence"
)
MAX_VALUE_WIDTH: Final = 12
TITLES: Final = ("column", "type", "nulls", "distinct", "min", "max", "values")
NUMBERS: Final = ("nulls", "distinct")
MIN_WIDTHS: Final = {"column": 10, "type": 8, "min": 10, "max": 10, "values": 16}
"""The minimum width of columns that shrink on a narrow terminal."""


COUNTED: Final = {
    "rows_profiled": "rows.profiled",
    "sample_files": "files.sample",
    "files_not_profiled": "files.other_formats",
}
"""Figures of a description, by their keys in the properties of statistics."""
HIDDEN: Final = ("rows_quality", *COUNTED)


def _write_columns(table: Mapping[str, Any], columns: Sequence[ColumnProfile]) -> None:
    if not columns:
        reason = f"the columns are not profiled yet; profile them with: {_profile_command(table)}"
        if table["files_not_profiled"]:
            reason = _other_formats(table)
        if table["problem"]:
            reason = f"the table cannot be read: {table['problem']}"
        typer.echo(reason, err=True)
        return
    shown = [Column(title, right=title in NUMBERS, min_width=MIN_WIDTHS.get(title)) for title in TITLES]
    write_texts(Output.table, shown, [[_cells(column) for column in columns]])
    typer.echo()
    more = [_other_formats(table)] if table["files_not_profiled"] else []
    for line in (_coverage(table), *more, LEGEND, *([SAMPLE_LEGEND] if table["sample_files"] else [])):
        rendering.write_note(line)


def _cells(column: ColumnProfile) -> Sequence[str]:
    values = column.errors or column.histogram() or _top_values(column)
    bounds = (_bound(column, "min"), _bound(column, "max"))
    return (column.name, column.type, _nulls(column), _distinct(column), *bounds, values)


def _nulls(column: ColumnProfile) -> str:
    share = column.null_share
    if share is None:
        return rendering.UNKNOWN
    text = "0 %" if share == 0 else f"{share:.1%}".replace("%", " %") if share >= 0.001 else "<0.1 %"
    return MARKS.get(column.quality.get("null_count", ""), "") + text


def _distinct(column: ColumnProfile) -> str:
    distinct = column.distinct
    if distinct is None:
        return rendering.UNKNOWN
    mark = MARKS.get(column.quality.get("ndv", ""), "")
    if distinct.lower is None or distinct.upper is None or not distinct.value:
        return f"{mark}{distinct.value:,}"
    error = max(distinct.value - distinct.lower, distinct.upper - distinct.value) / distinct.value
    return f"{mark}{distinct.value:,} ±{error:.0%}".replace("%", " %")


def _bound(column: ColumnProfile, which: str) -> str:
    value = column.min if which == "min" else column.max
    if value is None:
        return rendering.UNKNOWN
    mark = "⊂" if column.quality.get(which) == "bound" else ""
    return mark + _short(value)


def _short(value: str) -> str:
    """Shorten a value: round long fractions and truncate long text."""
    one_line = " ".join(value.split())
    if len(one_line) <= MAX_VALUE_WIDTH:
        return one_line
    try:
        return f"{float(one_line):.6g}"
    except ValueError:
        return f"{one_line[: MAX_VALUE_WIDTH - 1]}…"


def _top_values(column: ColumnProfile) -> str:
    """The most frequent values with their shares."""
    mark = MARKS.get(column.quality.get("top_values", ""), "")
    shares = [
        f"{_short('NULL' if each.value is None else each.value)} {mark}{each.count / max(column.values, 1):.0%}"
        for each in column.top_values[:4]
    ]
    return ", ".join(shares).replace("%", " %")


def _profile_command(table: Mapping[str, Any]) -> str:
    if table["origin"] == "managed":
        return f"skiway stats profile {table['name']} --watch"
    return f"skiway connectors sync {table['origin']} --watch"


def _other_formats(table: Mapping[str, Any]) -> str:
    return (
        f"{table['files_not_profiled']:,} of {table['data_files']:,} data files are Avro or ORC, which are read, but not profiled: "
        "rewrite them as Parquet for statistics of all rows"
    )


def _coverage(table: Mapping[str, Any]) -> str:
    rows, profiled, sample, files = (table[key] for key in ("rows", "rows_profiled", "sample_files", "data_files"))
    if rows is None or profiled is None:
        return f"the table was not profiled; the bounds are from its files. Profile it with: {_profile_command(table)}"
    if sample and files:
        return f"a sample of {sample:,} of {files:,} files was profiled, with {profiled:,} of {rows:,} rows"
    if profiled >= rows:
        return "all rows were profiled" if isinstance(rows, AtMost) else f"all {rows:,} rows were profiled"
    return f"{profiled:,} of {rows:,} rows were profiled"
