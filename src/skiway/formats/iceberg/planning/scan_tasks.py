"""Scan tasks in the JSON of the Iceberg REST specification: which files a client reads, and which delete files apply to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import InvalidArgument
from skiway.formats.iceberg.table import IcebergTable
from skiway.formats.source import Content, Snapshot, data_files
from skiway.formats.statistics import pruned

if TYPE_CHECKING:
    from skiway.airport.filters import Filter

METADATA_COLUMNS: Final = frozenset(
    {
        *("_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number"),
        *("_change_type", "_change_ordinal", "_commit_snapshot_id"),
    }
)
"""Columns that every table has: readers derive them from files and metadata."""

_CONTENTS: Final = {
    Content.DATA: "data",
    Content.POSITION_DELETES: "position-deletes",
    Content.EQUALITY_DELETES: "equality-deletes",
}


def scanned_files(table: IcebergTable, snapshot: Snapshot, condition: Filter | None, schema: pa.Schema) -> pa.Table:
    """The data files of a snapshot that may have rows which match `condition`, for `scan_tasks`."""
    return _described(table, snapshot, table.plan(snapshot, condition, schema=schema))


def appended_files(table: IcebergTable, start: int, end: int, condition: Filter | None, schema: pa.Schema) -> pa.Table:
    """The same, of the files that were added by appends after snapshot `start` up to `end`, oldest first.

    Other changes in between are left out, as in Iceberg's incremental scans of appends.
    """
    by_id = {snapshot.id: snapshot for snapshot in table.snapshots()}
    found: list[pa.Table] = []
    current = by_id.get(end)
    if current is None:
        raise _unknown("end-snapshot-id", end)
    while current is not None and current.id != start:
        parent = by_id.get(current.parent_id) if current.parent_id is not None else None
        if current.summary.get("operation") == "append":
            files = data_files(table.files(current))
            if parent is not None:
                files = files.filter(pc.invert(pc.is_in(files["path"], data_files(table.files(parent))["path"])))
            found.append(_described(table, current, pruned(files, condition, schema)))
        current = parent
    if current is None:
        raise _unknown("start-snapshot-id", start)
    return (
        pa.concat_tables(reversed(found))
        if found
        else _described(table, by_id[end], table.files(by_id[end]).slice(0, 0))
    )


def scan_tasks(
    table: IcebergTable, files: pa.Table, *, residual: Any = None, deletes_of: Snapshot | None = None
) -> dict[str, Any]:
    """Tasks for `files`; `residual` is the filter that rows must meet.

    Delete files are those of the snapshot `deletes_of`. Without it they do not apply: only rows that were added are read.
    """
    numbers: dict[int, int] = {}
    tasks = []
    for row in files.to_pylist():
        task: dict[str, Any] = {"data-file": _file(table, row)}
        if deletes_of is not None and row["deletes"]:
            task["delete-file-references"] = [numbers.setdefault(each, len(numbers)) for each in row["deletes"]]
        if residual is not None:
            task["residual-filter"] = residual
        tasks.append(task)
    if deletes_of is None or not numbers:
        return {"file-scan-tasks": tasks}
    rows = table.placed_files(deletes_of).drop_columns(["stats"]).take(pa.array(list(numbers), pa.int32()))
    return {"file-scan-tasks": tasks, "delete-files": [_file(table, row) for row in rows.to_pylist()]}


def _described(table: IcebergTable, snapshot: Snapshot, files: pa.Table) -> pa.Table:
    """Rows of the file table, with all columns that tasks need and without statistics."""
    return table.placed_files(snapshot).drop_columns(["stats"]).take(files["ordinal"])


def _file(table: IcebergTable, row: Mapping[str, Any]) -> dict[str, Any]:
    content = _CONTENTS[Content(row["content"])]
    found: dict[str, Any] = {
        "content": content,
        "file-path": row["path"],
        "file-format": row["format"],
        "spec-id": row["spec_id"],
        "partition": _partition(table, row),
        "file-size-in-bytes": row["size_bytes"],
        "record-count": row["row_count"],
    }
    more = {
        "first-row-id": row["first_row_id"] if content == "data" else None,
        "referenced-data-file": row["referenced"],
        "content-offset": row["blob_offset"],
        "content-size-in-bytes": row["blob_size"],
        "equality-ids": row["equality_ids"] or None,
    }
    return found | {name: value for name, value in more.items() if value is not None}


def _partition(table: IcebergTable, row: Mapping[str, Any]) -> Sequence[Any]:
    spec = next(each for each in table.partition_specs if each.id == row["spec_id"])
    values = row["partition"] or {}
    return [_json(values[str(field.id)]) for field in spec.fields]


def _json(value: Any) -> Any:
    """A value of a partition in the JSON of Iceberg."""
    match value:
        case datetime() | date() | time():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case bytes():
            return value.hex().upper()
    return value


def _unknown(field: str, number: int) -> InvalidArgument:
    return InvalidArgument(
        f"{field} is {number}, which is not a snapshot in the history of the scan; it may have expired: load the table and use one "
        "of its snapshots",
        key="snapshot.unknown",
        field=field,
    )
