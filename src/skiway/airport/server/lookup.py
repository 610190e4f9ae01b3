"""The catalogs that a server serves: a set that may change while it runs, or a function that finds them per request."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from skiway.airport.catalog import Bindable, Catalog, Schema, Table, TimeTravel
from skiway.airport.ddl import DynamicSchema
from skiway.airport.functions import AnyFunction, ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.scan import TimePoint
from skiway.airport.server.discovery import function_path
from skiway.airport.server.tickets import ObjectPath
from skiway.airport.table_refs import TableRef
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, Unsupported

__all__ = [
    "CatalogResolver",
    "CatalogSet",
    "Catalogs",
    "catalogs_of",
    "open_scalar_function",
    "open_schema",
    "open_table",
    "open_table_function",
    "table_at",
]


CatalogResolver = Callable[[str], Catalog | None]


@runtime_checkable
class Catalogs(Protocol):
    """Finds catalogs by the name that a client attached, and may look at `current_request()`."""

    def find(self, name: str) -> Catalog | None:
        """The catalog, or None."""

    def names(self) -> Sequence[str]:
        """All names, where they can be listed."""


class CatalogSet:
    """Named catalogs. Readers see a whole set at any time; a removed catalog lives on in the calls that hold it."""

    def __init__(self, catalogs: Iterable[Catalog] = ()) -> None:
        self._lock = threading.Lock()
        self._by_name: dict[str, Catalog] = {}
        for catalog in catalogs:
            self.add(catalog)

    def find(self, name: str) -> Catalog | None:
        """The catalog of that name; a call that names none gets the default one, or the only one."""
        served = self._by_name
        if not name and name not in served and len(served) == 1:
            return next(iter(served.values()))
        return served.get(name)

    def names(self) -> Sequence[str]:
        """All names, sorted."""
        return sorted(self._by_name)

    def add(self, catalog: Catalog) -> None:
        """Serve one more catalog from now on."""
        with self._lock:
            if catalog.name in self._by_name:
                raise AlreadyExists(f"a catalog named {catalog.name!r} is already served; names must be unique")
            self._by_name = {**self._by_name, catalog.name: catalog}

    def remove(self, name: str) -> None:
        """Serve it no longer: calls in flight finish, new ones do not find it."""
        with self._lock:
            if name not in self._by_name:
                raise NotFound(f"no catalog named {name!r} is served here")
            self._by_name = {key: value for key, value in self._by_name.items() if key != name}


class ResolvedCatalogs:
    """Catalogs found by the author's function, which may look at `current_request()`."""

    def __init__(self, resolve: CatalogResolver) -> None:
        self._resolve = resolve

    def find(self, name: str) -> Catalog | None:
        """Whatever the function finds."""
        return self._resolve(name)

    def names(self) -> Sequence[str]:
        """Not to be had from a function."""
        raise Unsupported("this server finds its catalogs per request and cannot list them")


def catalogs_of(given: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs) -> Catalogs:
    """What the `catalogs` argument of a server stands for."""
    if isinstance(given, Catalog):
        return CatalogSet([given])
    if isinstance(given, Catalogs):
        return given
    if callable(given):
        return ResolvedCatalogs(given)
    return CatalogSet(given)


# --------------------
# From an address to the object it names, or an error that says what is missing.


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
