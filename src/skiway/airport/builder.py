"""Catalogs from plain functions: the postcard way to write a server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, overload

import pyarrow as pa

from skiway.airport.catalog import (
    Catalog,
    CatalogVersion,
    HasStatistics,
    Schema,
    SharedListing,
    Table,
    TimeTravel,
    Versioned,
)
from skiway.airport.decorators import DecoratedScalar, DecoratedTable
from skiway.airport.functions import ScalarFunction, TableFunction, TableInOutFunction, Volatility, signature
from skiway.airport.scan import ArrowData, ScanOptions, TimePoint
from skiway.airport.server.discovery import UNREACHABLE
from skiway.airport.statistics import ColumnStatistics
from skiway.airport.table_refs import FunctionCall, FunctionCallRequest, TableRef
from skiway.errors import AlreadyExists, InvalidArgument

__all__ = ["CatalogBuilder", "SchemaBuilder"]

F = TypeVar("F", bound=Callable[..., Any])
Scan = Callable[[ScanOptions], ArrowData]
SchemaAt = Callable[[TimePoint], pa.Schema | None]


class CatalogBuilder:
    """Collects schemas, tables and functions; `build` makes a catalog of them that never changes.

    `version` tells clients that kept an older one apart from this one.
    """

    def __init__(self, name: str = "", *, version: int = 1) -> None:
        self.name = name
        self._version = version
        self._schemas: dict[str, SchemaBuilder] = {}

    def schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> SchemaBuilder:
        """A new schema."""
        if name == UNREACHABLE:
            raise InvalidArgument("DuckDB cannot look into an attached schema named 'main': choose another name")
        if not name:
            raise InvalidArgument("a schema needs a name")
        if name in self._schemas:
            raise AlreadyExists(f"schema {name!r} was made before")
        self._schemas[name] = SchemaBuilder(name, comment, tags or {})
        return self._schemas[name]

    def build(self) -> Catalog:
        """The catalog with all that was added until now."""
        return _BuiltCatalog(self.name, self._version, [builder.build() for builder in self._schemas.values()])


class SchemaBuilder:
    """Collects the objects of one schema. Each method returns what it was given, so functions stay callable."""

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
        """Add a `Table`, or decorate a scan function that becomes one.

        `statistics(column, duckdb_type)` tells the optimizer about columns. `schema_at(time_point)` opens time travel:
        it gives the schema of then, or None if the table did not exist; the scan finds the point in its options.
        """
        if table is not None:
            self._add(self._tables, table)
            return table
        if schema is None:
            raise InvalidArgument("@schema.table needs schema=pa.schema({…}), or a Table to add")

        def decorate(scan: F) -> F:
            named = name or scan.__name__
            self._add(
                self._tables,
                function_table(
                    named,
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
        """Add a `TableRef`, or decorate a function that gives the calls for DuckDB to run."""
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
        """Add a `ScalarFunction`, or decorate a function from arrays to an array; several of one name are overloads."""
        if isinstance(function, ScalarFunction):
            self._add_function(self._scalars, function)
            return function

        def decorate(call: F) -> F:
            made = DecoratedScalar(call, name=name, comment=comment, returns=returns, volatility=volatility)
            self._add_function(self._scalars, made)
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
        """Add a table function, or decorate one from scalars to Arrow data.

        `schema` is that of its rows, or a function of the same parameters that gives it. Keyword-only parameters are
        passed by name in SQL; one called `scan` receives the `ScanOptions`.
        """
        if function is not None:
            self._add_function(self._functions, function)
            return function
        if schema is None:
            raise InvalidArgument("@schema.table_function needs schema=, a pyarrow schema or a function that gives one")

        def decorate(call: F) -> F:
            self._add_function(self._functions, DecoratedTable(call, schema, name=name, comment=comment))
            return call

        return decorate

    def build(self) -> Schema:
        """The schema with all that was added until now."""
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
            raise AlreadyExists(f"table {self.name}.{added.name} was made before")
        group[added.name] = added

    def _add_function(self, group: list[Any], added: Any) -> None:
        if any(known.name == added.name and signature(known) == signature(added) for known in group):
            raise AlreadyExists(
                f"function {self.name}.{added.name}({signature(added)}) was made before; overloads must differ in their types"
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
        return None  # all callers see the same


def function_table(
    name: str,
    schema: pa.Schema,
    scan: Scan,
    *,
    comment: str = "",
    statistics: Callable[[str, str], ColumnStatistics] | None = None,
    schema_at: SchemaAt | None = None,
) -> Table:
    """A table over a scan function, with just the abilities that were given."""
    kind: type[_FunctionTable] = _FunctionTable
    if statistics is not None and schema_at is not None:
        kind = _TravellingTableWithStatistics
    elif statistics is not None:
        kind = _TableWithStatistics
    elif schema_at is not None:
        kind = _TravellingTable
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


class _TravellingTable(_FunctionTable, TimeTravel):
    def at(self, point: TimePoint) -> Table | None:
        assert self._schema_at is not None
        schema = self._schema_at(point)
        if schema is None:
            return None
        return function_table(self.name, schema, self._scan, comment=self.comment, statistics=self._statistics)


class _TravellingTableWithStatistics(_TableWithStatistics, _TravellingTable):
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
