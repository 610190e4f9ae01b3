"""System tables: how they are declared and scanned, and those about tables: their columns, snapshots, files, statistics,
partitions and quality rules.

A scan has the caller's metastore, and the tables that the caller may see.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.json_format import MessageToDict
from google.protobuf.timestamp_pb2 import Timestamp

from skiway import metastore
from skiway.airport.filters import ColumnRef, Compare, Comparison, Conjunction, Constant, Filter
from skiway.errors import Internal, NotFound, PermissionDenied, PreconditionFailed, SkiwayError
from skiway.formats.extension_types import coordinate_system, geometry_type_name
from skiway.formats.schemas import field_id
from skiway.foundation.resources import schema_name
from skiway.lake.context import Context
from skiway.lake.reading.columns import columns_of
from skiway.metastore import Realm, connectors, statistics
from skiway.metastore import quality as metastore_quality
from skiway.metastore.records.damage import damage_of
from skiway.metastore.resources import hierarchy
from skiway.metastore.resources.hierarchy import full_path
from skiway.model import v1

T = TypeVar("T")

Row: TypeAlias = tuple[Any, ...]

_TYPES: Final = {
    "text": pa.string(),
    "bigint": pa.int64(),
    "integer": pa.int32(),
    "boolean": pa.bool_(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "text[]": pa.list_(pa.string()),
    "text->text": pa.map_(pa.string(), pa.string()),
    "text->text[]": pa.map_(pa.string(), pa.list_(pa.string())),
    "text->bigint": pa.map_(pa.string(), pa.int64()),
    "leased_table[]": pa.list_(pa.struct({"table": pa.string(), "snapshot_id": pa.int64()})),
    "counted_value[]": pa.list_(pa.struct({"value": pa.string(), "count": pa.int64()})),
}


@dataclass(frozen=True, slots=True)
class VisibleTable:
    """A table that the caller may see, and its schema."""

    schema_name: str
    table: v1.Table

    @property
    def names(self) -> tuple[str, str]:
        """The first two columns of all tables about tables."""
        return self.schema_name, self.table.display_name


@dataclass(frozen=True, slots=True)
class SystemScan:
    """A scan of a system table: the caller's metastore, the tables that the caller may see, and the columns to read, or all."""

    realm: Realm
    context: Context
    catalog: str
    visible: Sequence[VisibleTable]
    columns: Container[str] | None = None
    filter: Filter | None = None

    def reads(self, *columns: str) -> bool:
        """Whether one of the columns is read. The rows of a scan may have NULL in others."""
        return self.columns is None or any(column in self.columns for column in columns)

    def wanted(self, column: str) -> object:
        """The only value of a column that the filter leaves; None if it may leave several."""
        conditions = [] if self.filter is None else list(self.filter.predicates)
        for each in conditions:
            if isinstance(each, Conjunction) and each.op == "AND":
                conditions += each.children
            elif (
                isinstance(each, Comparison)
                and each.op is Compare.EQ
                and isinstance(each.left, ColumnRef)
                and isinstance(each.right, Constant)
                and each.left.name == column
            ):
                return each.right.value
        return None

    def current_id(self, table: v1.Table) -> int | None:
        """The id of the table's current snapshot."""
        return metastore.snapshots.current_id(self.realm, table.resource_id.id)

    def statistics_of(self, table: v1.Table, snapshot_id: int | None) -> v1.TableStats | None:
        """The statistics of the table in a snapshot; None if there are none."""
        return (
            None if snapshot_id is None else statistics.table_statistics(self.realm, table.resource_id.id, snapshot_id)
        )


@dataclass(frozen=True, slots=True)
class Definition:
    """A system table: its columns, and the function that computes its rows.

    The column `damage` says what is wrong with a row whose record is lost or corrupt; it is NULL for all others.
    """

    name: str
    comment: str
    schema: pa.Schema
    rows: Callable[[SystemScan], Iterator[Row] | pa.Table]

    def __call__(self, scan: SystemScan) -> pa.Table:
        """The rows of the table as Arrow data."""
        rows = self.rows(scan)
        return rows if isinstance(rows, pa.Table) else arrow_table(self.schema, rows)


def system_table(
    comment: str, columns: str, *, name: str = ""
) -> Callable[[Callable[[SystemScan], Iterator[Row] | pa.Table]], Definition]:
    """Define a system table with the name of the decorated function, unless another is given, which yields its rows or returns all of them.

    `columns` has the names and types of the columns, such as `"table_id text, row_count bigint"`.
    """
    schema = schema_of(columns)
    return lambda rows: Definition(name or rows.__name__, comment, schema, rows)


