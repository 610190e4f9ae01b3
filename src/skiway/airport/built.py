"""The catalogs, schemas and tables that `CatalogBuilder` builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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
from skiway.airport.functions import ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.scan import ArrowData, ScanOptions, TimePoint
from skiway.airport.table_refs import FunctionCall, FunctionCallRequest, TableRef

__all__ = [
    "BuiltCatalog",
    "BuiltSchema",
    "BuiltTransactionalCatalog",
    "Calls",
    "FunctionRef",
    "Scan",
    "SchemaAt",
    "Statistics",
    "function_table",
]

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
