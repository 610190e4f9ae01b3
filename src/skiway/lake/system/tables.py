"""The rows of the system tables about tables: columns, snapshots, files and statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from skiway import metastore
from skiway.formats.geometry import coordinate_system, geometry_type_name
from skiway.formats.schemas import field_id
from skiway.lake.columns import columns_of
from skiway.lake.context import Context
from skiway.metastore import Realm, connectors, statistics
from skiway.model import v1

__all__ = [
    "COLUMNS",
    "COLUMN_STATS",
    "FILES",
    "MOMENT",
    "NAMED",
    "SNAPSHOTS",
    "TABLES",
    "SystemScan",
    "VisibleTable",
    "arrow_table",
    "column_stats",
    "columns",
    "enum_name",
    "files",
    "moment_of",
    "snapshots",
    "tables",
]

MOMENT: Final = pa.timestamp("us", tz="UTC")
NAMED: Final = [pa.field("schema_name", pa.string()), pa.field("table_name", pa.string())]


@dataclass(frozen=True, slots=True)
class VisibleTable:
    """A table that the caller may see, and its schema."""

    schema_name: str
    table: v1.Table


@dataclass(frozen=True, slots=True)
class SystemScan:
    """A scan of a system table: the caller's metastore, and the tables that the caller may see."""

    realm: Realm
    context: Context
    catalog: str
    visible: Sequence[VisibleTable]

    def current_id(self, table: v1.Table) -> int | None:
        """The id of the table's current snapshot."""
        return metastore.snapshots.current_id(self.realm, table.resource_id.id)


def arrow_table(schema: pa.Schema, rows: Iterator[tuple[Any, ...]]) -> pa.Table:
    """An Arrow table made from rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def moment_of(at: Timestamp) -> datetime | None:
    """The time of a timestamp; None if it is not set."""
    return at.ToDatetime(UTC) if at.seconds or at.nanos else None


def enum_name(kind: Any, number: int, prefix: str) -> str:
    """The name of an enum value, in lower case without its prefix."""
    name: str = kind.Name(number)
    return name.removeprefix(prefix).lower()


# -- tables and their columns -----------------------------------------------------------------------------------------

TABLES: Final = pa.schema(
    [
        *NAMED,
        pa.field("table_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("format", pa.string()),
        pa.field("connector", pa.string()),
        pa.field("current_snapshot_id", pa.int64()),
        pa.field("row_count", pa.int64()),
        pa.field("file_count", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("comment", pa.string()),
        pa.field("created_at", MOMENT),
        pa.field("updated_at", MOMENT),
    ]
)


def tables(scan: SystemScan) -> pa.Table:
    """One row per table."""

    def row(shown: VisibleTable) -> tuple[Any, ...]:
        table, realm = shown.table, scan.realm
        number = scan.current_id(table)
        stats = None if number is None else statistics.table_statistics(realm, table.resource_id.id, number)
        counts = (None,) * 3 if stats is None else (stats.row_count, stats.data_file_count, stats.total_size_bytes)
        return (
            shown.schema_name,
            table.display_name,
            table.resource_id.id,
            "managed" if table.metadata_location else "mirrored",
            "iceberg" if table.metadata_location else enum_name(v1.TableFormat, table.upstream.format, "TF_"),
            _connector(realm, table),
            number,
            *counts,
            table.description if table.HasField("description") else None,
            moment_of(table.created_at),
            moment_of(table.updated_at),
        )

    return arrow_table(TABLES, map(row, scan.visible))


def _connector(realm: Realm, table: v1.Table) -> str | None:
    found = connectors.find(realm, table.upstream.connector_id.id)
    return None if found is None else found.value.display_name


COLUMNS: Final = pa.schema(
    [
        *NAMED,
        pa.field("column_name", pa.string()),
        pa.field("ordinal", pa.int32()),
        pa.field("column_id", pa.int64()),
        pa.field("type", pa.string()),
        pa.field("is_nullable", pa.bool_()),
        pa.field("comment", pa.string()),
    ]
)


def columns(scan: SystemScan) -> pa.Table:
    """One row per column, in the order of the tables' columns. Tables with an invalid schema have none."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            try:
                stored = columns_of(shown.table.schema_json).stored
            except ValueError:
                continue
            for place, field in enumerate(stored, start=1):
                doc = (field.metadata or {}).get(b"doc")
                values = (place, field_id(field), _type(field), field.nullable, doc.decode() if doc else None)
                yield (shown.schema_name, shown.table.display_name, field.name, *values)

    return arrow_table(COLUMNS, rows())


def _type(field: pa.Field) -> str:
    crs = coordinate_system(field)
    return str(field.type) if crs is None else geometry_type_name(crs)


