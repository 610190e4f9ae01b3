"""Statistics: what profiles on Spark found out about tables, columns and files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from skiway.cli.command import Call, noun, verb
from skiway.cli.tables import At, Name, Parent, tables_in

if TYPE_CHECKING:
    from skiway.client.metastore import Table, TableStats
    from skiway.model import v1

__all__ = []


app = noun("stats", __doc__)


@dataclass(frozen=True, slots=True)
class StatsRecord:
    """What is known of a table in a snapshot, as it is written. `quality` says how far `rows` can be trusted."""

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
        """What there is to tell; None where it is not known."""
        noted = dict(stats.properties)
        return cls(
            str(table),
            stats.snapshot_id,
            stats.row_count,
            noted.get("quality.row_count"),
            int(noted["rows.profiled"]) if "rows.profiled" in noted else None,
            stats.data_file_count,
            stats.total_size_bytes,
            stats.updated_at,
            noted,
        )


@dataclass(frozen=True, slots=True)
class FileRecord:
    """A file of a snapshot, as it is written."""

    path: str
    content: str
    rows: int
    size_bytes: int
    partition: str | None

    @classmethod
    def of(cls, file: v1.FileColumnStats) -> FileRecord:
        """What there is to tell of it."""
        from skiway.model import v1

        content = v1.FileContent.Name(file.file_content).removeprefix("FC_").lower()
        return cls(file.file_path, content, file.row_count, file.size_bytes, _partition(file.partition_data_json))


def _partition(told: str) -> str | None:
    return None if told in ("", "{}") else told


@verb(app, "list")
def list_(call: Call, parent: Parent = None) -> None:
    """List tables with how much of them is known."""
    found = (StatsRecord.of(each, each.stats) for each in tables_in(call.lake, parent))
    columns = ["table", "rows", "quality", "rows_profiled", "size_bytes", "data_files", "updated_at"]
    call.rows(found, columns, nothing="there are no tables here")


@verb(app, "show")
def show(call: Call, name: Name, at: At = None) -> None:
    """Show the statistics of a table in a snapshot; `skiway tables describe` shows those of its columns."""
    table = call.lake.tables.get(name)
    call.record(StatsRecord.of(table, call.lake.statistics.get(table, at)))


@verb(app, "files")
def files(
    call: Call,
    name: Name,
    at: At = None,
    limit: Annotated[int | None, typer.Option(metavar="N", min=1, help="How many at most; all unless given.")] = None,
) -> None:
    """List the files of a table in a snapshot."""
    found = map(FileRecord.of, islice(call.lake.statistics.files(name, at), limit))
    call.rows(found, ["path", "content", "rows", "size_bytes", "partition"], nothing=f"{name} has no files")


@verb(app, "profile")
def profile(
    call: Call,
    name: Name,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job to its end.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Also if the snapshot was profiled before.")] = False,
) -> None:
    """Make statistics of a managed table on Spark. Those of a connector are made by `skiway connectors sync`."""
    from skiway.cli.jobs import told

    told(call, call.lake.tables.profile(name, full_rescan=full), {}, watch=watch)
