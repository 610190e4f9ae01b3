"""Metadata that clients read: the response to `list_schemas`, the FlightInfo of each object, and column statistics.

DuckDB relies on statistics: wrong values lead to wrong results, and some responses crash the client. A table is therefore
announced as having statistics only if the client can handle the statistics of every column. A table whose statistics fail
or are invalid has none, and everything else works as before.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, Final
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.catalog import (
    UNREACHABLE_SCHEMA,
    Bindable,
    Catalog,
    CatalogVersion,
    ColumnStatistics,
    HasStatistics,
    LazyListing,
    Schema,
    SharedListing,
    Table,
    Versioned,
)
from skiway.airport.checks import Mistake, contents_of
from skiway.airport.functions import AnyFunction, ScalarFunction, TableInOutFunction, signature
from skiway.airport.request import current_request
from skiway.airport.server.tickets import ObjectPath, as_listed, as_plain, fingerprint, flight_info_of
from skiway.airport.table_refs import TableRef
from skiway.airport.tables import IS_ROWID, find_rowid_column
from skiway.airport.wire.duckdb_sql import ascii_lower, duckdb_type, storage_type, without_dictionaries
from skiway.airport.wire.protocol import (
    CatalogRoot,
    Contents,
    ObjectMetadata,
    SchemaEntry,
    Stability,
    VersionInfo,
    encode,
    seal,
    unseal,
)
from skiway.errors import Internal, InvalidArgument, NotFound, SkiwayError, Unsupported
from skiway.model.flight_pb2 import FlightInfo

log = logging.getLogger("skiway.airport")

Statistics = Callable[[str, str], ColumnStatistics]
"""What `HasStatistics.column_statistics` is: the statistics of a column, by its name and its type in DuckDB."""

# DuckDB's client fails on any statistics of these types.
_WITHOUT_STATISTICS: Final = ("INTERVAL", "BIT", "UNION", "GEOMETRY", "NULL", "BIGNUM")

# Bounds that hold for every string and every blob: the response if a bound that was known at ATTACH is now unknown. A
# table is never announced as having statistics because of them.
_WIDEST_BOUNDS: Final[dict[str, tuple[Any, Any]]] = {
    "VARCHAR": ("", "\U0010ffff" * 2),
    "BLOB": (b"", b"\xff" * 8),
}


def can_announce(columns: Iterable[pa.Field], statistics: Statistics, table: object = "") -> bool:
    """Whether DuckDB's client can handle the statistics of every column. `table` is named in the log if they fail."""
    for column in columns:
        try:
            type_name = duckdb_type(column)
            if not _is_legal(column, type_name, _checked(column, statistics(column.name, type_name))):
                return False
        except Unsupported:  # it has none, which is not worth a warning for each of thousands of tables
            return False
        except Exception as error:  # noqa: BLE001  (statistics are optional, the table is not)
            _report(error, table, column.name)
            return False
    return True


def statistics_response(field: pa.Field, statistics: Statistics, type_name: str, table: object) -> pa.RecordBatch:
    """The response to `column_statistics`. If the statistics fail, they are unknown: an error would fail the query."""
    try:
        return statistics_batch(field, statistics(field.name, type_name))
    except Exception as error:  # noqa: BLE001  (statistics are optional, the query is not)
        _report(error, table, field.name)
        return statistics_batch(field, ColumnStatistics())


def _report(error: Exception, table: object, column: str) -> None:
    trace = None if isinstance(error, SkiwayError) else error
    log.warning(
        "table %s has no statistics, because those of column %r failed: %s", table, column, error, exc_info=trace
    )


def _checked(field: pa.Field, statistics: Any) -> ColumnStatistics:
    """The statistics, if they are valid for the column; `InvalidArgument` otherwise."""
    if not isinstance(statistics, ColumnStatistics):
        raise InvalidArgument(
            f"column_statistics returned {type(statistics).__name__} for column {field.name!r}: return a ColumnStatistics"
        )
    for name in ("distinct_count", "max_string_length"):
        value = getattr(statistics, name)
        if value is not None and not (isinstance(value, Integral) and 0 <= int(value) < 2**64):
            raise InvalidArgument(f"statistics of column {field.name!r}: {name} is {value!r}, not a number of values")
    for name in ("has_null", "has_not_null", "contains_unicode"):
        value = getattr(statistics, name)
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(f"statistics of column {field.name!r}: {name} is {value!r}, not True, False or None")
    if statistics.min is not None or statistics.max is not None:
        _check_order(field, *_bounds(field, statistics))
    return statistics


