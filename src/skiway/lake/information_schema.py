"""The information schema of SQL: the catalogs, schemas, tables and columns that the caller may see, in the layout of DuckDB.

Every catalog has it in queries on the server, and it is about all catalogs of the account. Tables have no keys and constraints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from skiway.airport import Catalog, ScanOptions, Schema, Table
from skiway.airport.server.tickets import as_plain
from skiway.airport.tables import find_rowid_column
from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.errors import NotFound
from skiway.lake.system.schema import SYSTEM_SCHEMA
from skiway.lake.system.tables import Row, arrow_table, schema_of
from skiway.lake.views import DefinerView, LakeView, ViewTable

INFORMATION_SCHEMA: Final = "information_schema"

Listed = Callable[[], Iterable[Catalog]]
"""Lists the catalogs of the caller's account."""


class InformationTable(Table):
    """A table of the information schema. Its rows are computed by each scan, with the rights of the caller."""

    def __init__(self, name: str, listed: Listed) -> None:
        self.name = name
        self.schema, self._rows = _TABLES[name], _ROWS.get(name)
        self._listed = listed

    def scan(self, options: ScanOptions) -> pa.Table:  # noqa: ARG002 - DuckDB filters the rows
        """All rows."""
        return arrow_table(self.schema, self._rows(self._listed()) if self._rows else iter(()))


def information_table(name: str, listed: Listed) -> InformationTable | None:
    """The table with this name; None if there is none."""
    return InformationTable(name.lower(), listed) if name.lower() in _TABLES else None


def table_type(schema: Schema, table: object) -> str:
    """The type of a table in listings."""
    if schema.name == SYSTEM_SCHEMA:
        return "SYSTEM TABLE"
    return "VIEW" if isinstance(table, ViewTable) else "TABLE"


def _schemata(catalogs: Iterable[Catalog]) -> Iterator[Row]:
    for catalog in catalogs:
        for schema in catalog.schemas():
            yield catalog.name, schema.name, *[None] * 5


def _of_all(catalogs: Iterable[Catalog]) -> Iterator[tuple[Catalog, Schema, Table]]:
    """All tables and views, with their catalogs and schemas."""
    for catalog in catalogs:
        for schema in catalog.schemas():
            try:
                found = schema.tables()
            except NotFound:  # somebody dropped the schema
                continue
            for table in found:
                yield catalog, schema, table


def _tables(catalogs: Iterable[Catalog]) -> Iterator[Row]:
    for catalog, schema, table in _of_all(catalogs):
        kind = table_type(schema, table).replace("TABLE", "BASE TABLE" if schema.name != SYSTEM_SCHEMA else "TABLE")
        insertable = "YES" if kind == "BASE TABLE" else "NO"
        yield catalog.name, schema.name, table.name, kind, *[None] * 5, insertable, "NO", None, table.comment or None


def _views(catalogs: Iterable[Catalog]) -> Iterator[Row]:
    for catalog, schema, table in _of_all(catalogs):
        if isinstance(table, ViewTable):  # the query of one that a policy restricts, or that is broken, is not shown
            query = table.sql if isinstance(table, LakeView | DefinerView) else None
            yield catalog.name, schema.name, table.name, query, "NONE", *["NO"] * 5


def _columns(catalogs: Iterable[Catalog]) -> Iterator[Row]:
    for catalog, schema, table in _of_all(catalogs):
        columns = as_plain(table.schema)
        rowid = find_rowid_column(columns)
        shown = [field for index, field in enumerate(columns) if index != rowid]
        for position, field in enumerate(shown, 1):
            comment = (field.metadata or {}).get(b"comment", b"").decode("utf-8", "replace")
            nullable = "YES" if field.nullable else "NO"
            place = (catalog.name, schema.name, table.name, field.name, position)
            yield *place, None, nullable, duckdb_type(field), None, None, *_digits(field.type), None, comment or None


def _digits(kind: pa.DataType) -> tuple[int | None, int | None, int | None]:
    """The precision of a number, its radix, and its scale, as DuckDB shows them."""
    if pa.types.is_decimal(kind):
        return kind.precision, 10, kind.scale
    if pa.types.is_integer(kind):
        return kind.bit_width, 2, 0
    if pa.types.is_floating(kind):
        return (24 if kind.bit_width == 32 else 53), 2, 0
    return None, None, None


_LAYOUTS: Final = """
schemata = catalog_name schema_name schema_owner default_character_set_catalog default_character_set_schema
    default_character_set_name sql_path
tables = table_catalog table_schema table_name table_type self_referencing_column_name reference_generation
    user_defined_type_catalog user_defined_type_schema user_defined_type_name is_insertable_into is_typed commit_action
    TABLE_COMMENT
views = table_catalog table_schema table_name view_definition check_option is_updatable is_insertable_into
    is_trigger_updatable is_trigger_deletable is_trigger_insertable_into
columns = table_catalog table_schema table_name column_name ordinal_position* column_default is_nullable data_type
    character_maximum_length* character_octet_length* numeric_precision* numeric_precision_radix* numeric_scale*
    datetime_precision* COLUMN_COMMENT
table_constraints = constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name
    constraint_type is_deferrable initially_deferred enforced nulls_distinct
key_column_usage = constraint_catalog constraint_schema constraint_name table_catalog table_schema table_name column_name
    ordinal_position* position_in_unique_constraint*
referential_constraints = constraint_catalog constraint_schema constraint_name unique_constraint_catalog
    unique_constraint_schema unique_constraint_name match_option update_rule delete_rule
"""
"""The columns of each table. They are texts, except those with a star, which are numbers."""

_ROWS: Final = {"schemata": _schemata, "tables": _tables, "views": _views, "columns": _columns}


def _layouts() -> Iterator[tuple[str, pa.Schema]]:
    for name, columns in re.findall(r"^(\w+) = (.+(?:\n    .+)*)", _LAYOUTS, re.MULTILINE):
        named = [f"{each.rstrip('*')} {'integer' if '*' in each else 'text'}" for each in columns.split()]
        yield name, schema_of(", ".join(named))


_TABLES: Final = dict(_layouts())
