"""Finds the objects that a call names: catalogs, schemas, tables and functions, and decodes function arguments.

A server serves a set of catalogs, which may change while it runs, or a function that returns the catalog of a request.
An object that does not exist raises an error that names it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, TypeVar, runtime_checkable

import pyarrow as pa
from msgspec import structs

from skiway.airport.builder import CatalogBuilder, SchemaBuilder
from skiway.airport.catalog import Bindable, Catalog, Commands, DynamicSchema, Schema, Table, TimeTravel
from skiway.airport.checks import Mistake, check_catalog, instead_of, takes_one_argument
from skiway.airport.functions import AnyFunction, AnyType, ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.request import call_of, current_request
from skiway.airport.server.discovery import function_path
from skiway.airport.server.tickets import ObjectPath, as_listed, as_plain, fingerprint, not_a_path, table_changed
from skiway.airport.table_refs import DynamicSchemaTableRef, SchemaRequest, TableRef
from skiway.airport.tables import TimePoint
from skiway.airport.wire.frames import check_names
from skiway.airport.wire.sizes import check_stream
from skiway.errors import AlreadyExists, Internal, InvalidArgument, NotFound, Unsupported

CatalogResolver = Callable[[str], Catalog | None]
F = TypeVar("F", bound=AnyFunction)

_SMALL: Final = 16 << 10
"""Bytes of a row of arguments that is kept."""


@runtime_checkable
class Catalogs(Protocol):
    """Finds catalogs by name. Implementations may call `current_request()`."""

    def find(self, name: str) -> Catalog | None:
        """The catalog called `name`, or None."""

    def names(self) -> Sequence[str]:
        """The names of all catalogs; `Unsupported` if they cannot be listed."""


class CatalogSet:
    """A set of catalogs that may change at any time. Calls that already use a removed catalog finish normally."""

    def __init__(self, catalogs: Iterable[Catalog] = ()) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, Catalog] = {}
        for catalog in catalogs:
            self.add(catalog)

    def find(self, name: str) -> Catalog | None:
        """The catalog called `name`. The name "" stands for the default catalog, or for the only one."""
        served = self._by_name
        if not name and name not in served and len(served) == 1:
            return next(iter(served.values()))
        return served.get(name)

    def names(self) -> Sequence[str]:
        """The sorted names of all catalogs."""
        return sorted(self._by_name)

    def add(self, catalog: Catalog) -> None:
        """Start to serve `catalog`."""
        if not isinstance(catalog, Catalog):
            raise _not_a_catalog(catalog)
        check_catalog(catalog)
        with self._lock:
            if catalog.name in self._by_name:
                raise AlreadyExists(f"a catalog named {catalog.name!r} is already served; catalog names must be unique")
            self._by_name = {**self._by_name, catalog.name: catalog}

    def remove(self, name: str) -> None:
        """Stop serving a catalog. Running calls finish; new calls do not find it."""
        with self._lock:
            if name not in self._by_name:
                raise NotFound(f"no catalog named {name!r} is served here")
            self._by_name = {key: value for key, value in self._by_name.items() if key != name}


class ResolvedCatalogs:
    """Catalogs that a function returns, which may call `current_request()`."""

    def __init__(self, resolve: CatalogResolver) -> None:
        self._resolve = resolve

    def find(self, name: str) -> Catalog | None:
        """The catalog that the function returns for `name`."""
        found = self._resolve(name)
        if found is not None and not isinstance(found, Catalog):
            raise Internal(
                f"the resolver returned {instead_of(found)} for catalog {name!r}: return a Catalog, as CatalogBuilder.build() "
                "does, or None"
            )
        return found

    def names(self) -> Sequence[str]:
        """Raise `Unsupported`: a function cannot list its catalogs."""
        raise Unsupported("this server resolves catalogs per request and cannot list them")


def catalogs_of(catalogs: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs) -> Catalogs:
    """The `catalogs` argument of a server, in any of its forms, as `Catalogs`."""
    if isinstance(catalogs, Catalog):
        return CatalogSet([catalogs])
    if isinstance(catalogs, Catalogs) and not isinstance(catalogs, type):
        return catalogs
    if callable(catalogs) and not isinstance(catalogs, type):
        if not takes_one_argument(catalogs):
            name = getattr(catalogs, "__name__", "resolve")
            raise Mistake(
                f"the server got the function {name}, which cannot be called with the name of a catalog: pass the catalog "
                f"that it returns, {name}(), or write def {name}(name)"
            )
        return ResolvedCatalogs(catalogs)
    if isinstance(catalogs, Iterable) and not isinstance(catalogs, str | bytes | Mapping | type):
        return CatalogSet(catalogs)
    raise _not_a_catalog(catalogs)


def _not_a_catalog(found: object) -> Mistake:
    if isinstance(found, CatalogBuilder):
        return Mistake(
            f"the server got the CatalogBuilder of {found.name!r}: pass the catalog it builds, {found.name or 'builder'}.build()"
        )
    if isinstance(found, type) and issubclass(found, Catalog):
        return Mistake(f"the server got the class {found.__name__}: pass an instance, {found.__name__}(…)")
    named = f"{instead_of(found)} called {found.name!r}" if isinstance(found, _PARTS) else instead_of(found)
    return Mistake(
        f"the server got {named}, not a catalog: pass a Catalog, which CatalogBuilder.build() returns, or a list of catalogs"
    )


_PARTS: Final = (SchemaBuilder, Schema, Table, TableRef)


def open_schema(catalog: Catalog, name: str) -> Schema:
    """The schema called `name`."""
    schema = catalog.schema(name)
    if schema is None:
        raise NotFound(f"schema {name!r} not found", key="schema", schema=name)
    return schema


@dataclass(frozen=True, slots=True)
class OpenedTable:
    """A table, and its schema as the client knows it.

    `schema` is read once for each call: the schema of a table may change at any time, and every step of the call must
    use the one that was checked.
    """

    table: Table | TableRef
    schema: pa.Schema
    path: ObjectPath
    has_row_ids: bool = True  # whether the row ids in `schema`, if any, are the table's

    def own_columns(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that the table has to return if the client requests `columns`: at least one, to count the rows."""
        if self.has_row_ids:
            return list(self.schema.names if columns is None else columns)
        own = self.schema.names[:-1]
        return own if columns is None else [name for name in columns if name in own] or own[:1]


