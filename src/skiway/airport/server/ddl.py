"""The actions for CREATE, DROP and ALTER. Each returns the new metadata of the object, with which the client updates its cache.

The first line of each docstring is the description that ListActions returns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, get_args

import pyarrow as pa
from msgspec import structs

from skiway.airport.catalog import Catalog, CreateTable, DynamicCatalog, DynamicSchema, DynamicTable, OnConflict
from skiway.airport.request import Request
from skiway.airport.server.discovery import listed_table, schema_contents
from skiway.airport.server.host import Host
from skiway.airport.server.lookup import find_table, open_schema
from skiway.airport.server.tickets import ObjectPath, as_listed
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import check_names
from skiway.airport.wire.protocol import (
    AlterRequest,
    CreateSchemaRequest,
    CreateTableRequest,
    DropRequest,
    ObjectMetadata,
    binary,
    decode,
    encode,
)
from skiway.errors import InvalidArgument, NotFound, Unsupported
from skiway.model.flight_pb2 import FlightInfo

Alter = Callable[[DynamicTable, AlterRequest], None]


def create_schema(host: Host, request: Request, body: bytes) -> bytes:
    """Create a schema."""
    args = decode(body, CreateSchemaRequest, "create_schema")
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.schema)
    if not isinstance(catalog, DynamicCatalog):
        raise Unsupported(f"catalog {request.catalog!r} does not support CREATE SCHEMA")
    with host.unit_of_work(request, catalog):
        schema = catalog.create_schema(args.schema, comment=args.comment or "", tags=args.tags or {})
    return encode(schema_contents(schema, request.catalog))


def drop_schema(host: Host, request: Request, body: bytes) -> bytes:
    """Drop an empty schema."""
    args = decode(body, DropRequest, "drop_schema")
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.name)
    if not isinstance(catalog, DynamicCatalog):
        raise Unsupported(f"catalog {request.catalog!r} does not support DROP SCHEMA")
    with host.unit_of_work(request, catalog):
        catalog.drop_schema(args.name, if_exists=args.ignore_not_found)
    return b""


def create_table(host: Host, request: Request, body: bytes) -> bytes:
    """Create a table."""
    args = decode(body, CreateTableRequest, "create_table")
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.schema_name, name=args.table_name)
    schema = _dynamic_schema(catalog, args.schema_name)
    with host.unit_of_work(request, catalog):
        create = read_create_table(args)
        table = schema.create_table(replace(create, rows_follow=request.header(protocol.ROWS_FOLLOW) == "1"))
    return listed_table(table, request.catalog, args.schema_name).SerializeToString()


def drop_table(host: Host, request: Request, body: bytes) -> bytes:
    """Drop a table."""
    args = decode(body, DropRequest, "drop_table")
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.schema_name, name=args.name)
    if args.ignore_not_found and catalog.schema(args.schema_name) is None:
        return b""
    schema = _dynamic_schema(catalog, args.schema_name)
    with host.unit_of_work(request, catalog):
        schema.drop_table(args.name, if_exists=args.ignore_not_found)
    return b""


def rename_table(host: Host, request: Request, body: bytes) -> bytes:
    """Rename a table."""
    args = decode(body, AlterRequest, "rename_table")
    request, catalog = host.open_catalog(request, args.catalog, schema=args.schema, name=args.name)
    path = ObjectPath(request.catalog, args.schema, args.name)
    if args.ignore_not_found and not _exists(catalog, path):
        return _nothing(path)
    schema = _dynamic_schema(catalog, args.schema)
    with host.unit_of_work(request, catalog):
        schema.rename_table(args.name, args.new_table_name)
    return _table_info(catalog, ObjectPath(request.catalog, args.schema, args.new_table_name))


def altering(name: str, alter: Alter) -> Callable[[Host, Request, bytes], bytes]:
    """The action `name`, which applies `alter` to a table and returns the FlightInfo of the altered table.

    With `ignore_not_found`, a table that does not exist is returned without columns: the client must get an entry.
    """

    def action(host: Host, request: Request, body: bytes) -> bytes:
        args = decode(body, AlterRequest, name)
        request, catalog = host.open_catalog(request, args.catalog, schema=args.schema, name=args.name)
        path = ObjectPath(request.catalog, args.schema, args.name)
        try:
            with host.unit_of_work(request, catalog):
                table = find_table(catalog, path)
                if not isinstance(table, DynamicTable):
                    raise Unsupported(f"table '{path}' cannot be altered")
                alter(table, args)
            return _table_info(catalog, path)
        except NotFound:
            if args.ignore_not_found and not _exists(catalog, path):
                return _nothing(path)
            raise

    action.__doc__ = alter.__doc__
    return action


def read_create_table(args: CreateTableRequest) -> CreateTable:
    """Decode the body of `create_table`, with constraints on columns by name."""
    schema = read_schema(binary(args.arrow_schema), "create_table")
    if args.on_conflict not in get_args(OnConflict):
        raise InvalidArgument(f"on_conflict is {args.on_conflict!r}; it must be error, ignore or replace")
    unique: list[tuple[str, ...]] = [
        (name,) for name in (*args.unique_columns, *_names(schema, args.unique_constraints))
    ]
    unique += [_unique_columns(text) for text in args.extra_constraints]
    not_null = frozenset(_names(schema, args.not_null_constraints))
    return CreateTable(
        name=args.table_name,
        schema=schema,
        on_conflict=args.on_conflict,  # type: ignore[arg-type]
        not_null=tuple(name for name in schema.names if name in not_null),
        primary_key=tuple(args.primary_key_columns or _in_order(schema, args.multi_key_primary_keys)),
        unique=tuple(unique),
        checks=tuple(args.check_constraints),
    )


def read_schema(data: bytes, what: str) -> pa.Schema:
    """Decode a serialized Arrow schema."""
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(data))
        check_names(schema)
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise InvalidArgument(f"{what}: the columns are not a serialized Arrow schema, with names in UTF-8") from error
    return schema


def _in_order(schema: pa.Schema, names: list[str]) -> list[str]:
    """The columns of a composite key in table order. DuckDB does not send the order of the key."""
    key = frozenset(names)
    unknown = key - set(schema.names)
    if unknown:
        raise InvalidArgument(f"the primary key names column {min(unknown)!r}, which the table does not have")
    return [name for name in schema.names if name in key]


def _names(schema: pa.Schema, ordinals: list[int]) -> list[str]:
    if any(not 0 <= ordinal < len(schema) for ordinal in ordinals):
        raise InvalidArgument(f"a constraint names column number {max(ordinals)}; the table has {len(schema)} columns")
    names = schema.names  # a new list each time
    return [names[ordinal] for ordinal in ordinals]


_UNIQUE: Final = re.compile(r"\s*UNIQUE\s*\((.*)\)\s*", re.IGNORECASE | re.DOTALL)
_IDENTIFIER: Final = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",]+?))\s*(?:,|$)')


def _unique_columns(text: str) -> tuple[str, ...]:
    """The column names in `UNIQUE(a, "b c")`."""
    inside = _UNIQUE.fullmatch(text)
    if inside is None:
        raise Unsupported(f"unsupported constraint: {text}; only UNIQUE (columns) is supported")
    return tuple(quoted.replace('""', '"') if quoted else plain for quoted, plain in _IDENTIFIER.findall(inside[1]))


def _dynamic_schema(catalog: Catalog, name: str) -> DynamicSchema:
    schema = open_schema(catalog, name)
    if not isinstance(schema, DynamicSchema):
        raise Unsupported(f"schema {name!r} is read-only")
    return schema


def _exists(catalog: Catalog, path: ObjectPath) -> bool:
    schema = catalog.schema(path.schema)
    return schema is not None and (schema.table(path.name) or schema.table_ref(path.name)) is not None


def _nothing(path: ObjectPath) -> bytes:
    """The FlightInfo of a table that does not exist. Only a client whose listing is outdated asks for it."""
    metadata = ObjectMetadata(type="table", catalog=path.catalog or "", schema=path.schema, name=path.name)
    return FlightInfo(
        schema=as_listed(pa.schema([])).serialize().to_pybytes(),
        flight_descriptor=structs.replace(path, signature="dropped").descriptor(),
        total_records=-1,
        total_bytes=-1,
        app_metadata=encode(metadata),
    ).SerializeToString()


def _table_info(catalog: Catalog, path: ObjectPath) -> bytes:
    return listed_table(find_table(catalog, path), path.catalog or "", path.schema).SerializeToString()


def _field(args: AlterRequest, what: str) -> pa.Field:
    schema = read_schema(binary(args.column_schema), what)
    if len(schema) != 1:
        raise InvalidArgument(f"{what} takes one column, not {len(schema)}")
    return schema.field(0)


def _add_column(table: DynamicTable, args: AlterRequest) -> None:
    """Add a column."""
    table.add_column(_field(args, "add_column"), if_not_exists=args.if_column_not_exists)


def _remove_column(table: DynamicTable, args: AlterRequest) -> None:
    """Drop a column."""
    table.remove_column(args.removed_column, if_exists=args.if_column_exists, cascade=args.cascade)


def _rename_column(table: DynamicTable, args: AlterRequest) -> None:
    """Rename a column."""
    table.rename_column(args.old_name, args.new_name)


def _change_column_type(table: DynamicTable, args: AlterRequest) -> None:
    """Change the type of a column."""
    table.change_column_type(_field(args, "change_column_type"), args.expression)


def _set_not_null(table: DynamicTable, args: AlterRequest) -> None:
    """Add a NOT NULL constraint to a column."""
    table.set_not_null(args.column_name)


def _drop_not_null(table: DynamicTable, args: AlterRequest) -> None:
    """Drop the NOT NULL constraint of a column."""
    table.drop_not_null(args.column_name)


def _set_default(table: DynamicTable, args: AlterRequest) -> None:
    """Set the default of a column."""
    table.set_default(args.column_name, args.expression)


def _add_constraint(table: DynamicTable, args: AlterRequest) -> None:
    """Add a constraint."""
    table.add_constraint(args.constraint)


def _add_field(table: DynamicTable, args: AlterRequest) -> None:
    """Add a field to a struct."""
    field = _field(args, "add_field")
    if args.field_name:
        field = field.with_name(args.field_name)
    elif args.column_path and field.name == args.column_path[0]:  # the name of the column instead
        raise Unsupported(
            f"DuckDB does not send the name of a new struct field, only its position {'.'.join(args.column_path)}; "
            "use the Python API, or change the type of the whole column"
        )
    table.add_field(_path(args), field, if_not_exists=args.if_field_not_exists)


def _rename_field(table: DynamicTable, args: AlterRequest) -> None:
    """Rename a field of a struct."""
    table.rename_field(_path(args), args.new_name)


def _remove_field(table: DynamicTable, args: AlterRequest) -> None:
    """Drop a field of a struct."""
    table.remove_field(_path(args), if_exists=args.if_column_exists, cascade=args.cascade)


def _path(args: AlterRequest) -> tuple[str, ...]:
    """The names that lead to a struct or one of its fields."""
    if not args.column_path or not all(args.column_path):
        found = "empty" if not args.column_path else "one with an empty name"
        raise InvalidArgument(
            f"the path of the field is {found}: name the column, and then the fields that lead to it", key="column.path"
        )
    return tuple(args.column_path)


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
