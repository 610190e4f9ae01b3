"""`skiway snapshots` and `skiway stats`: the states of tables, and statistics of tables, columns and files."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skiway.cli.command import Call, command, confirm, group
from skiway.cli.lake.jobs import Watch, connector_names, report_start
from skiway.cli.lake.tables import tables_in
from skiway.cli.options import AtSnapshot, Parent, TableName, Yes
from skiway.errors import NotFound
from skiway.presentation.tables import ColumnProfile, TableRecord, picked, row_count

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Snapshot, Table, TableStats
    from skiway.model import v1

snapshots_app = group("snapshots", "Manage snapshots, the states of a table that can be read.")

RefName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
Replace = Annotated[bool, typer.Option("--replace", help="Move the name if it exists.")]
Number = Annotated[int, typer.Argument(metavar="SNAPSHOT", help="Snapshot id.")]


def _snapshot(snapshot: Snapshot, current_id: int | None) -> dict[str, Any]:
    """A snapshot in the output. `rows` and `data_files` are from the summary of its writer."""
    summary = dict(snapshot.summary)
    return {
        "id": snapshot.id,
        "current": snapshot.id == current_id,
        **picked(snapshot, "created_at", "ingested_at"),
        "operation": summary.get("operation"),
        "rows": _number(summary.get("total-records")),
        "data_files": _number(summary.get("total-data-files")),
        "parent_id": snapshot.parent_id,
        "schema_id": snapshot.message.schema_id,
        "summary": summary,
        "damage": snapshot.damage or None,
    }


@command(snapshots_app, "list")
def list_snapshots(call: Call, table: TableName) -> None:
    """List the snapshots of a table, newest first."""
    current = _current_id(call.lake, table)
    records = (_snapshot(snapshot, current) for snapshot in call.lake.snapshots(table))
    columns = ["id", "current", "created_at", "operation", "rows", "data_files"]
    call.print_rows(records, columns, empty=f"{table} has no snapshots yet")


@command(snapshots_app, "get")
def get_snapshot(call: Call, table: TableName, number: Number) -> None:
    """Show a snapshot."""
    snapshot = call.lake.snapshots.get(table, number)
    call.print_record(_snapshot(snapshot, _current_id(call.lake, table)))


@command(snapshots_app, "set-current")
def set_current(call: Call, table: TableName, number: Number) -> None:
    """Make a snapshot the current one, to roll back.

    That of a mirrored table lasts until the next sync.
    """
    if TableRecord.of(call.lake.tables.get(table), connector_names(call.lake)).origin == "managed":
        call.function(table, "rollback_to", number)
        current = call.lake.snapshots.get(table, number)
    else:
        current = call.lake.snapshots.set_current(table, number)
    call.print_result(f"the current snapshot of {table} is now {current.id}", _snapshot(current, number))


@command(snapshots_app, "tag")
def tag(call: Call, table: TableName, name: RefName, snapshot: AtSnapshot = None, replace: Replace = False) -> None:
    """Give a snapshot of a managed table a name, which AT (VERSION => 'name') reads."""
    _set_ref(call, table, "tag", name, snapshot, replace)


@command(snapshots_app, "branch")
def branch(call: Call, table: TableName, name: RefName, snapshot: AtSnapshot = None, replace: Replace = False) -> None:
    """Start a branch of a managed table at a snapshot, for programs that commit to branches."""
    _set_ref(call, table, "branch", name, snapshot, replace)


def _set_ref(call: Call, table: str, kind: str, name: str, snapshot: int | None, replace: bool) -> None:
    done = call.function(table, kind, name, snapshot=snapshot, replace=replace)
    call.print_result(f"{kind} {name} of {table} is snapshot {done['snapshot_id']}", done)


@command(snapshots_app, "delete")
def delete_snapshot(call: Call, table: TableName, number: Number, yes: Yes = False) -> None:
    """Delete a snapshot of a mirrored table and its statistics.

    The current snapshot can be deleted only if it is the last one.
    """
    snapshot = call.lake.snapshots.get(table, number)
    confirm(f"Delete snapshot {snapshot.id} of {table}?", yes=yes)
    call.lake.snapshots.delete(table, number)
    call.print_result(f"deleted snapshot {snapshot.id} of {table}", _snapshot(snapshot, None))


def _current_id(lake: Metastore, table: str) -> int | None:
    """Return the id of a table's current snapshot, or None if it has no snapshots."""
    try:
        return lake.snapshots.get(table).id
    except NotFound as error:
        if error.key != "snapshot.none":
            raise
        return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None


stats_app = group("stats", "Show and compute statistics of tables, columns and files.")


def _stats(table: Table, stats: TableStats) -> dict[str, Any]:
    """The statistics of a table in a snapshot, in the output; None means unknown. `quality` is that of `rows`."""
    properties = dict(stats.properties)
    return {
        "table": str(table),
        "snapshot_id": stats.snapshot_id,
        "rows": row_count(stats.row_count, is_bound=stats.row_count_is_bound),
        "quality": properties.get("quality.row_count"),
        "rows_profiled": int(properties["rows.profiled"]) if "rows.profiled" in properties else None,
        **picked(stats, "data_files=data_file_count", "size_bytes=total_size_bytes", "updated_at", "properties"),
    }


