"""`skiway stats`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.cli.jobs import report_start
from skiway.cli.tables import AtSnapshot, Parent, TableName, tables_in

if TYPE_CHECKING:
    from skiway.client.metastore import Table, TableStats
    from skiway.model import v1

__all__ = ["app"]


app = group("stats", "Show and compute statistics of tables, columns and files.")


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
            stats.row_count,
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


@command(app, "list")
def list_(call: Call, parent: Parent = None) -> None:
    """List tables with their row counts and how many rows were profiled."""
    found = (StatsRecord.of(each, each.stats) for each in tables_in(call.lake, parent))
    columns = ["table", "rows", "quality", "rows_profiled", "size_bytes", "data_files", "updated_at"]
    call.print_rows(found, columns, empty="there are no tables here")


@command(app, "show")
def show(call: Call, name: TableName, at: AtSnapshot = None) -> None:
    """Show the statistics of a table.

    `skiway tables describe` shows those of its columns.
    """
    table = call.lake.tables.get(name)
    call.print_record(StatsRecord.of(table, call.lake.statistics.get(table, at)))


@command(app, "files")
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


@command(app, "profile")
def profile(
    call: Call,
    name: TableName,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job until it ends.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Profile again, even if the snapshot was profiled before.")
    ] = False,
) -> None:
    """Compute statistics of a managed table with Spark.

    Tables of a connector are profiled by `skiway connectors sync`.
    """
    report_start(call, call.lake.tables.profile(name, full_rescan=full), {}, watch=watch)
