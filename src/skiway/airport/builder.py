"""Builds catalogs from plain functions and decorators, the shortest way to write a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

import pyarrow as pa

from skiway.airport.catalog import (
    Catalog,
    CatalogVersion,
    ColumnStatistics,
    HasStatistics,
    Schema,
    SharedListing,
    Table,
    TimeTravel,
    Transactional,
    TransactionManager,
    Versioned,
)
from skiway.airport.checks import (
    Mistake,
    check_callback,
    check_catalog_name,
    check_columns,
    check_function,
    check_schema_name,
    check_table,
    check_transactions,
)
from skiway.airport.functions import (
    AnyFunction,
    DecoratedScalar,
    DecoratedTable,
    ScalarFunction,
    TableFunction,
    TableInOutFunction,
    Volatility,
    signature,
)
from skiway.airport.table_refs import FunctionCall, FunctionCallRequest, TableRef
from skiway.airport.tables import ArrowData, ScanOptions, TimePoint, instead_of
from skiway.airport.wire.duckdb_sql import ascii_lower
from skiway.errors import AlreadyExists

Scan = Callable[[ScanOptions], ArrowData]
Calls = Callable[[FunctionCallRequest], Sequence[FunctionCall] | FunctionCall]
SchemaAt = Callable[[TimePoint], pa.Schema | None]
Statistics = Callable[[str, str], ColumnStatistics]


class BuiltSchema(Schema):
    def __init__(
        self,
        name: str,
        comment: str,
        tags: Mapping[str, str],
        tables: Mapping[str, Table],
        refs: Mapping[str, TableRef],
        scalars: Sequence[ScalarFunction],
        functions: Sequence[TableFunction | TableInOutFunction],
    ) -> None:
        self.name, self.comment, self.tags = name, comment, tags
        self._tables, self._refs, self._scalars, self._functions = tables, refs, scalars, functions

    def tables(self) -> Sequence[Table]:
        return list(self._tables.values())

    def table(self, name: str) -> Table | None:
        return self._tables.get(name)

    def table_refs(self) -> Sequence[TableRef]:
        return list(self._refs.values())

    def table_ref(self, name: str) -> TableRef | None:
        return self._refs.get(name)

    def scalar_functions(self) -> Sequence[ScalarFunction]:
        return self._scalars

    def table_functions(self) -> Sequence[TableFunction | TableInOutFunction]:
        return self._functions


class BuiltCatalog(Catalog, Versioned, SharedListing):
    def __init__(self, name: str, version: int, schemas: Iterable[Schema]) -> None:
        self.name = name
        self._version = CatalogVersion(version, fixed=True)
        self._schemas = {schema.name: schema for schema in schemas}

    def schemas(self) -> Sequence[Schema]:
        return list(self._schemas.values())

    def schema(self, name: str) -> Schema | None:
        return self._schemas.get(name)

    def version(self) -> CatalogVersion:
        return self._version

    def visibility_key(self) -> None:
        return None  # all callers see the same objects


class BuiltTransactionalCatalog(BuiltCatalog, Transactional):
    def __init__(self, name: str, version: int, schemas: Iterable[Schema], transactions: TransactionManager) -> None:
        super().__init__(name, version, schemas)
        self._transactions = transactions

    @property
    def transactions(self) -> TransactionManager:
        return self._transactions


def function_table(
    name: str,
    schema: pa.Schema,
    scan: Scan,
    *,
    comment: str = "",
    statistics: Statistics | None = None,
    schema_at: SchemaAt | None = None,
) -> Table:
    """A table that calls a scan function. It has only the capabilities it got functions for."""
    kind: type[_FunctionTable] = _FunctionTable
    if statistics is not None and schema_at is not None:
        kind = _TimeTravelTableWithStatistics
    elif statistics is not None:
        kind = _TableWithStatistics
    elif schema_at is not None:
        kind = _TimeTravelTable
    return kind(name, schema, scan, comment, statistics, schema_at)


class _FunctionTable(Table):
    def __init__(
        self,
        name: str,
        schema: pa.Schema,
        scan: Scan,
        comment: str,
        statistics: Statistics | None,
        schema_at: SchemaAt | None,
    ) -> None:
        self.name, self.schema, self.comment = name, schema, comment
        self._scan, self._statistics, self._schema_at = scan, statistics, schema_at
        self.__wrapped__ = scan  # the author's code, for the log

    def scan(self, options: ScanOptions) -> ArrowData:
        return self._scan(options)


class _TableWithStatistics(_FunctionTable, HasStatistics):
    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
        assert self._statistics is not None
        return self._statistics(column, duckdb_type)


class _TimeTravelTable(_FunctionTable, TimeTravel):
    def at(self, point: TimePoint) -> Table | None:
        assert self._schema_at is not None
        schema = self._schema_at(point)
        if schema is None:
            return None
        return function_table(self.name, schema, self._scan, comment=self.comment, statistics=self._statistics)


class _TimeTravelTableWithStatistics(_TableWithStatistics, _TimeTravelTable):
    pass


class FunctionRef(TableRef):
    def __init__(self, name: str, comment: str, schema: pa.Schema, calls: Calls) -> None:
        self.name, self.schema, self.comment = name, schema, comment
        self._calls = calls
        self.__wrapped__ = calls

    def function_calls(self, request: FunctionCallRequest) -> Sequence[FunctionCall]:
        calls = self._calls(request)
        return [calls] if isinstance(calls, FunctionCall) else calls


F = TypeVar("F", bound=Callable[..., Any])
ScanF = TypeVar("ScanF", bound=Scan)
CallsF = TypeVar("CallsF", bound=Calls)
TableT = TypeVar("TableT", bound=Table)
RefT = TypeVar("RefT", bound=TableRef)
ScalarT = TypeVar("ScalarT", bound=ScalarFunction | Callable[..., Any])
FunctionT = TypeVar("FunctionT", bound=TableFunction | TableInOutFunction)


class CatalogBuilder:
    """Collects schemas, tables and functions, and builds an immutable catalog from them.

    Increase `version` when the catalog changes, so that clients refresh what they cached. `transactions` gives the
    catalog transactions, which its tables find in `current_request()`.
    """

    def __init__(self, name: str = "", *, version: int = 1, transactions: TransactionManager | None = None) -> None:
        check_catalog_name(name)
        check_transactions(transactions)
        self.name = name
        self._version = version
        self._transactions = transactions
        self._schemas: dict[str, SchemaBuilder] = {}

    def schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> SchemaBuilder:
        """Add a schema."""
        check_schema_name(name)
        _check_new(name, self._schemas, "schema", name)
        self._schemas[name] = SchemaBuilder(name, comment, tags or {})
        return self._schemas[name]

    def build(self) -> Catalog:
        """Build a catalog from everything added so far."""
        schemas = [builder.build() for builder in self._schemas.values()]
        if self._transactions is not None:
            return BuiltTransactionalCatalog(self.name, self._version, schemas, self._transactions)
        return BuiltCatalog(self.name, self._version, schemas)


def _check_new(name: str, taken: Iterable[str], kind: str, shown: str) -> None:
    """Check that `name` is new for DuckDB, which ignores the case of ASCII letters."""
    for other in taken:
        if other == name:
            raise AlreadyExists(f"{kind} {shown} already exists")
        if ascii_lower(other) == ascii_lower(name):
            raise Mistake(f"{kind} {shown} has the same name as {other!r} in DuckDB, which ignores case: rename one")


class SchemaBuilder:
    """Collects the tables and functions of a schema. Decorated functions are returned unchanged and stay callable."""

    def __init__(self, name: str, comment: str, tags: Mapping[str, str]) -> None:
        self.name = name
        self._comment = comment
        self._tags = dict(tags)
        self._tables: dict[str, Table] = {}
        self._refs: dict[str, TableRef] = {}
        self._scalars: list[ScalarFunction] = []
        self._functions: list[TableFunction | TableInOutFunction] = []

    @overload
    def table(self, table: TableT, /) -> TableT: ...
    @overload
    def table(
        self,
        /,
        *,
        schema: pa.Schema,
        name: str | None = None,
        comment: str = "",
        statistics: Statistics | None = None,
        schema_at: SchemaAt | None = None,
    ) -> Callable[[ScanF], ScanF]: ...
    def table(
        self,
        table: Table | None = None,
        /,
        *,
        schema: pa.Schema | None = None,
        name: str | None = None,
        comment: str = "",
        statistics: Statistics | None = None,
        schema_at: SchemaAt | None = None,
    ) -> Any:
        """Add a `Table`, or decorate a scan function to add it as a table.

        `statistics(column, duckdb_type)` returns column statistics for the optimizer. `schema_at(time_point)` enables
        time travel: it returns the schema at that point in time, or None if the table did not exist. The scan function
        gets the point in its options.
        """
        if table is not None:
            self._check_kind(table, Table, "table", "schema=pa.schema({…})")
            self._add(self._tables, table)
            return table
        if schema is None:
            raise Mistake(self._without_schema("table"))

        def decorate(scan: ScanF) -> ScanF:
            title = name or _name_of(scan)
            what = f"table {self.name}.{title}"
            check_function(scan, what, "scan")
            check_callback(statistics, f"statistics of {what}", "(column, duckdb_type)")
            check_callback(schema_at, f"schema_at of {what}", "(time_point)")
            self._add(
                self._tables,
                function_table(
                    title,
                    schema,
                    scan,
                    comment=comment or inspect.getdoc(scan) or "",
                    statistics=statistics,
                    schema_at=schema_at,
                ),
            )
            return scan

        return decorate

    @overload
    def table_ref(self, ref: RefT, /) -> RefT: ...
    @overload
    def table_ref(
        self, /, *, schema: pa.Schema, name: str | None = None, comment: str = ""
    ) -> Callable[[CallsF], CallsF]: ...
    def table_ref(
        self,
        ref: TableRef | None = None,
        /,
        *,
        schema: pa.Schema | None = None,
        name: str | None = None,
        comment: str = "",
    ) -> Any:
        """Add a `TableRef`, or decorate a function that returns the function calls for DuckDB to run."""
        if ref is not None:
            self._check_kind(ref, TableRef, "table_ref", "schema=pa.schema({…})")
            self._add(self._refs, ref)
            return ref
        if schema is None:
            raise Mistake(self._without_schema("table_ref"))

        def decorate(calls: CallsF) -> CallsF:
            title = name or _name_of(calls)
            check_function(calls, f"table {self.name}.{title}", "request")
            self._add(self._refs, FunctionRef(title, comment or inspect.getdoc(calls) or "", schema, calls))
            return calls

        return decorate

    @overload
    def scalar_function(
        self,
        function: ScalarT,
        /,
        *,
        name: str | None = None,
        comment: str | None = None,
        returns: pa.DataType | None = None,
        volatility: Volatility | str = Volatility.CONSISTENT,
    ) -> ScalarT: ...
    @overload
    def scalar_function(
        self,
        /,
        *,
        name: str | None = None,
        comment: str | None = None,
        returns: pa.DataType | None = None,
        volatility: Volatility | str = Volatility.CONSISTENT,
    ) -> Callable[[F], F]: ...
    def scalar_function(
        self,
        function: Any = None,
        /,
        *,
        name: str | None = None,
        comment: str | None = None,
        returns: pa.DataType | None = None,
        volatility: Volatility | str = Volatility.CONSISTENT,
    ) -> Any:
        """Add a `ScalarFunction`, or decorate a function from arrays to an array. The same name again adds an overload."""
        if isinstance(function, ScalarFunction):
            self._add_function(self._scalars, function)
            return function

        def decorate(call: F) -> F:
            if not callable(call) or isinstance(call, type):
                self._check_kind(call, ScalarFunction, "scalar_function", "")
            title = name or _name_of(call)
            check_function(call, f"function {self.name}.{title}")
            scalar = DecoratedScalar(call, name=title, comment=comment, returns=returns, volatility=volatility)
            self._add_function(self._scalars, scalar)
            return call

        return decorate if function is None else decorate(function)

    @overload
    def table_function(self, function: FunctionT, /) -> FunctionT: ...
    @overload
    def table_function(
        self,
        /,
        *,
        schema: pa.Schema | Callable[..., pa.Schema],
        name: str | None = None,
        comment: str | None = None,
    ) -> Callable[[F], F]: ...
    def table_function(
        self,
        function: TableFunction | TableInOutFunction | None = None,
        /,
        *,
        schema: pa.Schema | Callable[..., pa.Schema] | None = None,
        name: str | None = None,
        comment: str | None = None,
    ) -> Any:
        """Add a table function, or decorate a function from scalars to Arrow data.

        `schema` is the schema of the result, or a function of the same parameters that returns it. Keyword-only
        parameters are passed by name in SQL. A parameter called `scan` receives the `ScanOptions`.
        """
        if function is not None:
            self._check_kind(function, TableFunction | TableInOutFunction, "table_function", "schema=pa.schema({…})")
            self._add_function(self._functions, function)
            return function
        if schema is None:
            raise Mistake(self._without_schema("table_function"))

        def decorate(call: F) -> F:
            title = name or _name_of(call)
            what = f"function {self.name}.{title}"
            check_function(call, what)
            if not callable(schema):
                check_columns(schema, what)
            self._add_function(self._functions, DecoratedTable(call, schema, name=title, comment=comment))
            return call

        return decorate

    def build(self) -> Schema:
        """Build a schema from everything added so far."""
        return BuiltSchema(
            self.name,
            self._comment,
            dict(self._tags),
            dict(self._tables),
            dict(self._refs),
            tuple(self._scalars),
            tuple(self._functions),
        )

    def _add(self, group: dict[str, Any], added: Table | TableRef) -> None:
        check_table(added, self.name)
        _check_new(added.name, [*self._tables, *self._refs], "table", f"{self.name}.{added.name}")
        group[added.name] = added

    def _add_function(self, group: list[Any], added: AnyFunction) -> None:
        others = [other for other in group if other.name != added.name]
        _check_new(added.name, [other.name for other in others], "function", f"{self.name}.{added.name}")
        if any(other.name == added.name and signature(other) == signature(added) for other in group):
            raise AlreadyExists(
                f"function {self.name}.{added.name}({signature(added)}) already exists; overloads must differ in their types"
            )
        group.append(added)

    def _without_schema(self, decorator: str) -> str:
        return f"@{self.name}.{decorator}() has no schema: write @{self.name}.{decorator}(schema=pa.schema({{…}}))"

    def _check_kind(self, added: object, kind: Any, decorator: str, arguments: str) -> None:
        """Check that the object to add is one, and not the function, the class or the data that it is made from."""
        if isinstance(added, kind):
            return
        where = f"{self.name}.{decorator}"
        if inspect.isroutine(added):
            raise Mistake(f"@{where} on {added.__name__}() has no parentheses: write @{where}({arguments})")
        if isinstance(added, pa.Schema | dict) and arguments:
            written = "schema=…" if isinstance(added, pa.Schema) else arguments
            raise Mistake(f"@{where}(…) got {instead_of(added)} as its first argument: write @{where}({written})")
        if isinstance(added, str):
            written = ", ".join(filter(None, [f"name={added!r}", arguments]))
            raise Mistake(f"@{where}(…) got the str {added!r} as its first argument: write @{where}({written})")
        kinds = kind.__args__ if hasattr(kind, "__args__") else (kind,)
        expected = f"{' or '.join(wanted.__name__ for wanted in kinds)} of skiway.airport"
        if isinstance(added, type) and issubclass(added, kind):
            raise Mistake(f"{where}(…) got the class {added.__name__}: add an instance, {where}({added.__name__}(…))")
        other = next((name for name, other_kind in _ADDED_BY.items() if isinstance(added, other_kind)), None)
        fix = f"add it with {self.name}.{other}(…)" if other else "add an object of a class that inherits from it"
        raise Mistake(f"{where}(…) got {instead_of(added)}, not a {expected}: {fix}")


_ADDED_BY: Final[dict[str, Any]] = {
    "table": Table,
    "table_ref": TableRef,
    "scalar_function": ScalarFunction,
    "table_function": TableFunction | TableInOutFunction,
}


def _name_of(function: Any) -> str:
    """The name of a decorated function; of a `functools.partial`, that of the function inside."""
    return str(getattr(function, "__name__", None) or getattr(function, "func", function).__name__)