def _file(file: v1.FileColumnStats) -> dict[str, Any]:
    """A file of a snapshot in the output."""
    from skiway.client.metastore.resources import value_of

    partition = None if file.partition_data_json in ("", "{}") else file.partition_data_json
    sizes = picked(file, "rows=row_count", "size_bytes")
    return {"path": file.file_path, "content": value_of(file, "file_content"), **sizes, "partition": partition}


def _partition(partition: v1.PartitionStats) -> dict[str, Any]:
    """A partition of a snapshot in the output. Rows include deleted ones."""
    return {
        "partition": partition.partition_data_json or "{}",
        **picked(partition, "spec_id=partition_spec_id", "rows=row_count", "size_bytes"),
        **picked(partition, "data_files=data_file_count", "delete_files=delete_file_count"),
        "columns": tuple(ColumnProfile.of(column, column.logical_type.lower()) for column in partition.columns),
    }


def _column_history(snapshot: v1.ProfiledSnapshot, column: v1.ColumnStats) -> dict[str, Any]:
    """The statistics of a column in a profiled snapshot, in the output."""
    from skiway.client.metastore.resources import value_of

    profile = ColumnProfile.of(column, column.logical_type.lower())
    return {
        "column": profile.name,
        "snapshot_id": snapshot.snapshot_id,
        "snapshot_at": value_of(snapshot, "created_at"),
        "profiled_at": value_of(snapshot, "profiled_at"),
        "rows": row_count(snapshot.row_count, is_bound=snapshot.row_count_is_bound),
        "nulls": profile.nulls,
        "distinct": profile.distinct.value if profile.distinct else None,
        "min": profile.min,
        "median": profile.quantiles.get("0.5"),
        "top": ", ".join(f"{top.value} ({top.count:,})" for top in profile.top_values[:3]),
        **picked(profile, "max", "quantiles", "top_values", "quality"),
    }


@command(stats_app, "list")
def list_stats(call: Call, parent: Parent = None) -> None:
    """List tables with their row counts and how many rows were profiled."""
    records = (_stats(table, table.stats) for table in tables_in(call.lake, parent))
    columns = ["table", "rows", "quality", "rows_profiled", "size_bytes", "data_files", "updated_at"]
    call.print_rows(records, columns, empty="there are no tables here")


@command(stats_app, "get")
def get_stats(call: Call, name: TableName, at: AtSnapshot = None) -> None:
    """Show the statistics of a table.

    `skiway tables describe` shows those of its columns.
    """
    table = call.lake.tables.get(name)
    call.print_record(_stats(table, call.lake.statistics.get(table, at)))


@command(stats_app, "files")
def files(
    call: Call,
    name: TableName,
    at: AtSnapshot = None,
    limit: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Maximum number of files; all by default.")
    ] = None,
) -> None:
    """List the files of a table."""
    records = map(_file, islice(call.lake.statistics.files(name, at), limit))
    call.print_rows(records, ["path", "content", "rows", "size_bytes", "partition"], empty=f"{name} has no files")


@command(stats_app, "partitions")
def partitions(call: Call, name: TableName, at: AtSnapshot = None) -> None:
    """List the partitions of a table with their rows, bytes and files.

    JSON also has counts and bounds of their columns.
    """
    records = map(_partition, call.lake.statistics.partitions(name, at))
    columns = ["partition", "rows", "size_bytes", "data_files", "delete_files"]
    call.print_rows(records, columns, empty=f"{name} has no files")


@command(stats_app, "history")
def history(
    call: Call,
    name: TableName,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", "-c", metavar="COLUMN", help="Only this column; can be repeated."),
    ] = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="Maximum number of snapshots.")] = None,
) -> None:
    """Show how the statistics of columns changed over time.

    There is an entry for each profiled snapshot, the newest first, even if it has expired.
    """
    snapshots = islice(call.lake.statistics.history(name, columns=tuple(column or ())), limit)
    records = [_column_history(snapshot, column) for snapshot in snapshots for column in snapshot.columns]
    order = list(dict.fromkeys(record["column"] for record in records))
    columns = ["column", "snapshot_at", "rows", "nulls", "distinct", "min", "median", "max", "top"]
    empty = f"{name} has no profiles of these columns; profile it with: skiway stats profile {name}"
    records.sort(key=lambda record: order.index(record["column"]))
    call.print_rows(records, columns, empty=empty)


@command(stats_app, "profile")
def profile(
    call: Call,
    name: TableName,
    watch: Watch = False,
    full: Annotated[
        bool, typer.Option("--full", help="Read all files again, even if they were profiled before.")
    ] = False,
) -> None:
    """Compute statistics of a managed table with Spark.

    Tables of a connector are profiled by `skiway connectors sync`.
    """
    report_start(call, call.lake.tables.profile(name, full_rescan=full), {}, watch=watch)
