"""`skiway snapshots` and `skiway stats`: the states of tables, and statistics of tables, columns and files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.lake.jobs import connector_names, report_start
from skiway.cli.lake.tables import AtSnapshot, Parent, TableName, call_function, tables_in
from skiway.errors import NotFound
from skiway.presentation.tables import ColumnProfile, TableRecord, TopValue, row_count

if TYPE_CHECKING:
    from skiway.client.metastore import Metastore, Snapshot, Table, TableStats
    from skiway.model import v1

snapshots_app = group("snapshots", "Manage snapshots, the states of a table that can be read.")

OfTable = Annotated[str, typer.Argument(metavar="TABLE", help="Full name, such as lake.sales.people.")]
RefName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the snapshot.")]
Replace = Annotated[bool, typer.Option("--replace", help="Move the name if it exists.")]
Number = Annotated[int, typer.Argument(metavar="SNAPSHOT", help="Snapshot id.")]


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A snapshot in the output. `rows` and `data_files` are from the summary of its writer."""

    id: int
    current: bool
    created_at: datetime | None
    ingested_at: datetime | None
    operation: str | None
    rows: int | None
    data_files: int | None
    parent_id: int | None
    schema_id: int
    summary: dict[str, str]
    damage: str | None = None

    @classmethod
    def of(cls, snapshot: Snapshot, current_id: int | None) -> SnapshotRecord:
        """Convert a resource of the client."""
        summary = dict(snapshot.summary)
        return cls(
            snapshot.id,
            snapshot.id == current_id,
            snapshot.created_at,
            None if snapshot.damage else snapshot.ingested_at,
            summary.get("operation"),
            _number(summary.get("total-records")),
            _number(summary.get("total-data-files")),
            snapshot.parent_id,
            snapshot.message.schema_id,
            summary,
            snapshot.damage or None,
        )


@command(snapshots_app, "list")
def list_snapshots(call: Call, table: OfTable) -> None:
    """List the snapshots of a table, newest first."""
    current = _current_id(call.lake, table)
    found = (SnapshotRecord.of(each, current) for each in call.lake.snapshots(table))
    columns = ["id", "current", "created_at", "operation", "rows", "data_files"]
    call.print_rows(found, columns, empty=f"{table} has no snapshots yet")


@command(snapshots_app, "get")
def get_snapshot(call: Call, table: OfTable, number: Number) -> None:
    """Show a snapshot."""
    found = call.lake.snapshots.get(table, number)
    call.print_record(SnapshotRecord.of(found, _current_id(call.lake, table)))


@command(snapshots_app, "set-current")
def set_current(call: Call, table: OfTable, number: Number) -> None:
    """Make a snapshot the current one, to roll back.

    That of a mirrored table lasts until the next sync.
    """
    if TableRecord.of(call.lake.tables.get(table), connector_names(call.lake)).origin == "managed":
        call_function(call, table, "rollback_to", number)
        current = SnapshotRecord.of(call.lake.snapshots.get(table, number), number)
    else:
        current = SnapshotRecord.of(call.lake.snapshots.set_current(table, number), number)
    call.print_result(f"the current snapshot of {table} is now {current.id}", current)


@command(snapshots_app, "tag")
def tag(call: Call, table: OfTable, name: RefName, snapshot: AtSnapshot = None, replace: Replace = False) -> None:
    """Give a snapshot of a managed table a name, which AT (VERSION => 'name') reads."""
    _set_ref(call, table, "tag", name, snapshot, replace)


@command(snapshots_app, "branch")
def branch(call: Call, table: OfTable, name: RefName, snapshot: AtSnapshot = None, replace: Replace = False) -> None:
    """Start a branch of a managed table at a snapshot, for programs that commit to branches."""
    _set_ref(call, table, "branch", name, snapshot, replace)


def _set_ref(call: Call, table: str, kind: str, name: str, snapshot: int | None, replace: bool) -> None:
    done = call_function(call, table, kind, name, snapshot=snapshot, replace=replace)
    call.print_result(f"{kind} {name} of {table} is snapshot {done['snapshot_id']}", done)


@command(snapshots_app, "delete")
def delete_snapshot(call: Call, table: OfTable, number: Number) -> None:
    """Delete a snapshot of a mirrored table and its statistics.

    The current snapshot can be deleted only if it is the last one.
    """
    deleted = SnapshotRecord.of(call.lake.snapshots.get(table, number), None)
    call.lake.snapshots.delete(table, number)
    call.print_result(f"deleted snapshot {deleted.id} of {table}", deleted)


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