# -- snapshots, files and statistics ----------------------------------------------------------------------------------

SNAPSHOTS: Final = pa.schema(
    [
        *NAMED,
        pa.field("snapshot_id", pa.int64()),
        pa.field("parent_id", pa.int64()),
        pa.field("is_current", pa.bool_()),
        pa.field("created_at", MOMENT),
        pa.field("ingested_at", MOMENT),
        pa.field("sequence_number", pa.int64()),
        pa.field("schema_id", pa.int32()),
        pa.field("operation", pa.string()),
        pa.field("summary", pa.map_(pa.string(), pa.string())),
    ]
)


def snapshots(scan: SystemScan) -> pa.Table:
    """One row per snapshot, by id."""

    def rows() -> Iterator[tuple[Any, ...]]:
        realm = scan.realm
        for shown in scan.visible:
            now = scan.current_id(shown.table)
            for snapshot in metastore.snapshots.scan(realm, shown.table.resource_id.id):
                yield _snapshot_row(shown, snapshot, now)

    return arrow_table(SNAPSHOTS, rows())


def _snapshot_row(shown: VisibleTable, snapshot: v1.Snapshot, now: int | None) -> tuple[Any, ...]:
    return (
        shown.schema_name,
        shown.table.display_name,
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id if snapshot.HasField("parent_snapshot_id") else None,
        snapshot.snapshot_id == now,
        moment_of(snapshot.upstream_created_at),
        moment_of(snapshot.ingested_at),
        snapshot.sequence_number,
        snapshot.schema_id,
        snapshot.summary.get("operation"),
        sorted(snapshot.summary.items()),
    )


FILES: Final = pa.schema(
    [
        *NAMED,
        pa.field("snapshot_id", pa.int64()),
        pa.field("path", pa.string()),
        pa.field("format", pa.string()),
        pa.field("content", pa.string()),
        pa.field("row_count", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("partition", pa.string()),
        pa.field("sequence_number", pa.int64()),
    ]
)
_CONTENTS: Final = ["", "data", "position_deletes", "equality_deletes"]


def files(scan: SystemScan) -> pa.Table:
    """One row per file of each current snapshot. Only the names are copied."""
    parts = [FILES.empty_table()]
    for shown in scan.visible:
        number = scan.current_id(shown.table)
        if number is not None:
            found = statistics.file_statistics(scan.realm, shown.table.resource_id.id, number)
            parts.append(_file_rows(shown, number, found))
    return pa.concat_tables(parts)


def _file_rows(shown: VisibleTable, snapshot_id: int, found: pa.Table) -> pa.Table:
    count = found.num_rows
    arrays = [
        pa.repeat(pa.scalar(shown.schema_name), count),
        pa.repeat(pa.scalar(shown.table.display_name), count),
        pa.repeat(pa.scalar(snapshot_id, pa.int64()), count),
        found["file_path"],
        found["file_format"],
        pa.array(_CONTENTS).take(found["file_content"].combine_chunks()),
        found["row_count"],
        found["size_bytes"],
        found["partition_data_json"],
        found["sequence_number"],
    ]
    return pa.table(arrays, schema=FILES)


COLUMN_STATS: Final = pa.schema(
    [
        *NAMED,
        pa.field("snapshot_id", pa.int64()),
        pa.field("column_id", pa.int64()),
        pa.field("column_name", pa.string()),
        pa.field("type", pa.string()),
        pa.field("value_count", pa.int64()),
        pa.field("null_count", pa.int64()),
        pa.field("nan_count", pa.int64()),
        pa.field("distinct_count", pa.float64()),
        pa.field("min", pa.string()),
        pa.field("max", pa.string()),
    ]
)


def column_stats(scan: SystemScan) -> pa.Table:
    """One row per profiled column, in the current snapshot."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            number = scan.current_id(shown.table)
            known = (
                () if number is None else statistics.column_statistics(scan.realm, shown.table.resource_id.id, number)
            )
            for column in known:
                yield (shown.schema_name, shown.table.display_name, number, *_column_row(column))

    return arrow_table(COLUMN_STATS, rows())


def _column_row(column: v1.ColumnStats) -> tuple[Any, ...]:
    optional = [getattr(column, name) if column.HasField(name) else None for name in ("null_count", "nan_count")]
    mode = column.ndv.WhichOneof("mode")
    distinct = float(column.ndv.exact) if mode == "exact" else column.ndv.approx.estimate if mode else None
    bounds = [column.min if column.HasField("min") else None, column.max if column.HasField("max") else None]
    values = (column.column_id, column.column_name, column.logical_type, column.value_count)
    return (*values, *optional, distinct, *bounds)
