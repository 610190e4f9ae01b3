"""What Flight SQL needs from an engine, and the listings of catalogs, schemas, tables and their columns.

Callers see what a listing of Airport shows them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa
from google.protobuf.message import Message

from skiway.airport import Schema, Table
from skiway.airport.request import Request, authorize
from skiway.airport.server.host import Host
from skiway.airport.server.tickets import as_plain
from skiway.airport.table_refs import TableRef
from skiway.airport.tables import find_rowid_column
from skiway.airport.wire.duckdb_sql import duckdb_type, type_metadata
from skiway.errors import NotFound
from skiway.flightsql.facts import SQL_INFO, TYPES, layout, sql_info, type_info
from skiway.model import flight_sql_pb2 as sql


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The columns and the rows of a query that runs."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class BoundSql:
    """A query with constants instead of its parameters, and the names of these in their order."""

    sql: str
    parameters: Sequence[str]


@dataclass(frozen=True, slots=True)
class Place:
    """The catalog and the schema of names that have none, as the client chose them; both may be empty."""

    catalog: str = ""
    schema: str = ""


class SqlEngine(ABC):
    """Runs queries. Methods are called from many threads, and may call `current_request()` to see who is calling."""

    @abstractmethod
    def caller(self) -> str:
        """A text that identifies the caller: statements belong to the caller who prepared or planned them."""

    @abstractmethod
    def columns(self, sql: str, place: Place) -> pa.Schema:
        """The columns of a query, without running it."""

    @abstractmethod
    def run(self, sql: str, place: Place) -> AbstractContextManager[SqlResult]:
        """Run a query within the block. The query must end with the block."""

    @abstractmethod
    def parameters(self, sql: str, place: Place) -> Sequence[str]:
        """DuckDB's names of the types that a query expects of its parameters; empty for those that it does not tell."""

    @abstractmethod
    def bind(self, sql: str, values: pa.Table | None, types: Sequence[str] = ()) -> BoundSql:
        """A query with the values of one row instead of its parameters; with NULL if there are no values.

        Values are cast to `types`, if there are any and that does not change the values.
        """

    def table_type(self, schema: Schema, table: Table | TableRef) -> str:  # noqa: ARG002 - for engines that distinguish
        """The type of a table in listings, one of `table_types`."""
        return "TABLE"

    @property
    def table_types(self) -> Sequence[str]:
        """All types of tables."""
        return ("TABLE",)


_BATCH: Final = 1000
"""Tables in a batch: schemas of all tables of a large lake would need much memory."""


CATALOGS: Final = layout("catalog_name")
SCHEMAS: Final = layout("catalog_name? db_schema_name")
TABLES: Final = layout("catalog_name? db_schema_name? table_name table_type")
TABLES_WITH_COLUMNS: Final = TABLES.append(pa.field("table_schema", pa.binary(), nullable=False))
TABLE_TYPES: Final = layout("table_type")
PRIMARY_KEYS: Final = layout("catalog_name? db_schema_name? table_name column_name key_sequence:i key_name?")
FOREIGN_KEYS: Final = layout(
    "pk_catalog_name? pk_db_schema_name? pk_table_name pk_column_name fk_catalog_name? fk_db_schema_name? fk_table_name "
    "fk_column_name key_sequence:i fk_key_name? pk_key_name? update_rule:byte delete_rule:byte"
)

_COLUMNS: Final[dict[type[Any], pa.Schema]] = {
    sql.CommandGetCatalogs: CATALOGS,
    sql.CommandGetDbSchemas: SCHEMAS,
    sql.CommandGetTableTypes: TABLE_TYPES,
    sql.CommandGetSqlInfo: SQL_INFO,
    sql.CommandGetPrimaryKeys: PRIMARY_KEYS,
    sql.CommandGetExportedKeys: FOREIGN_KEYS,
    sql.CommandGetImportedKeys: FOREIGN_KEYS,
    sql.CommandGetCrossReference: FOREIGN_KEYS,
    sql.CommandGetXdbcTypeInfo: TYPES,
}


def columns_of(command: Message) -> pa.Schema | None:
    """The columns of the answer to a command; None if it does not ask for metadata."""
    if isinstance(command, sql.CommandGetTables):
        return TABLES_WITH_COLUMNS if command.include_schema else TABLES
    return _COLUMNS.get(type(command))