def schema_of(columns: str) -> pa.Schema:
    """The columns that a text declares by their names and types."""
    fields = (column.split(" ") for column in columns.split(", "))
    return pa.schema([pa.field(name, _TYPES[kind]) for name, kind in fields])


def arrow_table(schema: pa.Schema, rows: Iterator[Row]) -> pa.Table:
    """An Arrow table made from rows."""
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
    )


def readable(read: Callable[[], T]) -> tuple[T | None, str | None]:
    """What `read` returns; or None, and what is wrong, if it reads a damaged record."""
    try:
        return read(), None
    except Internal as error:
        damage = damage_of(error)
        if damage is None:
            raise
        return None, damage


def place_of(scan: SystemScan, table_id: str) -> tuple[str, str, str] | None:
    """The catalog, schema and name of a table; None if it does not exist, or the caller may not see it."""
    try:
        table = hierarchy.table(scan.realm, v1.ResourceId(id=table_id)).value
        namespace = hierarchy.namespace(scan.realm, table.namespace_id).value
        catalog = hierarchy.catalog(scan.realm, table.catalog_id).value
    except (NotFound, PermissionDenied, PreconditionFailed):
        return None
    return catalog.display_name, schema_name(full_path(namespace)), table.display_name


def unknown(schema: pa.Schema, known: int) -> tuple[None, ...]:
    """The values of all columns but `known` ones."""
    return (None,) * (len(schema) - known)


def moment_of(at: Timestamp) -> datetime | None:
    """The time of a timestamp; None if it is not set."""
    return at.ToDatetime(UTC) if at.seconds or at.nanos else None


def enum_name(kind: Any, number: int, prefix: str) -> str:
    """The name of an enum value, in lower case without its prefix."""
    name: str = kind.Name(number)
    return name.removeprefix(prefix).lower()


# -- tables and their columns -----------------------------------------------------------------------------------------


@system_table(
    "managed and mirrored tables, with their format, connector, current snapshot and size",
    "schema_name text, table_name text, table_id text, kind text, format text, connector text, "
    "current_snapshot_id bigint, row_count bigint, row_count_is_bound boolean, file_count bigint, "
    "size_bytes bigint, comment text, created_at timestamp, updated_at timestamp, problem text, damage text",
)
def tables(scan: SystemScan) -> Iterator[Row]:
    """One row per table. Snapshots and statistics are read only for columns that need them."""
    connector = cache(partial(_connector, scan.realm))
    has_counts = scan.reads("row_count", "row_count_is_bound", "file_count", "size_bytes", "damage")
    has_snapshots = has_counts or scan.reads("current_snapshot_id")

    def row(shown: VisibleTable) -> Row:
        table, realm = shown.table, scan.realm
        if table.damage:
            return (*shown.names, table.resource_id.id, *unknown(tables.schema, 4), table.damage)
        number = scan.current_id(table) if has_snapshots else None
        stats, damage = readable(lambda: scan.statistics_of(table, number)) if has_counts else (None, None)
        counts: tuple[Any, ...] = (None,) * 4
        if stats is not None:
            counts = (stats.row_count, statistics.is_row_bound(stats), stats.data_file_count, stats.total_size_bytes)
        return (
            *shown.names,
            table.resource_id.id,
            "managed" if table.metadata_location else "mirrored",
            "iceberg" if table.metadata_location else enum_name(v1.TableFormat, table.upstream.format, "TF_"),
            connector(table.upstream.connector_id.id),
            number,
            *counts,
            table.description if table.HasField("description") else None,
            moment_of(table.created_at),
            moment_of(table.updated_at),
            metastore.tables.problem_of(realm, table) or None,
            f"statistics: {damage}" if damage else None,
        )

    yield from map(row, scan.visible)


def _connector(realm: Realm, connector_id: str) -> str | None:
    found, _ = readable(lambda: connectors.find(realm, connector_id))
    return None if found is None else found.value.display_name


