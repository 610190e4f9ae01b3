"""Metadata that clients read: the response to `list_schemas`, the FlightInfo of each object, and column statistics.

DuckDB's optimizer relies on column statistics: wrong values lead to wrong results, and some responses crash the client. A
table is therefore announced as having statistics only if the client can handle the statistics of every column.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa

from skiway.airport.catalog import (
    UNREACHABLE_SCHEMA,
    Bindable,
    Catalog,
    CatalogVersion,
    ColumnStatistics,
    HasStatistics,
    Schema,
    SharedListing,
    Table,
    Versioned,
)
from skiway.airport.functions import AnyFunction, ScalarFunction, TableInOutFunction, signature
from skiway.airport.request import current_request
from skiway.airport.scan import IS_ROWID, find_rowid_column
from skiway.airport.server.tickets import ObjectPath
from skiway.airport.table_refs import TableRef
from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.airport.wire.payloads import (
    CatalogRoot,
    Contents,
    ObjectMetadata,
    SchemaEntry,
    Stability,
    VersionInfo,
    encode,
    seal,
)
from skiway.errors import InvalidArgument, SkiwayError
from skiway.model.flight_pb2 import FlightInfo

__all__ = [
    "ListingCache",
    "can_announce",
    "catalog_version",
    "function_path",
    "object_infos",
    "schema_contents",
    "statistics_batch",
    "table_info",
    "table_path",
]


log = logging.getLogger("skiway.airport")

# DuckDB's client fails on any statistics of these types.
_WITHOUT_STATISTICS: Final = ("INTERVAL", "BIT", "UNION", "GEOMETRY", "NULL", "BIGNUM")

# Bounds that hold for every string and every blob: the response if a bound that was known at ATTACH is now unknown. A
# table is never announced as having statistics because of them.
_WIDEST_BOUNDS: Final[dict[str, tuple[Any, Any]]] = {
    "VARCHAR": ("", "\U0010ffff" * 2),
    "BLOB": (b"", b"\xff" * 8),
}


def catalog_version(catalog: Catalog) -> CatalogVersion:
    """The version of the catalog; a constant if the catalog has no versions."""
    return catalog.version() if isinstance(catalog, Versioned) else CatalogVersion(1, fixed=False)


def list_schemas(catalog: Catalog, name: str) -> bytes:
    """The sealed listing of everything the caller may see. `name` is the name the client attached."""
    version = catalog_version(catalog)
    entries: list[SchemaEntry] = []
    for schema in catalog.schemas():
        if schema.name == UNREACHABLE_SCHEMA:
            log.warning("DuckDB cannot query schema %r of catalog %r: rename it", schema.name, name)
        entries.append(
            SchemaEntry(
                name=schema.name,
                description=schema.comment,
                tags=dict(schema.tags),
                contents=schema_contents(schema, name),
                is_default=not entries,
            )
        )
    return seal(CatalogRoot(schemas=entries, version_info=VersionInfo(version.version, version.fixed)))


def schema_contents(schema: Schema, catalog_name: str) -> Contents:
    """The objects of a schema, inline."""
    return Contents.inline(seal([info.SerializeToString() for info in object_infos(schema, catalog_name)]))


def object_infos(schema: Schema, catalog_name: str) -> Iterator[FlightInfo]:
    """A FlightInfo for each table, table reference and function of a schema."""
    tables: list[Table | TableRef] = [*schema.tables(), *schema.table_refs()]
    for table in tables:
        yield table_info(table, table_path(table, catalog_name, schema.name))
    for function in [*schema.scalar_functions(), *schema.table_functions()]:
        yield function_info(function, catalog_name, schema.name)


def table_path(table: Table | TableRef, catalog_name: str, schema_name: str) -> ObjectPath:
    """The address under which clients know a table, including its binding."""
    binding = table.binding() if isinstance(table, Bindable) else ""
    return ObjectPath(catalog_name, schema_name, table.name, signature=binding)


def table_info(
    table: Table | TableRef, path: ObjectPath, schema: pa.Schema | None = None, *, past: bool = False
) -> FlightInfo:
    """The FlightInfo of a table. `schema` replaces the table's own schema where it depends on the request.

    Requests for statistics have no point in time, so a table in the `past` announces no statistics.
    """
    metadata = ObjectMetadata(
        type="table", catalog=path.catalog or "", schema=path.schema, name=path.name, comment=table.comment or None
    )
    rows = table.row_count() if isinstance(table, Table) else None
    return FlightInfo(
        schema=announced(table, schema or table.schema, statistics=not past).serialize().to_pybytes(),
        flight_descriptor=path.descriptor(),
        total_records=-1 if rows is None else rows,
        total_bytes=-1,
        app_metadata=encode(metadata),
    )


def function_info(function: AnyFunction, catalog_name: str, schema_name: str) -> FlightInfo:
    """The FlightInfo of a function."""
    path = function_path(function, catalog_name, schema_name)
    metadata = ObjectMetadata(
        type=path.kind,
        catalog=catalog_name,
        schema=schema_name,
        name=function.name,
        comment=function.comment or None,
        description=function.comment or None,
        input_schema=input_schema(function).serialize().to_pybytes(),
        extra_data=encode(Stability(str(function.volatility))) if isinstance(function, ScalarFunction) else None,
    )
    output = (
        pa.schema([pa.field("result", function.returns)]) if isinstance(function, ScalarFunction) else pa.schema([])
    )
    return FlightInfo(
        schema=output.serialize().to_pybytes(),
        flight_descriptor=path.descriptor(),
        total_records=-1,
        total_bytes=-1,
        app_metadata=encode(metadata),
    )


def input_schema(function: AnyFunction) -> pa.Schema:
    """The parameters as Arrow fields. The input table of a function comes last, as DuckDB's client requires."""
    fields = [parameter.field() for parameter in function.parameters]
    if isinstance(function, TableInOutFunction):
        fields.append(pa.field("rows", pa.null(), metadata={"is_table_type": "1"}))
    return pa.schema(fields)


