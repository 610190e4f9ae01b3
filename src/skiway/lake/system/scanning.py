"""Scans of system tables: the caller's metastore, the tables that the caller may see, and rows as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
from google.protobuf.timestamp_pb2 import Timestamp

from skiway import metastore
from skiway.errors import Internal, NotFound, PermissionDenied, PreconditionFailed
from skiway.foundation.resources import schema_name
from skiway.lake.context import Context
from skiway.metastore import Realm, statistics
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
    """A scan of a system table: the caller's metastore, and the tables that the caller may see."""

    realm: Realm
    context: Context
    catalog: str
    visible: Sequence[VisibleTable]

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
    comment: str, columns: str
) -> Callable[[Callable[[SystemScan], Iterator[Row] | pa.Table]], Definition]:
    """Define a system table with the name of the decorated function, which yields its rows or returns all of them.

    `columns` has the names and types of the columns, such as `"table_id text, row_count bigint"`.
    """
    fields = (column.split(" ") for column in columns.split(", "))
    schema = pa.schema([pa.field(name, _TYPES[kind]) for name, kind in fields])
    return lambda rows: Definition(rows.__name__, comment, schema, rows)


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