def find_table(catalog: Catalog, path: ObjectPath) -> Table | TableRef:
    """The current table or table reference at `path`, whatever the client knows about it."""
    if path.kind == "command":
        if not isinstance(catalog, Commands):
            raise not_a_path()
        return catalog.command(path.name)
    if path.kind != "table":
        raise InvalidArgument(f"{path} is a {path.kind.replace('_', ' ')}, not a table")
    schema = open_schema(catalog, path.schema)
    if path.signature and isinstance(schema, DynamicSchema):
        pending = schema.pending_table(path.name, path.signature)
        if pending is not None:
            return pending
    found = schema.table(path.name) or schema.table_ref(path.name)
    if found is None:
        raise NotFound(
            f"table '{path}' not found; DETACH and ATTACH again to see the current tables", key="table", table=str(path)
        )
    call_of(current_request()).target = found
    return found


def open_table(
    catalog: Catalog, path: ObjectPath, point: TimePoint | None = None, *, any_binding: bool = False
) -> OpenedTable:
    """The table at `path`, at a point in time, with the schema that the client knows; `PreconditionFailed` if it is gone.

    A path without a binding means the current schema. With `any_binding`, the fingerprint of another schema is accepted
    and replaced: a client that asks for the schema in the past only knows the current one.
    """
    found = find_table(catalog, path)
    bindable = isinstance(found, Bindable)
    if isinstance(found, Bindable) and path.signature:
        found = found.bound(path.signature)
    table = table_at(found, point)
    own = _schema_of(table, point)
    if not path.signature:
        return OpenedTable(table, as_plain(own), path)
    schema = as_listed(own) if isinstance(table, Table) else own
    if not bindable and fingerprint(schema) != path.signature:
        if not any_binding:
            raise table_changed(path, "its columns are defined differently now")
        path = structs.replace(path, signature=fingerprint(schema))
    return OpenedTable(table, schema, path, has_row_ids=len(schema) == len(own))