def function_path(function: AnyFunction, catalog_name: str, schema_name: str) -> ObjectPath:
    """The address of a function overload."""
    kind = "scalar_function" if isinstance(function, ScalarFunction) else "table_function"
    return ObjectPath(catalog_name, schema_name, function.name, kind, signature(function))  # type: ignore[arg-type]


def announced(table: Table | TableRef, schema: pa.Schema, *, statistics: bool = True) -> pa.Schema:
    """`schema` with the metadata that tells clients which column is the row id and whether there are statistics."""
    rowid = find_rowid_column(schema)
    if rowid is not None and IS_ROWID not in (schema.field(rowid).metadata or {}):
        field = schema.field(rowid)
        schema = schema.set(rowid, field.with_metadata({**(field.metadata or {}), IS_ROWID: b"1"}))
    if statistics and isinstance(table, HasStatistics):
        visible = [field for index, field in enumerate(schema) if index != rowid]
        if can_announce(visible, table.column_statistics):
            schema = schema.with_metadata({**(schema.metadata or {}), b"can_produce_statistics": b"1"})
    return schema


def can_announce(columns: Iterable[pa.Field], statistics: Callable[[str, str], ColumnStatistics]) -> bool:
    """Whether DuckDB's client can handle the statistics of every column."""
    try:
        return all(_is_legal(field, statistics(field.name, duckdb_type(field))) for field in columns)
    except SkiwayError:
        return False


def _is_legal(field: pa.Field, statistics: ColumnStatistics) -> bool:
    type_name = duckdb_type(field)
    if type_name.startswith(_WITHOUT_STATISTICS) or pa.types.is_dictionary(field.type):
        return False
    return (
        type_name not in ("VARCHAR", "BLOB", "JSON")
        or statistics.has_not_null is False
        or None not in (statistics.min, statistics.max)
    )


