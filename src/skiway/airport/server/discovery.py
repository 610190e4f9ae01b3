"""Metadata that clients read: the response to `list_schemas`, and the FlightInfo of each object."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import pyarrow as pa

from skiway.airport.catalog import (
    UNREACHABLE_SCHEMA,
    Bindable,
    Catalog,
    CatalogVersion,
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
from skiway.airport.scan import IS_ROWID, find_rowid_column
from skiway.airport.server.bindings import as_listed, as_plain, fingerprint
from skiway.airport.server.statistics import can_announce
from skiway.airport.server.tickets import ObjectPath
from skiway.airport.table_refs import TableRef
from skiway.airport.wire.duckdb_sql import ascii_lower, without_dictionaries
from skiway.airport.wire.payloads import (
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
from skiway.errors import Internal, NotFound
from skiway.model.flight_pb2 import FlightInfo

__all__ = [
    "ListingCache",
    "catalog_version",
    "function_path",
    "listed_table",
    "object_infos",
    "schema_contents",
    "table_info",
]


log = logging.getLogger("skiway.airport")


def catalog_version(catalog: Catalog) -> CatalogVersion:
    """The version of the catalog; a constant if the catalog has no versions."""
    return catalog.version() if isinstance(catalog, Versioned) else CatalogVersion(1, fixed=False)


def list_schemas(catalog: Catalog, name: str, known: Mapping[str, Contents] | None = None) -> bytes:
    """The sealed listing of everything the caller may see. `name` is the name the client attached.

    It leaves out the objects of lazy schemas, except of those that are `known`.
    """
    version = catalog_version(catalog)
    entries: list[SchemaEntry] = []
    for schema in catalog.schemas():
        if ascii_lower(schema.name) == UNREACHABLE_SCHEMA:
            log.warning("DuckDB cannot query schema %r of catalog %r: rename it", schema.name, name)
        try:
            contents = (known or {}).get(schema.name) or _announced_contents(schema, name)
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


def _announced_contents(schema: Schema, catalog_name: str) -> Contents:
    return Contents() if _is_lazy(schema) else schema_contents(schema, catalog_name)


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
    return FlightInfo(
        schema=announced(table, path, schema, statistics=not past).serialize().to_pybytes(),
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
        pa.schema([pa.field("result", without_dictionaries(function.returns))])
        if isinstance(function, ScalarFunction)
        else pa.schema([])
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
    if statistics and isinstance(table, HasStatistics):
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
