"""From an address to the object it names, or an error that says what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from skiway.airport.catalog import Bindable, Catalog, Schema, Table, TimePoint, TimeTravel
from skiway.airport.ddl import DynamicSchema
from skiway.airport.discovery import function_path
from skiway.airport.functions import AnyFunction, ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.paths import ObjectPath
from skiway.airport.table_refs import TableRef
from skiway.errors import InvalidArgument, NotFound, Unsupported

F = TypeVar("F", bound=AnyFunction)


def open_schema(catalog: Catalog, name: str) -> Schema:
    """The schema of that name."""
    schema = catalog.schema(name)
    if schema is None:
        raise NotFound(f"schema {name!r} not found", key="schema", schema=name)
    return schema


def open_table(catalog: Catalog, path: ObjectPath) -> Table | TableRef:
    """The table or table reference at `path`, as it is now, or as the client knows it where the path says how."""
    if path.kind != "table":
        raise InvalidArgument(f"{path} is a {path.kind.replace('_', ' ')}, not a table")
    schema = open_schema(catalog, path.schema)
    if path.signature and isinstance(schema, DynamicSchema):
        awaited = schema.awaited(path.name, path.signature)
        if awaited is not None:
            return awaited
    found = schema.table(path.name) or schema.table_ref(path.name)
    if found is None:
        raise NotFound(
            f"table '{path}' not found; DETACH and ATTACH again to see the tables of now", key="table", table=str(path)
        )
    return found.bound(path.signature) if isinstance(found, Bindable) and path.signature else found


def table_at(table: Table | TableRef, point: TimePoint | None) -> Table | TableRef:
    """The table at a point in time. A table reference is given the point with its request and decides itself."""
    if point is None or isinstance(table, TableRef):
        return table
    if not isinstance(table, TimeTravel):
        raise Unsupported(f"table {table.name!r} keeps no history: read it without AT ({point.unit.upper()} => …)")
    then = table.at(point)
    if then is None:
        raise NotFound(f"table {table.name!r} did not exist at {point.unit} {point.value}")
    return then


def open_scalar_function(catalog: Catalog, path: ObjectPath) -> ScalarFunction:
    """The overload at `path`."""
    return _overload(open_schema(catalog, path.schema).scalar_functions(), path, "scalar function")


def open_table_function(catalog: Catalog, path: ObjectPath) -> TableFunction | TableInOutFunction:
    """The overload at `path`."""
    return _overload(open_schema(catalog, path.schema).table_functions(), path, "table function")


def _overload(functions: Sequence[F], path: ObjectPath, what: str) -> F:
    for function in functions:
        if function_path(function, path.catalog or "", path.schema) == path:
            return function
    raise NotFound(f"{what} {path}({path.signature}) not found; DETACH and ATTACH again to see the functions of now")