def statistics_batch(field: pa.Field, statistics: ColumnStatistics) -> pa.RecordBatch:
    """The one-row response to `column_statistics`: bounds in the column's type, and safe values for unknown statistics."""
    low, high = _bounds(field, statistics)
    columns: list[tuple[pa.Field, pa.Array]] = [
        (field.with_name("min").with_nullable(True), low),
        (field.with_name("max").with_nullable(True), high),
        (pa.field("has_not_null", pa.bool_(), nullable=False), pa.array([statistics.has_not_null is not False])),
        (pa.field("has_null", pa.bool_(), nullable=False), pa.array([statistics.has_null is not False])),
        # DuckDB reads zero as unknown
        (
            pa.field("distinct_count", pa.uint64(), nullable=False),
            pa.array([statistics.distinct_count or 0], pa.uint64()),
        ),
    ]
    if pa.types.is_string(storage_type(field.type)) or pa.types.is_large_string(storage_type(field.type)):
        if statistics.contains_unicode is not None:
            columns.append((pa.field("contains_unicode", pa.bool_()), pa.array([statistics.contains_unicode])))
        if statistics.max_string_length is not None:
            columns.append(
                (pa.field("max_string_length", pa.uint64()), pa.array([statistics.max_string_length], pa.uint64()))
            )
    return pa.record_batch([array for _, array in columns], schema=pa.schema([f for f, _ in columns]))


def _bounds(field: pa.Field, statistics: ColumnStatistics) -> tuple[pa.Array, pa.Array]:
    low, high = statistics.min, statistics.max
    if low is None or high is None:
        widest = _WIDEST_BOUNDS.get("VARCHAR" if duckdb_type(field) == "JSON" else duckdb_type(field), (None, None))
        low = widest[0] if low is None else low
        high = widest[1] if high is None else high
    return _single_value(field, low), _single_value(field, high)


def _single_value(field: pa.Field, value: Any) -> pa.Array:
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return pa.nulls(1, field.type)  # works for all types, even those that pyarrow cannot build from Python values
    try:
        if isinstance(value, pa.Scalar):
            return _scalar_array(value, field.type)
        return pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"statistics of column {field.name!r}: {value!r} is not a value of its type {field.type}"
        ) from error


def _scalar_array(value: pa.Scalar, target: pa.DataType) -> pa.Array:
    """An array with one scalar. Python values cannot represent every date and time, so none are created."""
    plain = value.value if isinstance(value, pa.ExtensionScalar) else value
    column = pa.repeat(plain if plain.type == storage_type(target) else plain.cast(storage_type(target)), 1)
    return pa.ExtensionArray.from_storage(target, column) if isinstance(target, pa.BaseExtensionType) else column


class ListingCache:
    """Caches listings of versioned catalogs until the version changes, one for all callers who may see the same."""

    def __init__(self, size: int = 256) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._cached: WeakKeyDictionary[Catalog, OrderedDict[Hashable, tuple[CatalogVersion, bytes]]] = (
            WeakKeyDictionary()
        )

    def list_schemas(self, catalog: Catalog, name: str) -> bytes:
        """The sealed listing of `catalog`, rebuilt only if its version changed."""
        if not isinstance(catalog, Versioned):
            return list_schemas(catalog, name)
        viewer = catalog.visibility_key() if isinstance(catalog, SharedListing) else current_request().identity
        key = (name, viewer)
        version = catalog.version()
        with self._lock:
            cached = self._cached.setdefault(catalog, OrderedDict())
            entry = cached.get(key)
        if entry is not None and entry[0] == version:
            return entry[1]
        listing = list_schemas(catalog, name)
        with self._lock:
            # If the catalog changed in the meantime, its version did too, and this entry will not be used.
            cached[key] = (version, listing)
            cached.move_to_end(key)
            while len(cached) > self._size:
                cached.popitem(last=False)
        return listing
