"""What the tables of the schema `skiway` are made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from skiway.formats.geometry import coordinate_system, geometry_type_name
from skiway.formats.schemas import field_id
from skiway.lake.columns import columns_of
from skiway.lake.context import Context
from skiway.lake.statistics import stored_columns
from skiway.metastore import Realm
from skiway.metastore.records import keys
from skiway.metastore.records.kinds import CONNECTOR, SNAPSHOT, TABLE_STATS
from skiway.metastore.resources.current_snapshot import current_id
from skiway.metastore.statistics.api import file_statistics
from skiway.model import v1

__all__ = [
    "COLUMNS",
    "COLUMN_STATS",
    "FILES",
    "MOMENT",
    "NAMED",
    "SNAPSHOTS",
    "TABLES",
    "Asked",
    "Shown",
    "column_stats",
    "columns",
    "files",
    "made",
    "moment_of",
    "name_of",
    "snapshots",
    "tables",
]

MOMENT: Final = pa.timestamp("us", tz="UTC")
NAMED: Final = [pa.field("schema_name", pa.string()), pa.field("table_name", pa.string())]


@dataclass(frozen=True, slots=True)
class Shown:
    """A table that the caller may see, and the schema it is in."""

    schema_name: str
    table: v1.Table


@dataclass(frozen=True, slots=True)
class Asked:
    """What a scan of a system table is about."""

    realm: Realm
    context: Context
    catalog: str
    shown: Sequence[Shown]

    def current_id(self, table: v1.Table) -> int | None:
        """The id of the table's current snapshot."""
        key = keys.current_snapshot(self.realm.account_id, table.resource_id.id)
        pointer = self.realm.stores.pointers.get(key)
        return None if pointer is None else current_id(pointer)


def made(schema: pa.Schema, rows: Iterator[tuple[Any, ...]]) -> pa.Table:
    """A table of columns, from rows of small facts."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def moment_of(at: Timestamp) -> datetime | None:
    return at.ToDatetime(UTC) if at.seconds or at.nanos else None


def name_of(kind: Any, number: int, prefix: str) -> str:
    name: str = kind.Name(number)
    return name.removeprefix(prefix).lower()


# --------------------
# Tables of the schema `skiway` that tell what there is: tables, columns, snapshots, files, statistics.


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


def tables(asked: Asked) -> pa.Table:
    """One row per table."""

    def row(shown: Shown) -> tuple[Any, ...]:
        table, realm = shown.table, asked.realm
        number = asked.current_id(table)
        key = keys.statistics(realm.account_id, table.resource_id.id, number or 0, of="table")
        stats = None if number is None else realm.all(TABLE_STATS).named(key)
        counts = (None,) * 3 if stats is None else (stats.row_count, stats.data_file_count, stats.total_size_bytes)
        return (
            shown.schema_name,
            table.display_name,
            table.resource_id.id,
            "managed" if table.metadata_location else "mirrored",
            "iceberg" if table.metadata_location else name_of(v1.TableFormat, table.upstream.format, "TF_"),
            _connector(realm, table),
            number,
            *counts,
            table.description if table.HasField("description") else None,
            moment_of(table.created_at),
            moment_of(table.updated_at),
        )

    return made(TABLES, map(row, asked.shown))


def _connector(realm: Realm, table: v1.Table) -> str | None:
    if not table.upstream.HasField("connector_id"):
        return None
    found = realm.all(CONNECTOR).named(keys.connector(realm.account_id, table.upstream.connector_id.id))
    return None if found is None else found.display_name


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


def columns(asked: Asked) -> pa.Table:
    """One row per column, in the order of the tables' columns; tables that cannot be shown have none."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in asked.shown:
            try:
                stored = columns_of(shown.table.schema_json).stored
            except ValueError:
                continue
            for place, field in enumerate(stored, start=1):
                doc = (field.metadata or {}).get(b"doc")
                told = (place, field_id(field), _type(field), field.nullable, doc.decode() if doc else None)
                yield (shown.schema_name, shown.table.display_name, field.name, *told)

    return made(COLUMNS, rows())


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


def snapshots(asked: Asked) -> pa.Table:
    """One row per snapshot, older ones first by id."""

    def rows() -> Iterator[tuple[Any, ...]]:
        realm = asked.realm
        for shown in asked.shown:
            now = asked.current_id(shown.table)
            prefix = f"{keys.of_table(realm.account_id, shown.table.resource_id.id)}snapshots/by-id/"
            for pointer in realm.stores.pointers.scan(prefix):
                found = realm.all(SNAPSHOT).follow(pointer)
                if found is not None:
                    yield _snapshot_row(shown, found.value, now)

    return made(SNAPSHOTS, rows())


def _snapshot_row(shown: Shown, snapshot: v1.Snapshot, now: int | None) -> tuple[Any, ...]:
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


def files(asked: Asked) -> pa.Table:
    """One row per file of each current snapshot; nothing is copied but the names."""
    parts = [FILES.empty_table()]
    for shown in asked.shown:
        number = asked.current_id(shown.table)
        if number is not None:
            found = file_statistics(asked.realm, shown.table.resource_id.id, number)
            parts.append(_file_rows(shown, number, found))
    return pa.concat_tables(parts)


def _file_rows(shown: Shown, snapshot_id: int, found: pa.Table) -> pa.Table:
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


def column_stats(asked: Asked) -> pa.Table:
    """One row per column that was profiled, in the current snapshot."""

    def rows() -> Iterator[tuple[Any, ...]]:
        for shown in asked.shown:
            number = asked.current_id(shown.table)
            known = () if number is None else stored_columns(asked.realm, shown.table.resource_id.id, number)
            for column in known:
                yield (shown.schema_name, shown.table.display_name, number, *_column_row(column))

    return made(COLUMN_STATS, rows())


def _column_row(column: v1.ColumnStats) -> tuple[Any, ...]:
    optional = [getattr(column, name) if column.HasField(name) else None for name in ("null_count", "nan_count")]
    mode = column.ndv.WhichOneof("mode")
    distinct = float(column.ndv.exact) if mode == "exact" else column.ndv.approx.estimate if mode else None
    bounds = [column.min if column.HasField("min") else None, column.max if column.HasField("max") else None]
    told = (column.column_id, column.column_name, column.logical_type, column.value_count)
    return (*told, *optional, distinct, *bounds)