def _check_order(field: pa.Field, low: pa.Array, high: pa.Array) -> None:
    storage = low.storage if isinstance(low, pa.ExtensionArray) else low
    if not _has_arrow_order(storage.type) or storage.type != storage_type(field.type):
        return
    other = high.storage if isinstance(high, pa.ExtensionArray) else high
    if pc.greater(storage, other)[0].as_py():
        raise InvalidArgument(f"statistics of column {field.name!r}: the minimum is greater than the maximum")


def _has_arrow_order(data_type: pa.DataType) -> bool:
    """Whether Arrow orders values of the type as DuckDB does."""
    types = pa.types
    return (
        bool(
            types.is_integer(data_type)
            or types.is_floating(data_type)
            or types.is_decimal(data_type)
            or types.is_temporal(data_type)
            or types.is_string(data_type)
            or types.is_large_string(data_type)
        )
        and not types.is_duration(data_type)
        and not types.is_interval(data_type)
    )


def _is_legal(field: pa.Field, type_name: str, statistics: ColumnStatistics) -> bool:
    if type_name.startswith(_WITHOUT_STATISTICS) or pa.types.is_dictionary(field.type):
        return False
    return (
        type_name not in ("VARCHAR", "BLOB", "JSON")
        or statistics.has_not_null is False
        or None not in (statistics.min, statistics.max)
    )


def statistics_batch(field: pa.Field, statistics: ColumnStatistics) -> pa.RecordBatch:
    """The one-row response to `column_statistics`: bounds in the column's type, and safe values for unknown statistics."""
    low, high = _bounds(field, _checked(field, statistics))
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
        if pa.types.is_fixed_size_binary(field.type) and widest[0] is not None:
            widest = bytes(field.type.byte_width), b"\xff" * field.type.byte_width
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


UNVERSIONED: Final = CatalogVersion(1)
"""The version of a catalog that has none."""


def list_schemas(catalog: Catalog, name: str, known: Mapping[str, Contents] | None = None) -> bytes:
    """The sealed listing of everything the caller may see. `name` is the name the client attached.

    It leaves out the objects of lazy schemas, except of those that are `known`.
    """
    version = catalog.version() if isinstance(catalog, Versioned) else UNVERSIONED
    entries: list[SchemaEntry] = []
    for schema in catalog.schemas():
        if ascii_lower(schema.name) == UNREACHABLE_SCHEMA:
            log.warning("DuckDB cannot query schema %r of catalog %r: rename it", schema.name, name)
        try:
            contents = (known or {}).get(schema.name)
            if contents is None:
                contents = Contents() if _is_lazy(schema) else schema_contents(schema, name)
        except NotFound as error:  # somebody dropped it
            log.info("schema %s is gone from the listing: %s", schema.name, error)
            continue
        entries.append(
            SchemaEntry(
                name=schema.name,
                description=schema.comment,
                tags=dict(schema.tags),
                contents=contents,
                is_default=not entries,
            )
        )
    return seal(CatalogRoot(schemas=entries, version_info=VersionInfo(version.version, version.fixed)))


def _is_lazy(schema: Schema) -> bool:
    return isinstance(schema, LazyListing) and schema.is_lazy


def schema_contents(schema: Schema, catalog_name: str) -> Contents:
    """The objects of a schema, inline."""
    return Contents.inline(seal([info.SerializeToString() for info in object_infos(schema, catalog_name)]))


def object_infos(schema: Schema, catalog_name: str, *, bound: bool = True) -> Iterator[FlightInfo]:
    """A FlightInfo for each table, table reference and function of a schema; those of tables with or without binding."""
    try:
        tables, functions = contents_of(schema)
    except Mistake as mistake:
        raise Internal(mistake.message) from None
    for table in tables:
        try:
            yield listed_table(table, catalog_name, schema.name, bound=bound)
        except NotFound as error:  # somebody dropped it
            log.info("table %s.%s is gone from the listing: %s", schema.name, table.name, error)
    for function in functions:
        yield function_info(function, catalog_name, schema.name)


def listed_table(table: Table | TableRef, catalog_name: str, schema_name: str, *, bound: bool = True) -> FlightInfo:
    """The FlightInfo of a table, under the address that includes its binding unless `bound` is False."""
    own = table.schema
    schema = as_listed(own) if isinstance(table, Table) else own
    binding = "" if not bound else table.binding() if isinstance(table, Bindable) else fingerprint(schema)
    if not binding:  # the address that users write
        schema = as_plain(own)
    return table_info(table, ObjectPath(catalog_name, schema_name, table.name, signature=binding), schema)


