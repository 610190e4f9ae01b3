"""The rows of the system tables about tables: their columns, snapshots and files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from skiway import metastore
from skiway.formats.geometry import coordinate_system, geometry_type_name
from skiway.formats.schemas import field_id
from skiway.lake.columns import columns_of
from skiway.lake.system.scanning import (
    DAMAGE,
    MOMENT,
    NAMED,
    SystemScan,
    VisibleTable,
    arrow_table,
    enum_name,
    moment_of,
    readable,
    unknown,
)
from skiway.metastore import Realm, connectors, statistics
from skiway.model import v1

__all__ = ["COLUMNS", "FILES", "SNAPSHOTS", "TABLES", "columns", "files", "snapshots", "tables"]

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
        pa.field("row_count_is_bound", pa.bool_()),
        pa.field("file_count", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("comment", pa.string()),
        pa.field("created_at", MOMENT),
        pa.field("updated_at", MOMENT),
        pa.field("problem", pa.string()),
        DAMAGE,
    ]
)


def tables(scan: SystemScan) -> pa.Table:
    """One row per table."""

    def row(shown: VisibleTable) -> tuple[Any, ...]:
        table, realm = shown.table, scan.realm
        number = scan.current_id(table)
        if table.damage:
            return (*shown.names, table.resource_id.id, *unknown(TABLES, 4), table.damage)
        stats, damage = readable(lambda: scan.statistics_of(table, number))
        counts: tuple[Any, ...] = (None,) * 4
        if stats is not None:
            counts = (stats.row_count, statistics.is_row_bound(stats), stats.data_file_count, stats.total_size_bytes)
        return (
            *shown.names,
            table.resource_id.id,
            "managed" if table.metadata_location else "mirrored",
            "iceberg" if table.metadata_location else enum_name(v1.TableFormat, table.upstream.format, "TF_"),
            _connector(realm, table),
            number,
            *counts,
            table.description if table.HasField("description") else None,
            moment_of(table.created_at),
            moment_of(table.updated_at),
            metastore.tables.problem_of(realm, table) or None,
            f"statistics: {damage}" if damage else None,
        )

    return arrow_table(TABLES, map(row, scan.visible))


def _connector(realm: Realm, table: v1.Table) -> str | None:
    found, _ = readable(lambda: connectors.find(realm, table.upstream.connector_id.id))
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
        DAMAGE,
    ]
)


def columns(scan: SystemScan) -> pa.Table:
    """One row per column, in the order of the tables' columns. A table whose columns are unknown has one row without a column."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            if shown.table.damage:
                yield (*shown.names, *unknown(COLUMNS, 3), shown.table.damage)
                continue
            try:
                stored = columns_of(shown.table.schema_json).stored
            except ValueError as error:
                yield (
                    *shown.names,
                    *unknown(COLUMNS, 3),
                    metastore.tables.problem_of(scan.realm, shown.table) or str(error),
                )
                continue
            for place, field in enumerate(stored, start=1):
                doc = (field.metadata or {}).get(b"doc")
                values = (place, field_id(field), _type(field), field.nullable, doc.decode() if doc else None)
                yield (*shown.names, field.name, *values, None)

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
        DAMAGE,
    ]
)


def snapshots(scan: SystemScan) -> pa.Table:
    """One row per snapshot, by id."""

    def rows() -> Iterator[tuple[Any, ...]]:
        realm = scan.realm
        for shown in scan.visible:
            now = scan.current_id(shown.table)
            for snapshot in metastore.snapshots.entries(realm, shown.table.resource_id.id):
                yield _snapshot_row(shown, snapshot, now)

    return arrow_table(SNAPSHOTS, rows())


def _snapshot_row(shown: VisibleTable, snapshot: v1.Snapshot, now: int | None) -> tuple[Any, ...]:
    if snapshot.damage:
        place = (*shown.names, snapshot.snapshot_id, None, snapshot.snapshot_id == now)
        return (*place, *unknown(SNAPSHOTS, 6), snapshot.damage)
    return (
        *shown.names,
        snapshot.snapshot_id,
        snapshot.parent_snapshot_id if snapshot.HasField("parent_snapshot_id") else None,
        snapshot.snapshot_id == now,
        moment_of(snapshot.upstream_created_at),
        moment_of(snapshot.ingested_at),
        snapshot.sequence_number,
        snapshot.schema_id,
        snapshot.summary.get("operation"),
        sorted(snapshot.summary.items()),
        None,
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
        DAMAGE,
    ]
)
_CONTENTS: Final = ["", "data", "position_deletes", "equality_deletes"]


def files(scan: SystemScan) -> pa.Table:
    """One row per file of each current snapshot; one row without a file if the list of files is damaged.

    Only the names are copied.
    """
    parts = [FILES.empty_table()]
    for shown in scan.visible:
        number = scan.current_id(shown.table)
        if number is not None:
            found, damage = readable(
                partial(statistics.file_statistics, scan.realm, shown.table.resource_id.id, number)
            )
            row = (*shown.names, number, *unknown(FILES, 4), damage)
            parts.append(_file_rows(shown, number, found) if found is not None else arrow_table(FILES, iter([row])))
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
        pa.nulls(count, pa.string()),
    ]
    return pa.table(arrays, schema=FILES)