@system_table(
    "the columns of the tables",
    "schema_name text, table_name text, column_name text, ordinal integer, column_id bigint, type text, "
    "is_nullable boolean, comment text, damage text",
)
def columns(scan: SystemScan) -> Iterator[Row]:
    """One row per column, in the order of the tables' columns. A table whose columns are unknown has one row without a column."""
    for shown in scan.visible:
        if shown.table.damage:
            yield (*shown.names, *unknown(columns.schema, 3), shown.table.damage)
            continue
        try:
            stored = columns_of(shown.table.schema_json).stored
        except ValueError as error:
            yield (
                *shown.names,
                *unknown(columns.schema, 3),
                metastore.tables.problem_of(scan.realm, shown.table) or str(error),
            )
            continue
        for place, field in enumerate(stored, start=1):
            doc = (field.metadata or {}).get(b"doc")
            values = (place, field_id(field), _type(field), field.nullable, doc.decode() if doc else None)
            yield (*shown.names, field.name, *values, None)


def _type(field: pa.Field) -> str:
    crs = coordinate_system(field)
    return str(field.type) if crs is None else geometry_type_name(crs)


# -- snapshots, files and statistics ----------------------------------------------------------------------------------


@system_table(
    "the snapshots of the tables, with their operation, summary, branches and tags",
    "schema_name text, table_name text, snapshot_id bigint, parent_id bigint, is_current boolean, "
    "created_at timestamp, ingested_at timestamp, sequence_number bigint, schema_id integer, operation text, "
    "summary text->text, names text[], damage text",
)
def snapshots(scan: SystemScan) -> Iterator[Row]:
    """One row per snapshot, by id. Names are branches and tags; tables are opened only for these."""
    realm = scan.realm
    for shown in scan.visible:
        now = scan.current_id(shown.table)
        names = _names_of_snapshots(scan, shown.table) if scan.reads("names") else {}
        for snapshot in metastore.snapshots.entries(realm, shown.table.resource_id.id):
            yield _snapshot_row(shown, snapshot, now, names.get(snapshot.snapshot_id))


def _names_of_snapshots(scan: SystemScan, table: v1.Table) -> dict[int, list[str]]:
    """The names of snapshots by their ids; none if the table cannot be opened, or only under policies."""
    found: dict[int, list[str]] = {}
    try:
        refs = scan.context.handles.open(scan.realm, table).handle.refs
    except SkiwayError:
        return found
    for name, snapshot_id in sorted(refs.items()):
        if not name.isdecimal():
            found.setdefault(snapshot_id, []).append(name)
    return found


def _snapshot_row(shown: VisibleTable, snapshot: v1.Snapshot, now: int | None, names: list[str] | None) -> Row:
    if snapshot.damage:
        place = (*shown.names, snapshot.snapshot_id, None, snapshot.snapshot_id == now)
        return (*place, *unknown(snapshots.schema, 6), snapshot.damage)
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
        names,
        None,
    )


_CONTENTS: Final = ["", "data", "position_deletes", "equality_deletes"]


@system_table(
    "the files of current snapshots",
    "schema_name text, table_name text, snapshot_id bigint, path text, format text, content text, "
    "row_count bigint, size_bytes bigint, partition text, sequence_number bigint, damage text",
)
def files(scan: SystemScan) -> pa.Table:
    """One row per file of each current snapshot; one row without a file if the list of files is damaged.

    Only the names are copied.
    """
    return _of_file_lists(scan, files.schema, _file_rows)


def _of_file_lists(
    scan: SystemScan, schema: pa.Schema, rows: Callable[[VisibleTable, int, pa.Table], pa.Table]
) -> pa.Table:
    """The `rows` of the list of files of each current snapshot; of a damaged list, one row with what is wrong."""
    parts = [schema.empty_table()]
    for shown in scan.visible:
        number = scan.current_id(shown.table)
        if number is None:
            continue
        listed, damage = readable(partial(statistics.file_statistics, scan.realm, shown.table.resource_id.id, number))
        if listed is None:
            parts.append(arrow_table(schema, iter([(*shown.names, number, *unknown(schema, 4), damage)])))
        else:
            parts.append(rows(shown, number, listed))
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
    return pa.table(arrays, schema=files.schema)


@system_table(
    "the statistics of columns, and of nested fields such as tags.element",
    "schema_name text, table_name text, snapshot_id bigint, column_id bigint, column_name text, type text, "
    "value_count bigint, null_count bigint, nan_count bigint, distinct_count double, min text, max text, "
    "damage text",
)
def column_stats(scan: SystemScan) -> Iterator[Row]:
    """One row per profiled column, in the current snapshot; one row without a column if the statistics are damaged."""
    for shown in scan.visible:
        number = scan.current_id(shown.table)
        if number is None:
            continue
        known, damage = readable(partial(statistics.present_column_statistics, scan.realm, shown.table, number))
        if damage:
            yield (*shown.names, number, *unknown(column_stats.schema, 4), damage)
        for column in known or ():
            yield (*shown.names, number, *_column_row(column), None)