def _schema_of(table: Table | TableRef, point: TimePoint | None) -> pa.Schema:
    if point is not None and isinstance(table, DynamicSchemaTableRef):
        return table.schema_for(SchemaRequest((), point))
    return table.schema


def table_at(table: Table | TableRef, point: TimePoint | None) -> Table | TableRef:
    """The table at a point in time. A table reference gets the point with its request instead."""
    if point is None or isinstance(table, TableRef):
        return table
    if not isinstance(table, TimeTravel):
        raise Unsupported(f"table {table.name!r} has no history: read it without AT ({point.unit.upper()} => …)")
    past = table.at(point)
    if past is None:
        raise NotFound(f"table {table.name!r} did not exist at {point.unit} {point.value}")
    return past


def open_scalar_function(catalog: Catalog, path: ObjectPath) -> ScalarFunction:
    """The scalar function overload at `path`."""
    return _overload(open_schema(catalog, path.schema).scalar_functions(), path, "scalar function")


def open_table_function(catalog: Catalog, path: ObjectPath) -> TableFunction | TableInOutFunction:
    """The table function overload at `path`."""
    return _overload(open_schema(catalog, path.schema).table_functions(), path, "table function")


def _overload(functions: Sequence[F], path: ObjectPath, what: str) -> F:
    for function in functions:
        if function_path(function, path.catalog or "", path.schema) == path:
            call_of(current_request()).target = function
            return function
    raise NotFound(f"{what} {path}({path.signature}) not found; DETACH and ATTACH again to see the current functions")


def read_arguments(function: AnyFunction, stream: bytes) -> dict[str, pa.Scalar]:
    """Decode the arguments in a one-row IPC stream and cast them to their declared types. Missing arguments are NULL."""
    row = read_row(stream, f"the arguments of {function.name}") if stream else None
    arguments = {}
    for parameter in function.parameters:
        declared = None if isinstance(parameter.type, AnyType) else parameter.type
        is_passed = row is not None and parameter.name in row.schema.names
        value = row.column(parameter.name)[0] if row is not None and is_passed else pa.scalar(None, declared)
        arguments[parameter.name] = (
            value if declared is None or value.type == declared else _cast(function, parameter.name, value, declared)
        )
    return arguments


def read_row(stream: bytes, what: str) -> pa.RecordBatch:
    """Decode an IPC stream of one row."""
    try:
        small = _small_row(stream) if len(stream) <= _SMALL else None
        batch = _decoded(stream) if small is None else small
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise InvalidArgument(f"{what} are not an Arrow stream of one row") from error
    if batch.num_rows != 1:
        raise InvalidArgument(f"{what} must be one row, not {batch.num_rows}")
    return batch


def _decoded(stream: bytes) -> pa.RecordBatch:
    check_stream(stream)
    with pa.ipc.open_stream(stream) as reader:
        batch = reader.read_next_batch()
        check_names(batch.schema)
        batch.validate(full=True)
        return batch


@lru_cache(maxsize=256)
def _small_row(stream: bytes) -> pa.RecordBatch | None:
    """The row, unless it is large once it is decompressed.

    DuckDB sends the arguments of a function three times: to plan the call, for its endpoints, and with the ticket. To decode
    them takes 0.1 ms.
    """
    batch = _decoded(stream)
    return batch if batch.nbytes <= _SMALL else None


def _cast(function: AnyFunction, name: str, value: pa.Scalar, declared: pa.DataType) -> pa.Scalar:
    try:
        return value.cast(declared)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"argument {name} of {function.name}: {_abbreviated(value)} does not fit type {declared}"
        ) from error


def _abbreviated(value: pa.Scalar) -> str:
    text = repr(value.as_py())
    return text if len(text) <= 80 else text[:79] + "…"