def rows_of(host: Host, request: Request, engine: SqlEngine, command: Message) -> Iterator[pa.RecordBatch]:
    """The answer to a command that asks for metadata. Tables have no keys, so there are none to list."""
    match command:
        case sql.CommandGetCatalogs():
            yield pa.record_batch([pa.array(sorted(host.visible_catalogs(request)), pa.string())], schema=CATALOGS)
        case sql.CommandGetDbSchemas():
            names = [(catalog, schema.name) for catalog, schema in _schemas(host, request, command)]
            yield _batch(names, SCHEMAS)
        case sql.CommandGetTables():
            yield from _tables(host, request, engine, command)
        case sql.CommandGetTableTypes():
            yield pa.record_batch([pa.array(sorted(engine.table_types), pa.string())], schema=TABLE_TYPES)
        case sql.CommandGetSqlInfo():
            yield sql_info(command.info)
        case sql.CommandGetXdbcTypeInfo():
            yield type_info(command.data_type if command.HasField("data_type") else None)


def _schemas(
    host: Host, request: Request, command: sql.CommandGetDbSchemas | sql.CommandGetTables
) -> Iterator[tuple[str, Schema]]:
    """The schemas that a command asks for, each with the name of its catalog, in order."""
    matches = _filter(command, "db_schema_filter_pattern")
    names = list(host.visible_catalogs(request))
    for name in sorted(names):
        if command.HasField("catalog") and command.catalog != name:
            continue
        authorize(request.within(name), host.auth)
        try:
            schemas = host.find(name).schemas()
        except NotFound:  # somebody dropped the catalog
            continue
        for schema in sorted(schemas, key=attrgetter("name")):
            if matches(schema.name):
                yield name, schema


def _tables(host: Host, request: Request, engine: SqlEngine, command: sql.CommandGetTables) -> Iterator[pa.RecordBatch]:
    matches, kinds = _filter(command, "table_name_filter_pattern"), set(command.table_types)
    columns = columns_of(command)
    rows: list[tuple[Any, ...]] = []
    for catalog, schema in _schemas(host, request, command):
        for table in _named(schema, matches):
            kind = engine.table_type(schema, table)
            if kinds and kind not in kinds:
                continue
            row: tuple[Any, ...] = (catalog, schema.name, table.name, kind)
            if command.include_schema:
                try:
                    row = (*row, _described(table, catalog, schema.name).serialize().to_pybytes())
                except NotFound:  # somebody dropped the table
                    continue
            rows.append(row)
            if len(rows) == _BATCH:
                yield _batch(rows, columns)
                rows = []
    if rows:
        yield _batch(rows, columns)


def _named(schema: Schema, matches: Callable[[str], bool]) -> Sequence[Table | TableRef]:
    """The tables of a schema with matching names, in order; none if somebody dropped the schema."""
    try:
        tables: list[Table | TableRef] = [table for table in schema.tables() if matches(table.name)]
        tables += [table for table in schema.table_refs() if matches(table.name)]
    except NotFound:
        return []
    return sorted(tables, key=attrgetter("name"))


def _described(table: Table | TableRef, catalog: str, schema: str) -> pa.Schema:
    """The columns of a table without its row id, with the metadata that Flight SQL defines for columns."""
    columns = as_plain(table.schema)
    rowid = find_rowid_column(columns)
    fields = []
    for index, field in enumerate(columns):
        if index == rowid:
            continue
        comment = (field.metadata or {}).get(b"comment", b"").decode("utf-8", "replace")
        facts = {
            "CATALOG_NAME": catalog,
            "SCHEMA_NAME": schema,
            "TABLE_NAME": table.name,
            "TYPE_NAME": duckdb_type(field),
            "IS_READ_ONLY": "1",
            **({"REMARKS": comment} if comment else {}),
        }
        named = {f"ARROW:FLIGHT:SQL:{key}".encode(): value.encode() for key, value in facts.items()}
        fields.append(field.with_metadata({**type_metadata(field), **named}))
    return pa.schema(fields)


def _batch(rows: Sequence[tuple[Any, ...]], schema: pa.Schema | None) -> pa.RecordBatch:
    assert schema is not None
    columns = [[row[index] for row in rows] for index in range(len(schema))]
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)


def _filter(command: Message, field: str) -> Callable[[str], bool]:
    """The filter of a LIKE pattern, in which `%` stands for any characters and `_` for one; none matches everything."""
    if not command.HasField(field):
        return lambda _: True
    pattern = getattr(command, field).casefold()
    return lambda name: _is_like(name.casefold(), pattern)


def _is_like(name: str, pattern: str) -> bool:
    """Whether a name matches a LIKE pattern. It takes at most as many steps as the product of their lengths."""
    at = index = 0
    star, resume = -1, 0
    while at < len(name):
        if index < len(pattern) and pattern[index] == "%":
            star, resume = index, at
            index += 1
        elif index < len(pattern) and pattern[index] in ("_", name[at]):
            at, index = at + 1, index + 1
        elif star >= 0:  # the last % takes one character more
            resume += 1
            at, index = resume, star + 1
        else:
            return False
    return not pattern[index:].strip("%")
