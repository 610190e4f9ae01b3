"""The files of a snapshot as one Arrow table, sorted by path: what planners prune at once, and pages are cut from.

A row is a file. `columns` holds, per column, what pruning looks at, and in `rest` a message with what it does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from skiway.model import v1

__all__ = ["SCHEMA", "files_after", "last_puts", "merged", "opened", "rows", "written"]

PLAIN = (
    "file_path",
    "file_format",
    "row_count",
    "size_bytes",
    "file_content",
    "partition_data_json",
    "partition_spec_id",
)
IN_COLUMN = ("column_id", "column_name", "logical_type", "value_count", "null_count", "nan_count", "min", "max")
OPTIONAL = ("null_count", "nan_count", "min", "max")

COLUMN = pa.struct(
    {
        "column_id": pa.int64(),
        "column_name": pa.string(),
        "logical_type": pa.string(),
        "value_count": pa.int64(),
        "null_count": pa.int64(),
        "nan_count": pa.int64(),
        "min": pa.string(),
        "max": pa.string(),
        "rest": pa.binary(),
    }
)
SCHEMA = pa.schema(
    {
        "file_path": pa.string(),
        "file_format": pa.string(),
        "row_count": pa.int64(),
        "size_bytes": pa.int64(),
        "file_content": pa.int32(),
        "partition_data_json": pa.string(),
        "partition_spec_id": pa.int32(),
        "equality_field_ids": pa.list_(pa.int32()),
        "sequence_number": pa.int64(),
        "etag": pa.string(),  # of the content, where the table's format does not promise that it stays
        "columns": pa.list_(COLUMN),
        "put_key": pa.string(),
        "put_fingerprint": pa.string(),
        "put_expires_at": pa.timestamp("us", tz="UTC"),
    }
)


def opened(data: bytes) -> pa.Table:
    """The table in an Arrow file, without a copy; an empty one for no bytes."""
    return pa.ipc.open_file(pa.py_buffer(data)).read_all() if data else SCHEMA.empty_table()


def written(table: pa.Table) -> bytes:
    """The table as an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def rows(files: Iterable[v1.FileColumnStats], puts: Mapping[str, v1.ItemPut]) -> pa.Table:
    """Messages as rows; `puts` tells by path which key a file came with."""
    return pa.Table.from_pylist([_row(file, puts.get(file.file_path)) for file in files], schema=SCHEMA)


def merged(table: pa.Table, newer: pa.Table) -> pa.Table:
    """Both, where `newer` replaces what `table` has of the same path."""
    kept = table.filter(pc.invert(pc.is_in(table["file_path"], value_set=newer["file_path"].combine_chunks())))
    return pa.concat_tables([kept, newer]).sort_by("file_path").combine_chunks()


def files_after(
    table: pa.Table, path: str, *, limit: int, table_id: v1.ResourceId, snapshot_id: int
) -> list[v1.FileColumnStats]:
    """Up to `limit` files whose paths follow `path`, in the order of paths."""
    page = table.filter(pc.greater(table["file_path"], path)).slice(0, limit) if path else table.slice(0, limit)
    return [_file(row, table_id, snapshot_id) for row in page.to_pylist()]


def last_puts(table: pa.Table, paths: Iterable[str], *, now: datetime) -> dict[str, v1.ItemPut]:
    """Which keys these files last came with, as far as the keys have not expired."""
    wanted = pc.is_in(table["file_path"], value_set=pa.array(list(paths), pa.string()))
    live = pc.fill_null(pc.greater(table["put_expires_at"], pa.scalar(now, pa.timestamp("us", tz="UTC"))), False)
    found = table.filter(pc.and_(wanted, live)).select(["file_path", "put_key", "put_fingerprint"])
    return {
        row["file_path"]: v1.ItemPut(key=row["put_key"], fingerprint=row["put_fingerprint"])
        for row in found.to_pylist()
    }


def _row(file: v1.FileColumnStats, put: v1.ItemPut | None) -> dict[str, Any]:
    return {
        **{field: getattr(file, field) for field in PLAIN},
        "equality_field_ids": list(file.equality_field_ids),
        "sequence_number": file.sequence_number if file.HasField("sequence_number") else None,
        "columns": [_column_row(column) for column in file.columns],
        "put_key": put.key if put else None,
        "put_fingerprint": put.fingerprint if put else None,
        "put_expires_at": put.expires_at.ToMicroseconds() if put else None,
    }


def _column_row(column: v1.ColumnStats) -> dict[str, Any]:
    absent = {field for field in OPTIONAL if not column.HasField(field)}  # type: ignore[arg-type]
    rest = v1.ColumnStats()
    rest.CopyFrom(column)
    for field in ("table_id", "snapshot_id", *IN_COLUMN):
        rest.ClearField(field)  # type: ignore[arg-type]
    shown = {field: None if field in absent else getattr(column, field) for field in IN_COLUMN}
    return {**shown, "rest": rest.SerializeToString(deterministic=True)}


def _file(row: Mapping[str, Any], table_id: v1.ResourceId, snapshot_id: int) -> v1.FileColumnStats:
    return v1.FileColumnStats(
        table_id=table_id,
        snapshot_id=snapshot_id,
        **{field: row[field] for field in PLAIN},
        equality_field_ids=row["equality_field_ids"],
        sequence_number=row["sequence_number"],
        columns=[_column(column, table_id, snapshot_id) for column in row["columns"]],
    )


def _column(row: Mapping[str, Any], table_id: v1.ResourceId, snapshot_id: int) -> v1.ColumnStats:
    column = v1.ColumnStats.FromString(row["rest"])
    column.MergeFrom(
        v1.ColumnStats(table_id=table_id, snapshot_id=snapshot_id, **{field: row[field] for field in IN_COLUMN})
    )
    return column
