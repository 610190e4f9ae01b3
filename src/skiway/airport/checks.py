"""Checks of what authors pass to builders and servers, so that mistakes are found before the first ATTACH.

Each message names the object, says what was found, and what to write instead. Builders check each object when it is added.
A server checks the catalogs it is constructed with, as an anonymous caller; what a catalog refuses to show to that caller,
it cannot check.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa

from skiway.airport.catalog import (
    UNREACHABLE_SCHEMA,
    Bindable,
    Catalog,
    Commands,
    DynamicCatalog,
    DynamicSchema,
    DynamicTable,
    HasStatistics,
    LazyListing,
    Planned,
    Schema,
    SharedListing,
    Table,
    TimeTravel,
    Transactional,
    TransactionManager,
    Versioned,
)
from skiway.airport.functions import AnyFunction, ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.request import CatalogAuthorizer
from skiway.airport.table_refs import TableRef
from skiway.airport.tables import (
    ROWID_TYPES,
    Deletable,
    DeletableBatch,
    Insertable,
    Updatable,
    UpdatableBatch,
    Writable,
    find_rowid_column,
    instead_of,
)
from skiway.airport.wire.duckdb_sql import ascii_lower, duckdb_type
from skiway.errors import InvalidArgument

log = logging.getLogger("skiway.airport")

_WRITES: Final = (Insertable, Updatable, UpdatableBatch, Deletable, DeletableBatch)
_OF_TABLES: Final = (TimeTravel, Planned, Bindable, HasStatistics, DynamicTable, Writable, *_WRITES)
_OF_SCHEMAS: Final = (DynamicSchema, LazyListing)
_OF_CATALOGS: Final = (Versioned, Commands, SharedListing, Transactional, DynamicCatalog)


class Mistake(InvalidArgument):
    """A mistake of the author of a catalog. The message names the object and says what to write."""


# -- catalogs and schemas ---------------------------------------------------------------------------------------------


def check_catalog(catalog: Catalog) -> None:
    """Check a catalog and everything in it; `Mistake` with the first one."""
    what = check_catalog_name(getattr(catalog, "name", ""))
    _check_inherited(catalog, what, _OF_CATALOGS)
    with _as_far_as_shown(what):
        if isinstance(catalog, Transactional) and not isinstance(catalog.transactions, TransactionManager):
            raise Mistake(
                f"transactions of {what} is {instead_of(catalog.transactions)}: return an object of a class that inherits "
                "from TransactionManager"
            )
        schemas = _listed(catalog, what, "schemas", Schema)
        check_names([schema.name for schema in schemas], f"schemas of {what}")
        for schema in schemas:
            with _as_far_as_shown(f"schema {schema.name!r}"):
                _check_schema(schema)


@contextmanager
def _as_far_as_shown(what: str) -> Iterator[None]:
    """Find mistakes in a block, but ignore other errors: it may need a caller, or a database that is not up yet."""
    try:
        yield
    except Mistake:
        raise
    except Exception as error:  # noqa: BLE001  (the author's own)
        log.debug("%s could not be checked: %s", what, error)


def _check_schema(schema: Schema) -> None:
    check_schema_name(schema.name)
    what = f"schema {schema.name!r}"
    _check_inherited(schema, what, _OF_SCHEMAS)
    tables, functions = contents_of(schema)
    check_names([table.name for table in tables], f"tables of {what}")
    for table in tables:
        check_table(table, schema.name)
    for kinds in (ScalarFunction, (TableFunction, TableInOutFunction)):
        names = {function.name for function in functions if isinstance(function, kinds)}
        check_names(names, f"functions of {what}")


def contents_of(schema: Schema) -> tuple[Sequence[Table | TableRef], Sequence[AnyFunction]]:
    """The tables with the table references, and the functions of a schema; `Mistake` if a listing is none."""
    what = f"schema {schema.name!r}"
    tables = _listed(schema, what, "tables", Table)
    refs = _listed(schema, what, "table_refs", TableRef)
    scalars = _listed(schema, what, "scalar_functions", ScalarFunction)
    functions = _listed(schema, what, "table_functions", TableFunction, TableInOutFunction)
    return [*tables, *refs], [*scalars, *functions]


def check_catalog_name(name: object) -> str:
    """Check the name of a catalog, which may be empty, and return the catalog's title in messages."""
    if not isinstance(name, str):
        raise Mistake(f'the name of a catalog is {instead_of(name)}: use a str, such as "demo"')
    return f"catalog {name!r}"