def table_info(table: Table | TableRef, path: ObjectPath, schema: pa.Schema, *, past: bool = False) -> FlightInfo:
    """The FlightInfo of a table with `schema`, as the client is going to know it.

    Requests for statistics have no point in time, so a table in the `past` announces no statistics.
    """
    metadata = ObjectMetadata(
        type="table", catalog=path.catalog or "", schema=path.schema, name=path.name, comment=table.comment or None
    )
    rows = table.row_count() if isinstance(table, Table) else None
    columns = announced(table, path, schema, statistics=not past)
    return flight_info_of(path.descriptor(), columns, rows=rows, metadata=encode(metadata))


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
        pa.schema([pa.field("result", without_dictionaries(function.returns))])
        if isinstance(function, ScalarFunction)
        else pa.schema([])
    )
    return flight_info_of(path.descriptor(), output, metadata=encode(metadata))


def input_schema(function: AnyFunction) -> pa.Schema:
    """The parameters as Arrow fields. The input table of a function comes last, as DuckDB's client requires."""
    fields = [
        field.with_type(without_dictionaries(field.type))
        for field in (parameter.field() for parameter in function.parameters)
    ]
    if isinstance(function, TableInOutFunction):
        fields.append(pa.field("rows", pa.null(), metadata={"is_table_type": "1"}))
    return pa.schema(fields)


def function_path(function: AnyFunction, catalog_name: str, schema_name: str) -> ObjectPath:
    """The address of a function overload."""
    kind = "scalar_function" if isinstance(function, ScalarFunction) else "table_function"
    return ObjectPath(catalog_name, schema_name, function.name, kind, signature(function))  # type: ignore[arg-type]


def announced(table: Table | TableRef, path: ObjectPath, schema: pa.Schema, *, statistics: bool = True) -> pa.Schema:
    """`schema` with the metadata that tells clients which column is the row id and whether there are statistics."""
    rowid = find_rowid_column(schema)
    if rowid is not None and IS_ROWID not in (schema.field(rowid).metadata or {}):
        field = schema.field(rowid)
        schema = schema.set(rowid, field.with_metadata({**(field.metadata or {}), IS_ROWID: b"1"}))
    if statistics and isinstance(table, HasStatistics) and table.offers_statistics:
        visible = [field for index, field in enumerate(schema) if index != rowid]
        if can_announce(visible, table.column_statistics, path):
            schema = schema.with_metadata({**(schema.metadata or {}), b"can_produce_statistics": b"1"})
    return schema


@dataclass(slots=True)
class _Listing:
    """A listing for callers who may see the same: the response to `list_schemas`, and the contents of lazy schemas by name."""

    version: CatalogVersion
    response: bytes | None = None
    contents: dict[str, Contents] = field(default_factory=dict)


class ListingCache:
    """Caches listings of versioned catalogs until the version changes, one for all callers who may see the same."""

    def __init__(self, size: int = 256) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._cached: WeakKeyDictionary[Catalog, OrderedDict[Hashable, _Listing]] = WeakKeyDictionary()

    def list_schemas(self, catalog: Catalog, name: str) -> bytes:
        """The sealed listing of `catalog`, built again only if its version changed, or if lazy schemas were listed."""
        listing = self._current(catalog, name)
        if listing is None:
            return list_schemas(catalog, name)
        with self._lock:
            response, known = listing.response, dict(listing.contents)
        if response is not None:
            return response
        response = list_schemas(catalog, name, known)
        with self._lock:
            if len(known) == len(listing.contents):
                listing.response = response
        return response

    def object_infos(self, catalog: Catalog, name: str, schema_name: str) -> Iterator[bytes]:
        """The FlightInfos of the objects of a schema, serialized. Those of a lazy schema are part of later listings."""
        listing = self._current(catalog, name)
        known = None if listing is None else listing.contents.get(schema_name)
        if known is not None:
            yield from _infos_in(known)
            return
        for schema in catalog.schemas():
            if schema.name != schema_name:
                continue
            if listing is None or not _is_lazy(schema):
                yield from (info.SerializeToString() for info in object_infos(schema, name))
                continue
            made = schema_contents(schema, name)
            with self._lock:
                listing.contents[schema_name], listing.response = made, None
            yield from _infos_in(made)

    def _current(self, catalog: Catalog, name: str) -> _Listing | None:
        """The listing of the catalog in its current version; None if it has no versions.

        If the catalog changes while a listing is built, the listing belongs to the old version and is not used again.
        """
        if not isinstance(catalog, Versioned):
            return None
        viewer = catalog.visibility_key() if isinstance(catalog, SharedListing) else current_request().identity
        key = (name, viewer)
        version = catalog.version()
        with self._lock:
            cached = self._cached.setdefault(catalog, OrderedDict())
            listing = cached.get(key)
            if listing is None or listing.version != version:
                listing = cached[key] = _Listing(version)
            cached.move_to_end(key)
            while len(cached) > self._size:
                cached.popitem(last=False)
        return listing


def _infos_in(contents: Contents) -> list[bytes]:
    return unseal(contents.serialized or b"", list[bytes], "a listing")
