"""The system tables about tables: their columns, snapshots, files, statistics, partitions and quality rules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
from google.protobuf.json_format import MessageToDict

from skiway import metastore
from skiway.formats.extension_types import coordinate_system, geometry_type_name
from skiway.formats.schemas import field_id
from skiway.lake.reading.columns import columns_of
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
from skiway.metastore import quality as metastore_quality
from skiway.model import v1

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


QUALITY: Final = pa.schema(
    [
        *NAMED,
        pa.field("rule_name", pa.string()),
        pa.field("rule_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("expected", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("status", pa.string()),
        pa.field("method", pa.string()),
        pa.field("observed", pa.string()),
        pa.field("message", pa.string()),
        pa.field("snapshot_id", pa.int64()),
        pa.field("checked_at", MOMENT),
        pa.field("job_id", pa.string()),
        pa.field("comment", pa.string()),
        DAMAGE,
    ]
)


def quality(scan: SystemScan) -> pa.Table:
    """The rules of the tables that the caller may see, as far as policies show them."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in scan.visible:
            for found in metastore_quality.scan(scan.realm, shown.table.resource_id.id):
                yield (*shown.names, *_described(found))

    return arrow_table(QUALITY, rows())


def _described(found: v1.CheckedRule) -> tuple[Any, ...]:
    rule = found.rule
    names = (rule.display_name, rule.resource_id.id)
    if rule.damage:
        return (*names, *unknown(QUALITY, 5), rule.damage)
    kind = rule.check.WhichOneof("check") or ""
    expected = MessageToDict(getattr(rule.check, kind), preserving_proto_field_name=True)
    severity = enum_name(v1.RuleSeverity, rule.severity, "RSV_")
    return (*names, kind, json.dumps(expected), severity, *_result(found), rule.description or None, None)


def _result(found: v1.CheckedRule) -> tuple[Any, ...]:
    """What the newest check found; NULL if there was none."""
    if not found.HasField("result"):
        return (None,) * 7
    result = found.result
    return (
        enum_name(v1.RuleStatus, result.status, "RST_"),
        enum_name(v1.RuleMethod, result.method, "RMT_") if result.method else None,
        result.observed or None,
        result.message or None,
        result.snapshot_id if result.HasField("snapshot_id") else None,
        moment_of(result.checked_at),
        result.job_id or None,
    )
