"""The actions behind CREATE, DROP and ALTER; each answers with what lets the client rebuild its entry."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, get_args

import pyarrow as pa

from skiway.airport.catalog import Catalog
from skiway.airport.ddl import CreateTable, DynamicCatalog, DynamicSchema, DynamicTable, OnConflict
from skiway.airport.request import Request
from skiway.airport.server.discovery import schema_contents, table_info, table_path
from skiway.airport.server.host import Host
from skiway.airport.server.lookup import open_schema, open_table
from skiway.airport.server.tickets import ObjectPath
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import (
    AlterRequest,
    CreateSchemaRequest,
    CreateTableRequest,
    DropRequest,
    binary,
    decode,
    encode,
)
from skiway.errors import InvalidArgument, Unsupported

__all__ = ["DDL_ACTIONS", "read_schema"]


Alter = Callable[[DynamicTable, AlterRequest], None]


def create_schema(host: Host, request: Request, body: bytes) -> bytes:
    """A new schema; answers with its (empty) contents."""
    asked = decode(body, CreateSchemaRequest, "create_schema")
    request, catalog = host.open_catalog(request, asked.catalog_name, schema=asked.schema)
    if not isinstance(catalog, DynamicCatalog):
        raise Unsupported(f"catalog {request.catalog!r} takes no new schemas")
    with host.unit_of_work(request, catalog):
        made = catalog.create_schema(asked.schema, comment=asked.comment or "", tags=asked.tags or {})
    return encode(schema_contents(made, request.catalog))


def drop_schema(host: Host, request: Request, body: bytes) -> bytes:
    """Remove an empty schema."""
    asked = decode(body, DropRequest, "drop_schema")
    request, catalog = host.open_catalog(request, asked.catalog_name, schema=asked.name)
    if not isinstance(catalog, DynamicCatalog):
        raise Unsupported(f"catalog {request.catalog!r} does not let schemas go")
    with host.unit_of_work(request, catalog):
        catalog.drop_schema(asked.name, if_exists=asked.ignore_not_found)
    return b""


def create_table(host: Host, request: Request, body: bytes) -> bytes:
    """A new table, or on conflict the one there is."""
    asked = decode(body, CreateTableRequest, "create_table")
    request, catalog = host.open_catalog(request, asked.catalog_name, schema=asked.schema_name, name=asked.table_name)
    schema = _dynamic_schema(catalog, asked.schema_name)
    with host.unit_of_work(request, catalog):
        asked_for = read_create_table(asked)
        table = schema.create_table(replace(asked_for, rows_follow=request.header(headers.ROWS_FOLLOW) == "1"))
    return table_info(table, table_path(table, request.catalog, asked.schema_name)).SerializeToString()


def drop_table(host: Host, request: Request, body: bytes) -> bytes:
    """Remove a table."""
    asked = decode(body, DropRequest, "drop_table")
    request, catalog = host.open_catalog(request, asked.catalog_name, schema=asked.schema_name, name=asked.name)
    schema = _dynamic_schema(catalog, asked.schema_name)
    with host.unit_of_work(request, catalog):
        schema.drop_table(asked.name, if_exists=asked.ignore_not_found)
    return b""


def rename_table(host: Host, request: Request, body: bytes) -> bytes:
    """Give a table another name."""
    asked = decode(body, AlterRequest, "rename_table")
    request, catalog = host.open_catalog(request, asked.catalog, schema=asked.schema, name=asked.name)
    schema = _dynamic_schema(catalog, asked.schema)
    with host.unit_of_work(request, catalog):
        schema.rename_table(asked.name, asked.new_table_name, if_exists=asked.ignore_not_found)
    return _described(catalog, ObjectPath(request.catalog, asked.schema, asked.new_table_name))


def altering(name: str, alter: Alter) -> Callable[[Host, Request, bytes], bytes]:
    """The action `name`, which does `alter` to a table and answers with the table as it is then."""

    def action(host: Host, request: Request, body: bytes) -> bytes:
        asked = decode(body, AlterRequest, name)
        request, catalog = host.open_catalog(request, asked.catalog, schema=asked.schema, name=asked.name)
        path = ObjectPath(request.catalog, asked.schema, asked.name)
        table = open_table(catalog, path)
        if not isinstance(table, DynamicTable):
            raise Unsupported(f"table '{path}' cannot be altered")
        with host.unit_of_work(request, catalog):
            alter(table, asked)
        return _described(catalog, path)

    action.__doc__ = alter.__doc__
    return action


def read_create_table(asked: CreateTableRequest) -> CreateTable:
    """What a `create_table` body says, with columns by name."""
    schema = read_schema(binary(asked.arrow_schema), "create_table")
    if asked.on_conflict not in get_args(OnConflict):
        raise InvalidArgument(f"on_conflict is {asked.on_conflict!r}; it must be error, ignore or replace")
    unique: list[tuple[str, ...]] = [
        (name,) for name in (*asked.unique_columns, *_names(schema, asked.unique_constraints))
    ]
    unique += [_unique_columns(text) for text in asked.extra_constraints]
    return CreateTable(
        name=asked.table_name,
        schema=schema,
        on_conflict=asked.on_conflict,  # type: ignore[arg-type]
        not_null=tuple(name for name in schema.names if name in _names(schema, asked.not_null_constraints)),
        primary_key=tuple(asked.primary_key_columns or _in_order(schema, asked.multi_key_primary_keys)),
        unique=tuple(unique),
        checks=tuple(asked.check_constraints),
    )


def read_schema(data: bytes, what: str) -> pa.Schema:
    """A serialised schema."""
    try:
        return pa.ipc.read_schema(pa.py_buffer(data))
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise InvalidArgument(f"{what}: the columns are not a serialised Arrow schema") from error


def _in_order(schema: pa.Schema, names: list[str]) -> list[str]:
    """Columns of a composite key; the client lost their order, so they stand as in the table."""
    unknown = set(names) - set(schema.names)
    if unknown:
        raise InvalidArgument(f"the primary key names column {min(unknown)!r}, which the table does not have")
    return [name for name in schema.names if name in names]


def _names(schema: pa.Schema, ordinals: list[int]) -> list[str]:
    if any(not 0 <= ordinal < len(schema) for ordinal in ordinals):
        raise InvalidArgument(f"a constraint names column number {max(ordinals)}; the table has {len(schema)} columns")
    return [schema.names[ordinal] for ordinal in ordinals]


_UNIQUE: Final = re.compile(r"\s*UNIQUE\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_IDENTIFIER: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",]+?))\s*(?:,|$)')


def _unique_columns(text: str) -> tuple[str, ...]:
    """The columns in `UNIQUE(a, "b c")`."""
    inside = _UNIQUE.fullmatch(text)
    if inside is None:
        raise Unsupported(f"constraint not understood: {text}; UNIQUE (columns) is")
    return tuple(quoted.replace('""', '"') if quoted else plain for quoted, plain in _IDENTIFIER.findall(inside[1]))


def _dynamic_schema(catalog: Catalog, name: str) -> DynamicSchema:
    schema = open_schema(catalog, name)
    if not isinstance(schema, DynamicSchema):
        raise Unsupported(f"the tables of schema {name!r} cannot be changed")
    return schema


def _described(catalog: Catalog, path: ObjectPath) -> bytes:
    table = open_table(catalog, path)
    return table_info(table, table_path(table, path.catalog or "", path.schema)).SerializeToString()


def _field(asked: AlterRequest, what: str) -> pa.Field:
    schema = read_schema(binary(asked.column_schema), what)
    if len(schema) != 1:
        raise InvalidArgument(f"{what} takes one column, not {len(schema)}")
    return schema.field(0)


def _add_column(table: DynamicTable, asked: AlterRequest) -> None:
    """Add a column."""
    table.add_column(_field(asked, "add_column"), if_not_exists=asked.if_column_not_exists)


def _remove_column(table: DynamicTable, asked: AlterRequest) -> None:
    """Remove a column."""
    table.remove_column(asked.removed_column, if_exists=asked.if_column_exists, cascade=asked.cascade)


def _rename_column(table: DynamicTable, asked: AlterRequest) -> None:
    """Rename a column."""
    table.rename_column(asked.old_name, asked.new_name)


def _change_column_type(table: DynamicTable, asked: AlterRequest) -> None:
    """Change the type of a column."""
    table.change_column_type(_field(asked, "change_column_type"), asked.expression)


def _set_not_null(table: DynamicTable, asked: AlterRequest) -> None:
    """Refuse NULLs in a column."""
    table.set_not_null(asked.column_name)


def _drop_not_null(table: DynamicTable, asked: AlterRequest) -> None:
    """Allow NULLs in a column."""
    table.drop_not_null(asked.column_name)


def _set_default(table: DynamicTable, asked: AlterRequest) -> None:
    """Set the default of a column."""
    table.set_default(asked.column_name, asked.expression)


def _add_constraint(table: DynamicTable, asked: AlterRequest) -> None:
    """Add a constraint."""
    table.add_constraint(asked.constraint)


def _add_field(table: DynamicTable, asked: AlterRequest) -> None:
    """Add a member to a struct."""
    field = _field(asked, "add_field")
    if asked.field_name:
        field = field.with_name(asked.field_name)
    elif asked.column_path and field.name == asked.column_path[-1]:
        raise Unsupported(
            f"DuckDB does not send the name of a new struct field, only its place {'.'.join(asked.column_path)}; "
            "use the Python API, or change the type of the whole column"
        )
    table.add_field(tuple(asked.column_path), field, if_not_exists=asked.if_field_not_exists)


def _rename_field(table: DynamicTable, asked: AlterRequest) -> None:
    """Rename a member of a struct."""
    table.rename_field(tuple(asked.column_path), asked.new_name)


def _remove_field(table: DynamicTable, asked: AlterRequest) -> None:
    """Remove a member of a struct."""
    table.remove_field(tuple(asked.column_path), if_exists=asked.if_column_exists, cascade=asked.cascade)


_ALTERATIONS: Final[dict[str, Alter]] = {
    "add_column": _add_column,
    "remove_column": _remove_column,
    "rename_column": _rename_column,
    "change_column_type": _change_column_type,
    "set_not_null": _set_not_null,
    "drop_not_null": _drop_not_null,
    "set_default": _set_default,
    "add_constraint": _add_constraint,
    "add_field": _add_field,
    "rename_field": _rename_field,
    "remove_field": _remove_field,
}

DDL_ACTIONS: Final[dict[str, Any]] = {
    "create_schema": create_schema,
    "drop_schema": drop_schema,
    "create_table": create_table,
    "drop_table": drop_table,
    "rename_table": rename_table,
    **{name: altering(name, alter) for name, alter in _ALTERATIONS.items()},
}