def check_schema_name(name: object) -> None:
    """Check the name of a schema."""
    if not isinstance(name, str) or not name:
        raise Mistake(f'a schema needs a name, not {name!r}: write schema("sales")')
    if ascii_lower(name) == UNREACHABLE_SCHEMA:
        raise Mistake(f"DuckDB cannot query an attached schema named {name!r}: choose another name")


def check_names(names: Iterable[str], what: str) -> None:
    """Check that names are unique for DuckDB, which ignores the case of ASCII letters."""
    seen: dict[str, str] = {}
    for name in names:
        other = seen.get(ascii_lower(name))
        seen[ascii_lower(name)] = name
        if other is not None:
            raise Mistake(
                f"the {what} have two called {name!r}: rename one"
                if other == name
                else f"the {what} have {other!r} and {name!r}, which are the same name in DuckDB: rename one"
            )


def _listed(container: object, title: str, method: str, *kinds: type) -> Sequence[Any]:
    """What a listing such as `tables()` returns, as a sequence."""
    expected = " or ".join(kind.__name__ for kind in kinds)
    listing, what = getattr(container, method), f"{method}() of {title}"
    if not callable(listing):
        raise Mistake(f"{method} of {title} is {instead_of(listing)}: write a method, def {method}(self)")
    listed = listing()
    if listed is None or isinstance(listed, str | bytes) or not hasattr(listed, "__iter__"):
        raise Mistake(f"{what} returned {instead_of(listed)}: return a list of {expected}, which may be empty")
    items = list(listed)
    for item in items:
        if not isinstance(item, kinds):
            fix = (
                f"return an instance, {item.__name__}(…)"
                if isinstance(item, type) and issubclass(item, kinds)
                else f"return objects of a class that inherits from skiway.airport.{expected}"
            )
            raise Mistake(f"{what} returned {instead_of(item)} in its list: {fix}")
        _check_name(item, expected)
    return items


def _check_name(named: object, kind: str) -> None:
    name, what = getattr(named, "name", None), f"the {kind} of class {type(named).__name__}"
    if not isinstance(name, str | None):
        raise Mistake(f"the name of {what} is {instead_of(name)}: use a str")
    if not name:
        raise Mistake(f'{what} has no name: set name = "…" in the class, or self.name in __init__')


# -- tables -----------------------------------------------------------------------------------------------------------


def check_table(table: Table | TableRef, schema_name: str) -> None:
    """Check a table or a table reference: its name, its columns and its capabilities."""
    _check_name(table, "TableRef" if isinstance(table, TableRef) else "Table")
    what = f"table {schema_name}.{table.name}"
    if not hasattr(type(table), "schema") and not hasattr(table, "schema"):
        raise Mistake(
            f"{what} has no schema: set schema = pa.schema({{…}}) in the class {type(table).__name__}, "
            "or self.schema in __init__"
        )
    _check_parameters(table, what)
    if isinstance(table, Table):
        _check_inherited(table, what, _OF_TABLES)
        _check_methods(table, what)
    with _as_far_as_shown(what):
        schema = table.schema
        check_columns(schema, what)
        if isinstance(table, Table):
            _check_rowid(table, schema, what)


