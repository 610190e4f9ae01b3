"""The rows of the system tables about statistics: of columns, now and in earlier snapshots, and of partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa

from skiway.lake.system.scanning import DAMAGE, MOMENT, NAMED, SystemScan, arrow_table, moment_of, readable, unknown
from skiway.metastore import statistics
from skiway.model import v1

__all__ = ["COLUMN_HISTORY", "COLUMN_STATS", "PARTITIONS", "column_history", "column_stats", "partitions"]

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
        DAMAGE,
    ]
)


def column_stats(scan: SystemScan) -> pa.Table:
    """One row per profiled column, in the current snapshot; one row without a column if the statistics are damaged."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            number = scan.current_id(shown.table)
            if number is None:
                continue
            known, damage = readable(partial(statistics.present_column_statistics, scan.realm, shown.table, number))
            if damage:
                yield (*shown.names, number, *unknown(COLUMN_STATS, 4), damage)
            for column in known or ():
                yield (*shown.names, number, *_column_row(column), None)

    return arrow_table(COLUMN_STATS, rows())


def _column_row(column: v1.ColumnStats) -> tuple[Any, ...]:
    optional = [getattr(column, name) if column.HasField(name) else None for name in ("null_count", "nan_count")]
    mode = column.ndv.WhichOneof("mode")
    distinct = float(column.ndv.exact) if mode == "exact" else column.ndv.approx.estimate if mode else None
    bounds = [column.min if column.HasField("min") else None, column.max if column.HasField("max") else None]
    values = (column.column_id, column.column_name, column.logical_type, column.value_count)
    return (*values, *optional, distinct, *bounds)


COLUMN_HISTORY: Final = pa.schema(
    [
        *NAMED,
        pa.field("snapshot_id", pa.int64()),
        pa.field("snapshot_created_at", MOMENT),
        pa.field("profiled_at", MOMENT),
        pa.field("column_id", pa.int64()),
        pa.field("column_name", pa.string()),
        pa.field("type", pa.string()),
        pa.field("value_count", pa.int64()),
        pa.field("null_count", pa.int64()),
        pa.field("nan_count", pa.int64()),
        pa.field("distinct_count", pa.float64()),
        pa.field("min", pa.string()),
        pa.field("max", pa.string()),
        pa.field("quantiles", pa.map_(pa.string(), pa.string())),
        pa.field("top_values", pa.list_(pa.struct({"value": pa.string(), "count": pa.int64()}))),
        DAMAGE,
    ]
)


def column_history(scan: SystemScan) -> pa.Table:
    """One row per column and profiled snapshot, the newest first; one row without a snapshot if the history is damaged."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            known, damage = readable(partial(statistics.statistics_history, scan.realm, shown.table.resource_id.id))
            if damage:
                yield (*shown.names, *unknown(COLUMN_HISTORY, 3), damage)
            for snapshot in known or ():
                moments = moment_of(snapshot.created_at), moment_of(snapshot.profiled_at)
                for column in snapshot.columns:
                    yield (*shown.names, snapshot.snapshot_id, *moments, *_column_row(column), *_spread(column), None)

    return arrow_table(COLUMN_HISTORY, rows())


def _spread(column: v1.ColumnStats) -> tuple[Any, Any]:
    """The quantiles and frequent values of a column; None if it has none."""
    quantiles = json.loads(column.properties.get("quantiles", "{}"))
    top = json.loads(column.properties.get("top_values", "[]"))
    return list(quantiles.items()) or None, [{"value": value, "count": count} for value, count in top] or None


PARTITIONS: Final = pa.schema(
    [
        *NAMED,
        pa.field("snapshot_id", pa.int64()),
        pa.field("spec_id", pa.int32()),
        pa.field("partition", pa.string()),
        pa.field("row_count", pa.int64()),
        pa.field("size_bytes", pa.int64()),
        pa.field("data_file_count", pa.int64()),
        pa.field("delete_file_count", pa.int64()),
        DAMAGE,
    ]
)


def partitions(scan: SystemScan) -> pa.Table:
    """One row per partition of each current snapshot; one row without a partition if the list of files is damaged."""
    parts = [PARTITIONS.empty_table()]
    for shown in scan.visible:
        number = scan.current_id(shown.table)
        if number is None:
            continue
        found, damage = readable(partial(statistics.file_statistics, scan.realm, shown.table.resource_id.id, number))
        if found is None:
            row = (*shown.names, number, *unknown(PARTITIONS, 4), damage)
            parts.append(arrow_table(PARTITIONS, iter([row])))
            continue
        counted = statistics.partition_statistics(found)
        names = [pa.repeat(pa.scalar(each), counted.num_rows) for each in shown.names]
        snapshot_ids = pa.repeat(pa.scalar(number, pa.int64()), counted.num_rows)
        damages = pa.nulls(counted.num_rows, pa.string())
        parts.append(pa.table([*names, snapshot_ids, *counted.columns, damages], schema=PARTITIONS))
    return pa.concat_tables(parts)
