"""Builds catalogs from plain functions and decorators, the shortest way to write a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import pyarrow as pa

from skiway.airport.catalog import (
    UNREACHABLE_SCHEMA,
    Catalog,
    CatalogVersion,
    ColumnStatistics,
    HasStatistics,
    Schema,
    SharedListing,
    Table,
    TimeTravel,
    Versioned,
)
from skiway.airport.functions import (
    DecoratedScalar,
    DecoratedTable,
    ScalarFunction,
    TableFunction,
    TableInOutFunction,
    Volatility,
    signature,
)
from skiway.airport.scan import ArrowData, ScanOptions, TimePoint
from skiway.airport.table_refs import FunctionCall, FunctionCallRequest, TableRef
from skiway.errors import AlreadyExists, InvalidArgument

__all__ = ["CatalogBuilder", "SchemaBuilder"]

F = TypeVar("F", bound=Callable[..., Any])
Scan = Callable[[ScanOptions], ArrowData]
SchemaAt = Callable[[TimePoint], pa.Schema | None]


class CatalogBuilder:
    """Collects schemas, tables and functions, and builds an immutable catalog from them.

    Increase `version` when the catalog changes, so that clients refresh what they cached.
    """

    def __init__(self, name: str = "", *, version: int = 1) -> None:
        self.name = name
        self._version = version
        self._schemas: dict[str, SchemaBuilder] = {}

    def schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> SchemaBuilder:
        """Add a schema."""
        if name == UNREACHABLE_SCHEMA:
            raise InvalidArgument("DuckDB cannot query an attached schema named 'main': choose another name")
        if not name:
            raise InvalidArgument("a schema needs a name")
        if name in self._schemas:
            raise AlreadyExists(f"schema {name!r} already exists")
        self._schemas[name] = SchemaBuilder(name, comment, tags or {})
        return self._schemas[name]

    def build(self) -> Catalog:
        """Build a catalog from everything added so far."""
        return _BuiltCatalog(self.name, self._version, [builder.build() for builder in self._schemas.values()])


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
    def table(self, table: Table, /) -> Table: ...
    @overload
    def table(
        self,
        /,
        *,
        schema: pa.Schema,
        name: str | None = None,
        comment: str = "",
        statistics: Callable[[str, str], ColumnStatistics] | None = None,
        schema_at: SchemaAt | None = None,
    ) -> Callable[[F], F]: ...
    def table(
        self,
        table: Table | None = None,
        /,
        *,
        schema: pa.Schema | None = None,
        name: str | None = None,
        comment: str = "",
        statistics: Callable[[str, str], ColumnStatistics] | None = None,
        schema_at: SchemaAt | None = None,
    ) -> Any:
        """Add a `Table`, or decorate a scan function to add it as a table.

        `statistics(column, duckdb_type)` returns column statistics for the optimizer. `schema_at(time_point)` enables
        time travel: it returns the schema at that point in time, or None if the table did not exist. The scan function
        gets the point in its options.
        """
        if table is not None:
            self._add(self._tables, table)
            return table
        if schema is None:
            raise InvalidArgument("@schema.table needs schema=pa.schema({…}), or a Table to add")

        def decorate(scan: F) -> F:
            self._add(
                self._tables,
                function_table(
                    name or scan.__name__,
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
    def table_ref(self, ref: TableRef, /) -> TableRef: ...
    @overload
    def table_ref(self, /, *, schema: pa.Schema, name: str | None = None, comment: str = "") -> Callable[[F], F]: ...
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
            self._add(self._refs, ref)
            return ref
        if schema is None:
            raise InvalidArgument("@schema.table_ref needs schema=pa.schema({…}), or a TableRef to add")

        def decorate(calls: F) -> F:
            self._add(
                self._refs, _FunctionRef(name or calls.__name__, comment or inspect.getdoc(calls) or "", schema, calls)
            )
            return calls

        return decorate

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
            scalar = DecoratedScalar(call, name=name, comment=comment, returns=returns, volatility=volatility)
            self._add_function(self._scalars, scalar)
            return call

        return decorate if function is None else decorate(function)

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
            self._add_function(self._functions, function)
            return function
        if schema is None:
            raise InvalidArgument(
                "@schema.table_function needs schema=, a pyarrow schema or a function that returns one"
            )

        def decorate(call: F) -> F:
            self._add_function(self._functions, DecoratedTable(call, schema, name=name, comment=comment))
            return call

        return decorate

    def build(self) -> Schema:
        """Build a schema from everything added so far."""
        return _BuiltSchema(
            self.name,
            self._comment,
            dict(self._tags),
            dict(self._tables),
            dict(self._refs),
            tuple(self._scalars),
            tuple(self._functions),
        )

    def _add(self, group: dict[str, Any], added: Table | TableRef) -> None:
        if added.name in self._tables or added.name in self._refs:
            raise AlreadyExists(f"table {self.name}.{added.name} already exists")
        group[added.name] = added

    def _add_function(self, group: list[Any], added: Any) -> None:
        if any(other.name == added.name and signature(other) == signature(added) for other in group):
            raise AlreadyExists(
                f"function {self.name}.{added.name}({signature(added)}) already exists; overloads must differ in their types"
            )
        group.append(added)


class _BuiltSchema(Schema):
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


class _BuiltCatalog(Catalog, Versioned, SharedListing):
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


def function_table(
    name: str,
    schema: pa.Schema,
    scan: Scan,
    *,
    comment: str = "",
    statistics: Callable[[str, str], ColumnStatistics] | None = None,
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
        statistics: Callable[[str, str], ColumnStatistics] | None,
        schema_at: SchemaAt | None,
    ) -> None:
        self.name, self.comment = name, comment
        self._schema, self._scan = schema, scan
        self._statistics, self._schema_at = statistics, schema_at

    @property
    def schema(self) -> pa.Schema:
        return self._schema

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


class _FunctionRef(TableRef):
    def __init__(
        self,
        name: str,
        comment: str,
        schema: pa.Schema,
        calls: Callable[[FunctionCallRequest], Sequence[FunctionCall] | FunctionCall],
    ) -> None:
        self.name, self.comment = name, comment
        self._schema, self._calls = schema, calls

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def function_calls(self, request: FunctionCallRequest) -> Sequence[FunctionCall]:
        calls = self._calls(request)
        return [calls] if isinstance(calls, FunctionCall) else calls
