"""What a catalog looks like to the client: the answer of `list_schemas`, and FlightInfos of single objects."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from typing import Final
from weakref import WeakKeyDictionary

import pyarrow as pa

from skiway.airport.catalog import (
    Bindable,
    Catalog,
    CatalogVersion,
    HasStatistics,
    Schema,
    SharedListing,
    Table,
    Versioned,
)
from skiway.airport.functions import AnyFunction, ScalarFunction, input_schema, signature
from skiway.airport.request import current_request
from skiway.airport.scan import IS_ROWID, find_rowid_column
from skiway.airport.server.tickets import ObjectPath
from skiway.airport.statistics import can_announce
from skiway.airport.table_refs import TableRef
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
from skiway.model.flight_pb2 import FlightInfo

__all__ = [
    "UNREACHABLE",
    "Listings",
    "catalog_version",
    "function_path",
    "object_infos",
    "schema_contents",
    "table_info",
    "table_path",
]


log = logging.getLogger("skiway.airport")

UNREACHABLE: Final = "main"  # DuckDB's client lists a schema of this name but refuses to look into it


def catalog_version(catalog: Catalog) -> CatalogVersion:
    """The catalog's version; one that does not know it never changes in a way that DuckDB must hear of."""
    return catalog.version() if isinstance(catalog, Versioned) else CatalogVersion(1, fixed=False)


def list_schemas(catalog: Catalog, name: str) -> bytes:
    """The sealed listing of all that the caller may see, under the name that it attached."""
    version = catalog_version(catalog)
    entries: list[SchemaEntry] = []
    for schema in catalog.schemas():
        if schema.name == UNREACHABLE:
            log.warning(
                "schema %r of catalog %r cannot be queried from DuckDB: give it another name", schema.name, name
            )
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
    """All objects of a schema, inline."""
    return Contents.inline(seal([info.SerializeToString() for info in object_infos(schema, catalog_name)]))


def object_infos(schema: Schema, catalog_name: str) -> Iterator[FlightInfo]:
    """A FlightInfo for each table, reference and function of a schema."""
    tables: list[Table | TableRef] = [*schema.tables(), *schema.table_refs()]
    for table in tables:
        yield table_info(table, table_path(table, catalog_name, schema.name))
    for function in [*schema.scalar_functions(), *schema.table_functions()]:
        yield function_info(function, catalog_name, schema.name)


def table_path(table: Table | TableRef, catalog_name: str, schema_name: str) -> ObjectPath:
    """The address that clients get to know a table by."""
    binding = table.binding() if isinstance(table, Bindable) else ""
    return ObjectPath(catalog_name, schema_name, table.name, signature=binding)


def table_info(
    table: Table | TableRef, path: ObjectPath, schema: pa.Schema | None = None, *, past: bool = False
) -> FlightInfo:
    """The FlightInfo of a table, with its own schema or the one it had or gets for a request.

    Clients ask for statistics without saying of which time, so for a table of the past none are announced.
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


def function_path(function: AnyFunction, catalog_name: str, schema_name: str) -> ObjectPath:
    """The address of one overload."""
    kind = "scalar_function" if isinstance(function, ScalarFunction) else "table_function"
    return ObjectPath(catalog_name, schema_name, function.name, kind, signature(function))  # type: ignore[arg-type]


def announced(table: Table | TableRef, schema: pa.Schema, *, statistics: bool = True) -> pa.Schema:
    """The schema with what the client reads from its metadata: which field is the row id, whether to ask for statistics."""
    rowid = find_rowid_column(schema)
    if rowid is not None and IS_ROWID not in (schema.field(rowid).metadata or {}):
        field = schema.field(rowid)
        schema = schema.set(rowid, field.with_metadata({**(field.metadata or {}), IS_ROWID: b"1"}))
    if statistics and isinstance(table, HasStatistics):
        visible = [field for index, field in enumerate(schema) if index != rowid]
        if can_announce(visible, table.column_statistics):
            schema = schema.with_metadata({**(schema.metadata or {}), b"can_produce_statistics": b"1"})
    return schema


class Listings:
    """Listings of versioned catalogs, kept until the version changes; one for all who may see the same."""

    def __init__(self, keep: int = 256) -> None:
        self._lock = threading.Lock()
        self._keep = keep
        self._kept: WeakKeyDictionary[Catalog, OrderedDict[Hashable, tuple[CatalogVersion, bytes]]] = (
            WeakKeyDictionary()
        )

    def list_schemas(self, catalog: Catalog, name: str) -> bytes:
        """The listing, built anew only when something changed."""
        if not isinstance(catalog, Versioned):
            return list_schemas(catalog, name)
        who = catalog.visibility_key() if isinstance(catalog, SharedListing) else current_request().identity
        key = (name, who)
        version = catalog.version()
        with self._lock:
            kept = self._kept.setdefault(catalog, OrderedDict())
            known = kept.get(key)
        if known is not None and known[0] == version:
            return known[1]
        listing = list_schemas(catalog, name)
        with self._lock:
            # a change since then has a newer version, under which this listing is not found
            kept[key] = (version, listing)
            kept.move_to_end(key)
            while len(kept) > self._keep:
                kept.popitem(last=False)
        return listing