def check_columns(schema: object, what: str) -> None:
    """Check that `schema` is a pyarrow schema that DuckDB can read."""
    if not isinstance(schema, pa.Schema):
        fix = "pa.schema({…})" if isinstance(schema, dict) else 'pa.schema({"id": pa.int64(), …})'
        raise Mistake(f"the schema of {what} is {instead_of(schema)}, not a pyarrow schema: write {fix}")
    if not schema.names:
        raise Mistake(f"the schema of {what} has no columns: DuckDB needs at least one")
    check_names(schema.names, f"columns of {what}")
    for field in schema:
        try:
            duckdb_type(field)
        except InvalidArgument as error:
            raise Mistake(f"{what}: {error.message}") from None


def _check_inherited(checked: object, what: str, capabilities: Iterable[type]) -> None:
    """Find capabilities that are implemented but not inherited, and which the server therefore ignores."""
    for capability in capabilities:
        if isinstance(checked, capability) or (isinstance(checked, Writable) and capability in _WRITES):
            continue
        if isinstance(checked, _ALTERNATIVES.get(capability, ())):
            continue
        for name in sorted(getattr(capability, "__abstractmethods__", ())):
            attribute = getattr(type(checked), name, None) or getattr(checked, "__dict__", {}).get(name)
            if attribute is not None and _is_alike(attribute, getattr(capability, name)):
                bases = ", ".join(base.__name__ for base in type(checked).__bases__)
                raise Mistake(
                    f"{what} has {name}{'()' if callable(attribute) else ''} but does not inherit from "
                    f"{capability.__name__}, so it would be ignored: write class "
                    f"{type(checked).__name__}({bases}, {capability.__name__}), or rename it"
                )


_ALTERNATIVES: Final[dict[type, type]] = {Updatable: UpdatableBatch, Deletable: DeletableBatch}


def _is_alike(attribute: object, declared: object) -> bool:
    """Whether an attribute of a class looks like the declared one: both are properties, or take as many arguments."""
    if isinstance(declared, property):
        return isinstance(attribute, property | TransactionManager)
    if not inspect.isfunction(attribute) or not inspect.isfunction(declared):
        return False
    accepted = inspect.signature(attribute)
    by_name = [parameter.name for parameter in accepted.parameters.values() if parameter.kind is parameter.KEYWORD_ONLY]
    known = inspect.signature(declared).parameters
    try:
        accepted.bind(*_positional(declared), **{name: None for name in by_name if name in known})
    except TypeError:
        return False
    return True


def _positional(declared: Callable[..., Any]) -> list[str]:
    """The names of the parameters that the server passes by position, with `self`."""
    parameters = inspect.signature(declared).parameters.values()
    return [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]


def _check_parameters(table: Table | TableRef, what: str) -> None:
    """Find methods that implement a base class of this library, but with other parameters."""
    kinds = (Table, TableRef, *_OF_TABLES)
    for kind in (base for base in kinds if isinstance(table, base)):
        for name in sorted(getattr(kind, "__abstractmethods__", ())):
            method, declared = getattr(type(table), name), getattr(kind, name)
            if inspect.isfunction(method) and inspect.isfunction(declared) and not _is_alike(method, declared):
                parameters = _positional(declared)
                passed = ", ".join(parameters[1:])
                raise Mistake(
                    f"{name}() of {what} cannot be called with ({passed}): write def {name}({', '.join(parameters)})"
                )


def _check_methods(table: Table, what: str) -> None:
    if isinstance(table, Writable) and (unknown := set(table.operations) - _OPERATIONS):
        raise Mistake(
            f"operations of {what} has {min(unknown)!r}: use a set of {', '.join(map(repr, sorted(_OPERATIONS)))}"
        )
    for capability, method in _DML_METHODS.items():
        if isinstance(table, capability):
            _check_returned(getattr(type(table), method), f"{method}() of {what}")


_OPERATIONS: Final = frozenset({"insert", "update", "delete"})
_DML_METHODS: Final[dict[type, str]] = {
    Insertable: "insert",
    Updatable: "update",
    UpdatableBatch: "update_batch",
    Deletable: "delete",
    DeletableBatch: "delete_batch",
}