@dataclass(frozen=True, slots=True)
class StatsRecord:
    """The statistics of a table in a snapshot, in the output. `quality` is that of `rows`."""

    table: str
    snapshot_id: int | None
    rows: int | None
    quality: str | None
    rows_profiled: int | None
    data_files: int | None
    size_bytes: int | None
    updated_at: datetime | None
    properties: dict[str, str]

    @classmethod
    def of(cls, table: Table, stats: TableStats) -> StatsRecord:
        """Convert a resource of the client; None means unknown."""
        properties = dict(stats.properties)
        return cls(
            str(table),
            stats.snapshot_id,
            row_count(stats.row_count, is_bound=stats.row_count_is_bound),
            properties.get("quality.row_count"),
            int(properties["rows.profiled"]) if "rows.profiled" in properties else None,
            stats.data_file_count,
            stats.total_size_bytes,
            stats.updated_at,
            properties,
        )


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a snapshot in the output."""

    path: str
    content: str
    rows: int
    size_bytes: int
    partition: str | None

    @classmethod
    def of(cls, file: v1.FileColumnStats) -> FileRecord:
        """Convert the message."""
        from skiway.model import v1

        partition = None if file.partition_data_json in ("", "{}") else file.partition_data_json
        content = v1.FileContent.Name(file.file_content).removeprefix("FC_").lower()
        return cls(file.file_path, content, file.row_count, file.size_bytes, partition)


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition of a snapshot in the output. Rows include deleted ones."""

    partition: str
    spec_id: int
    rows: int
    size_bytes: int
    data_files: int
    delete_files: int
    columns: tuple[ColumnProfile, ...]

    @classmethod
    def of(cls, found: v1.PartitionStats) -> PartitionRecord:
        """Convert the message."""
        return cls(
            found.partition_data_json or "{}",
            found.partition_spec_id,
            found.row_count,
            found.size_bytes,
            found.data_file_count,
            found.delete_file_count,
            tuple(ColumnProfile.of(each, each.logical_type.lower()) for each in found.columns),
        )


@dataclass(frozen=True, slots=True)
class HistoryRecord:
    """The statistics of a column in a profiled snapshot, in the output."""

    column: str
    snapshot_id: int
    snapshot_at: datetime | None
    profiled_at: datetime
    rows: int | None
    nulls: int | None
    distinct: int | None
    min: str | None
    median: str | None
    max: str | None
    quantiles: dict[str, str]
    top: str
    top_values: tuple[TopValue, ...]
    quality: dict[str, str]

    @classmethod
    def of(cls, snapshot: v1.ProfiledSnapshot, column: v1.ColumnStats) -> HistoryRecord:
        """Convert the messages."""
        from datetime import UTC

        profile = ColumnProfile.of(column, column.logical_type.lower())
        return cls(
            profile.name,
            snapshot.snapshot_id,
            snapshot.created_at.ToDatetime(UTC) if snapshot.HasField("created_at") else None,
            snapshot.profiled_at.ToDatetime(UTC),
            row_count(snapshot.row_count, is_bound=snapshot.row_count_is_bound),
            profile.nulls,
            profile.distinct.value if profile.distinct else None,
            profile.min,
            profile.quantiles.get("0.5"),
            profile.max,
            profile.quantiles,
            ", ".join(f"{each.value} ({each.count:,})" for each in profile.top_values[:3]),
            profile.top_values,
            profile.quality,
        )


@command(stats_app, "list")
def list_stats(call: Call, parent: Parent = None) -> None:
    """List tables with their row counts and how many rows were profiled."""
    found = (StatsRecord.of(each, each.stats) for each in tables_in(call.lake, parent))
    columns = ["table", "rows", "quality", "rows_profiled", "size_bytes", "data_files", "updated_at"]
    call.print_rows(found, columns, empty="there are no tables here")


@command(stats_app, "show")
def show_stats(call: Call, name: TableName, at: AtSnapshot = None) -> None:
    """Show the statistics of a table.

    `skiway tables describe` shows those of its columns.
    """
    table = call.lake.tables.get(name)
    call.print_record(StatsRecord.of(table, call.lake.statistics.get(table, at)))


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
    found = map(FileRecord.of, islice(call.lake.statistics.files(name, at), limit))
    call.print_rows(found, ["path", "content", "rows", "size_bytes", "partition"], empty=f"{name} has no files")


@command(stats_app, "partitions")
def partitions(call: Call, name: TableName, at: AtSnapshot = None) -> None:
    """List the partitions of a table with their rows, bytes and files.

    JSON also has counts and bounds of their columns.
    """
    found = map(PartitionRecord.of, call.lake.statistics.partitions(name, at))
    columns = ["partition", "rows", "size_bytes", "data_files", "delete_files"]
    call.print_rows(found, columns, empty=f"{name} has no files")


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
    found = [HistoryRecord.of(snapshot, each) for snapshot in snapshots for each in snapshot.columns]
    order = list(dict.fromkeys(each.column for each in found))
    columns = ["column", "snapshot_at", "rows", "nulls", "distinct", "min", "median", "max", "top"]
    empty = f"{name} has no profiles of these columns; profile it with: skiway stats profile {name}"
    found.sort(key=lambda each: order.index(each.column))
    call.print_rows(found, columns, empty=empty)


@command(stats_app, "profile")
def profile(
    call: Call,
    name: TableName,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job until it ends.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Read all files again, even if they were profiled before.")
    ] = False,
) -> None:
    """Compute statistics of a managed table with Spark.

    Tables of a connector are profiled by `skiway connectors sync`.
    """
    report_start(call, call.lake.tables.profile(name, full_rescan=full), {}, watch=watch)