def _column_row(column: v1.ColumnStats) -> Row:
    optional = [getattr(column, name) if column.HasField(name) else None for name in ("null_count", "nan_count")]
    bounds = [column.min if column.HasField("min") else None, column.max if column.HasField("max") else None]
    values = (column.column_id, column.column_name, column.logical_type, column.value_count)
    return (*values, *optional, statistics.distinct_count(column), *bounds)


@system_table(
    "the statistics of columns in profiled snapshots, also in expired ones, the newest first",
    "schema_name text, table_name text, snapshot_id bigint, snapshot_created_at timestamp, "
    "profiled_at timestamp, column_id bigint, column_name text, type text, value_count bigint, "
    "null_count bigint, nan_count bigint, distinct_count double, min text, max text, quantiles text->text, "
    "top_values counted_value[], damage text",
)
def column_history(scan: SystemScan) -> Iterator[Row]:
    """One row per column and profiled snapshot, the newest first; one row without a snapshot if the history is damaged."""
    for shown in scan.visible:
        known, damage = readable(partial(statistics.statistics_history, scan.realm, shown.table.resource_id.id))
        if damage:
            yield (*shown.names, *unknown(column_history.schema, 3), damage)
        for snapshot in known or ():
            moments = moment_of(snapshot.created_at), moment_of(snapshot.profiled_at)
            for column in snapshot.columns:
                yield (*shown.names, snapshot.snapshot_id, *moments, *_column_row(column), *_spread(column), None)


def _spread(column: v1.ColumnStats) -> tuple[Any, Any]:
    """The quantiles and frequent values of a column; None if it has none."""
    quantiles = json.loads(column.properties.get("quantiles", "{}"))
    top = json.loads(column.properties.get("top_values", "[]"))
    return list(quantiles.items()) or None, [{"value": value, "count": count} for value, count in top] or None


@system_table(
    "the partitions of current snapshots; their rows include deleted ones",
    "schema_name text, table_name text, snapshot_id bigint, spec_id integer, partition text, "
    "row_count bigint, size_bytes bigint, data_file_count bigint, delete_file_count bigint, damage text",
)
def partitions(scan: SystemScan) -> pa.Table:
    """One row per partition of each current snapshot; one row without a partition if the list of files is damaged."""
    return _of_file_lists(scan, partitions.schema, _partition_rows)


def _partition_rows(shown: VisibleTable, snapshot_id: int, listed: pa.Table) -> pa.Table:
    counted = statistics.partition_statistics(listed)
    names = [pa.repeat(pa.scalar(name), counted.num_rows) for name in shown.names]
    snapshot_ids = pa.repeat(pa.scalar(snapshot_id, pa.int64()), counted.num_rows)
    damages = pa.nulls(counted.num_rows, pa.string())
    return pa.table([*names, snapshot_ids, *counted.columns, damages], schema=partitions.schema)


@system_table(
    "quality rules, with their newest results",
    "schema_name text, table_name text, rule_name text, rule_id text, kind text, expected text, "
    "severity text, status text, method text, observed text, message text, snapshot_id bigint, "
    "checked_at timestamp, job_id text, comment text, damage text",
)
def quality(scan: SystemScan) -> Iterator[Row]:
    """The rules of the tables that the caller may see, as far as policies show them."""
    for shown in scan.visible:
        for found in metastore_quality.scan(scan.realm, shown.table.resource_id.id):
            yield (*shown.names, *_described(found))


def _described(found: v1.CheckedRule) -> Row:
    rule = found.rule
    names = (rule.display_name, rule.resource_id.id)
    if rule.damage:
        return (*names, *unknown(quality.schema, 5), rule.damage)
    kind = rule.check.WhichOneof("check") or ""
    expected = MessageToDict(getattr(rule.check, kind), preserving_proto_field_name=True)
    severity = enum_name(v1.RuleSeverity, rule.severity, "RSV_")
    return (*names, kind, json.dumps(expected), severity, *_result(found), rule.description or None, None)


def _result(found: v1.CheckedRule) -> Row:
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