def _check_returned(method: Any, what: str) -> None:
    declared = inspect.signature(method).return_annotation
    if declared in (None, "None", int, "int"):
        shown = declared.__name__ if isinstance(declared, type) else declared
        raise Mistake(f"{what} is declared to return {shown}: return DmlResult(affected_rows=…)")


def _check_rowid(table: Table, schema: pa.Schema, what: str) -> None:
    operations = table.operations if isinstance(table, Writable) else ()
    if "update" in operations or isinstance(table, Updatable | UpdatableBatch):
        operation = "UPDATE"
    elif "delete" in operations or isinstance(table, Deletable | DeletableBatch):
        operation = "DELETE"
    else:
        return
    index = find_rowid_column(schema)
    if index is None:
        raise Mistake(
            f'{what} supports {operation} but has no row id: add pa.field("rowid", pa.int64()) as the last column of its schema'
        )
    field = schema.field(index)
    if field.type not in ROWID_TYPES:
        raise Mistake(f"the row id of {what}, column {field.name!r}, has type {field.type}: use pa.int64()")


# -- functions --------------------------------------------------------------------------------------------------------


def check_function(function: Callable[..., Any], what: str, argument: str | None = None) -> None:
    """Check a decorated function; `argument` is the single argument it must accept, if any."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise Mistake(f"the function of {what} is asynchronous: write def instead of async def")
    if argument is None:
        return
    if not takes_one_argument(function):
        name = getattr(function, "__name__", "scan")
        raise Mistake(f"the function of {what} cannot be called with one argument: write def {name}({argument})")


def takes_one_argument(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with one argument, as far as its signature is known."""
    try:
        accepted = inspect.signature(function)
    except (TypeError, ValueError):  # of a builtin
        return True
    try:
        accepted.bind(None)
    except TypeError:
        return False
    return True


def check_callback(callback: object, what: str, arguments: str) -> None:
    """Check an optional function."""
    if callback is not None and not callable(callback):
        raise Mistake(f"{what} is {instead_of(callback)}: pass a function of {arguments}")


# -- arguments of servers and builders --------------------------------------------------------------------------------


def check_auth(auth: object) -> None:
    """Check the argument `auth`: an authenticator, or None."""
    if auth is None:
        return
    if not isinstance(auth, type) and callable(getattr(auth, "authenticate", None)):
        if hasattr(auth, "authorize_catalog") and not isinstance(auth, CatalogAuthorizer):
            raise Mistake(
                f"auth: {type(auth).__name__} has a method authorize_catalog that would never be called: let it inherit "
                "from CatalogAuthorizer"
            )
        return
    if inspect.isroutine(auth):
        fix = f"write auth=BearerAuth({auth.__name__})"
    elif isinstance(auth, dict):
        fix = "write auth=BearerAuth({…}.get)"
    elif isinstance(auth, type):
        fix = f"pass an instance, auth={auth.__name__}(…)"
    else:
        fix = "pass an object with the method authenticate(token), such as a BearerAuth"
    raise Mistake(f"auth is {instead_of(auth)}, not an authenticator: {fix}")


def check_callbacks(observers: object, actions: Mapping[str, object]) -> None:
    """Check the arguments `observers`, a list of functions, and `actions`, functions by name."""
    if callable(observers):
        name = getattr(observers, "__name__", "…")
        raise Mistake(f"observers is {instead_of(observers)}: pass a list of functions, observers=[{name}]")
    for name, action in actions.items():
        check_callback(action, f"action {name!r}", "(body)")


def check_transactions(transactions: object) -> None:
    """Check the argument `transactions`: a transaction manager, or None."""
    if transactions is None or isinstance(transactions, TransactionManager):
        return
    fix = (
        f"pass an instance, transactions={transactions.__name__}(…)"
        if isinstance(transactions, type)
        else "pass an object of a class that inherits from TransactionManager"
    )
    raise Mistake(f"transactions is {instead_of(transactions)}, not a transaction manager: {fix}")
