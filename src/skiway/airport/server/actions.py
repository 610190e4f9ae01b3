"""The actions of the Airport protocol. Each decodes the body of a request and returns the body of the single result.

CREATE, DROP and ALTER return the new metadata of the object, with which the client updates its cache. The action `delete` is in
`skiway.airport.server.json_contract`. The first line of each docstring is the description that ListActions returns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar, get_args

import msgspec
import pyarrow as pa
from msgspec import structs

from skiway.airport.catalog import (
    Catalog,
    CreateTable,
    DynamicCatalog,
    DynamicSchema,
    DynamicTable,
    HasStatistics,
    OnConflict,
    TransactionManager,
)
from skiway.airport.functions import TableInOutFunction, read_arguments
from skiway.airport.request import Request
from skiway.airport.server.discovery import listed_table, schema_contents, statistics_response, table_info, version_of
from skiway.airport.server.exchange import in_out_key
from skiway.airport.server.host import Host, OpenedTable, find_table, open_schema, open_table, open_table_function
from skiway.airport.server.json_contract import delete_by_ids
from skiway.airport.server.scans import announce, check_announced, endpoints
from skiway.airport.server.tickets import (
    ObjectPath,
    as_listed,
    as_plain,
    flight_info_of,
    object_path,
    parse_descriptor,
)
from skiway.airport.tables import TimePoint
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import check_names
from skiway.airport.wire.protocol import (
    AlterRequest,
    CatalogRequest,
    CreateSchemaRequest,
    CreateTableRequest,
    DropRequest,
    EndpointsRequest,
    FlightInfoRequest,
    ObjectMetadata,
    StatisticsRequest,
    TableFunctionRequest,
    TransactionInfo,
    TransactionRequest,
    TransactionState,
    VersionInfo,
    arrow_stream,
    binary,
    decode,
    encode,
)
from skiway.errors import InvalidArgument, NotFound, Unsupported

Action = Callable[[Host, Request, bytes], bytes]
Body = TypeVar("Body")
Run = Callable[[Host, Request, Body], bytes]

ACTIONS: Final[dict[str, Action]] = {}


def action(name: str, kind: type[Body]) -> Callable[[Run[Body]], Run[Body]]:
    """Make a function the action `name`, whose body is decoded as `kind`."""

    def register(run: Run[Body]) -> Run[Body]:
        def decoded(host: Host, request: Request, body: bytes) -> bytes:
            return run(host, request, decode(body, kind, name))

        decoded.__doc__ = run.__doc__
        ACTIONS[name] = decoded
        return run

    return register


@action("list_schemas", CatalogRequest)
def _list_schemas(host: Host, request: Request, args: CatalogRequest) -> bytes:
    """List all schemas with their tables and functions."""
    request, catalog = host.open_catalog(request, args.catalog_name)
    return host.listings.list_schemas(catalog, request.catalog)


@action("catalog_version", CatalogRequest)
def _catalog_version(host: Host, request: Request, args: CatalogRequest) -> bytes:
    """Return the catalog version, which tells DuckDB whether its plans are stale."""
    _, catalog = host.open_catalog(request, args.catalog_name)
    version = version_of(catalog)
    return encode(VersionInfo(version.version, version.fixed))


@action("endpoints", EndpointsRequest)
def _endpoints(host: Host, request: Request, args: EndpointsRequest) -> bytes:
    """Return the endpoints of a scan."""
    return encode(endpoints(host, request, args))


@action("flight_info", FlightInfoRequest)
def _flight_info(host: Host, request: Request, args: FlightInfoRequest) -> bytes:
    """Return the FlightInfo of a table at a point in time."""
    request, catalog, path = host.open(request, parse_descriptor(binary(args.descriptor)))
    point = TimePoint.parse(args.at_unit, args.at_value)
    # DuckDB calls this twice: first for the entry of its catalog, which may have an outdated binding and is accepted, then
    # with the id of the scan.
    opened = open_table(catalog, path, point, any_binding=not request.trace_id)
    announce(host, request, opened)
    return table_info(opened.table, opened.path, opened.schema, past=point is not None).SerializeToString()


@action("column_statistics", StatisticsRequest)
def _column_statistics(host: Host, request: Request, args: StatisticsRequest) -> bytes:
    """Return the statistics of a column, as a one-row Arrow stream."""
    request, path = host.authorize_path(request, object_path(parse_descriptor(binary(args.flight_descriptor))))

    def find() -> OpenedTable:
        catalog = host.find(path.catalog or "")
        if path.kind != "table":
            raise Unsupported(f"{path} is a function and has no statistics")
        opened = open_table(catalog, path)
        check_announced(host, request, opened)
        return opened

    def answer(opened: OpenedTable) -> bytes:
        table = opened.table
        if not isinstance(table, HasStatistics):
            raise Unsupported(f"table {path} has no statistics")
        # A list of names would be as long as the table is wide.
        index = opened.schema.get_field_index(args.column_name)
        if index < 0:
            raise NotFound(f"column {args.column_name!r} not found in table '{path}'")
        batch = statistics_response(opened.schema.field(index), table.column_statistics, args.type, path)
        return arrow_stream(batch.schema, [batch])

    scanned = host.scanned_tables.of(request, path, find)
    return host.scanned_tables.response(scanned, (args.column_name, args.type), answer)


@action("table_function_flight_info", TableFunctionRequest)
def _table_function_flight_info(host: Host, request: Request, args: TableFunctionRequest) -> bytes:
    """Return the columns of a table function call."""
    descriptor = parse_descriptor(binary(args.descriptor))
    request, catalog, path = host.open(request, descriptor)
    function = open_table_function(catalog, path)
    parameters = binary(args.parameters)
    arguments = read_arguments(function, parameters)
    rows: int | None = None
    if isinstance(function, TableInOutFunction):
        input_schema = _read_schema(binary(args.table_input_schema), function.name)
        schema = as_plain(function.schema_for(arguments, input_schema))
        host.announcements.remember(in_out_key(request, path, parameters, input_schema), schema)
    else:
        schema, rows = as_plain(function.schema_for(arguments)), function.row_count(arguments)
        if request.trace_id:
            host.announcements.remember(request.trace_id, schema)
    return flight_info_of(descriptor, schema, rows=rows).SerializeToString()


# -- transactions -----------------------------------------------------------------------------------------------------


def create_transaction(host: Host, request: Request, body: bytes) -> bytes:
    """Begin a transaction and return its id, or none if the catalog has no transactions."""
    args = _decode_either(body, CatalogRequest, "create_transaction") if body else CatalogRequest()
    _, catalog = host.open_catalog(request, args.catalog_name)
    manager = host.transactions_of(catalog)
    transaction_id = None if manager is None else manager.begin()
    if _is_json(body):
        return _json({"status": "success", "transaction_id": transaction_id})
    return encode(TransactionInfo(transaction_id))


Ending = Callable[[TransactionManager, str], None]


def _about_transaction(name: str, description: str, end: Ending | None = None) -> Action:
    """The action `name`, which ends a transaction with `end`, if given, and returns its status."""

    def run(host: Host, request: Request, body: bytes) -> bytes:
        args = _decode_either(body, TransactionRequest, name)
        request, catalog = host.open_catalog(request, args.catalog_name)
        manager, transaction_id = host.transactions_of(catalog), args.transaction_id
        if manager is None:
            raise Unsupported(f"catalog {request.catalog!r} has no transactions")
        if not transaction_id:
            raise InvalidArgument(f"{name} needs a transaction_id")
        if end is not None:
            if manager.status(transaction_id) is None:
                raise NotFound(f"transaction {transaction_id!r} is unknown or has expired")
            end(manager, transaction_id)
        status = manager.status(transaction_id)
        if _is_json(body):
            facts = {"transaction_id": transaction_id, "transaction_status": status and str(status)}
            return _json({"status": "success", **facts})
        return encode(TransactionState(status=str(status) if status else "", exists=status is not None))

    run.__doc__ = description
    return run


def _is_json(body: bytes) -> bool:
    return body.lstrip()[:1] == b"{"


def _decode_either(body: bytes, kind: Any, what: str) -> Any:
    """Decode a body in MessagePack, as DuckDB sends it, or in JSON."""
    if not _is_json(body):
        return decode(body, kind, what)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"malformed body of {what}: {error}") from error


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()


_TRANSACTION_ACTIONS: Final[dict[str, tuple[str, Ending | None]]] = {
    "get_transaction_status": ("Return the status of a transaction: active, committed or aborted.", None),
    "commit_transaction": ("Commit a transaction.", lambda manager, number: manager.commit(number)),
    "rollback_transaction": ("Roll back a transaction.", lambda manager, number: manager.rollback(number)),
}
ACTIONS["create_transaction"] = create_transaction
ACTIONS.update({name: _about_transaction(name, *facts) for name, facts in _TRANSACTION_ACTIONS.items()})


# -- CREATE, DROP and ALTER -------------------------------------------------------------------------------------------


@action("create_schema", CreateSchemaRequest)
def _create_schema(host: Host, request: Request, args: CreateSchemaRequest) -> bytes:
    """Create a schema."""
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.schema)
    if not isinstance(catalog, DynamicCatalog):
        raise Unsupported(f"catalog {request.catalog!r} does not support CREATE SCHEMA")
    with host.unit_of_work(request, catalog):
        schema = catalog.create_schema(args.schema, comment=args.comment or "", tags=args.tags or {})
    return encode(schema_contents(schema, request.catalog))


@action("drop_schema", DropRequest)
def _drop_schema(host: Host, request: Request, args: DropRequest) -> bytes:
    """Drop an empty schema."""
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.name)
    if not isinstance(catalog, DynamicCatalog):
        raise Unsupported(f"catalog {request.catalog!r} does not support DROP SCHEMA")
    with host.unit_of_work(request, catalog):
        catalog.drop_schema(args.name, if_exists=args.ignore_not_found)
    return b""


@action("create_table", CreateTableRequest)
def _create_table(host: Host, request: Request, args: CreateTableRequest) -> bytes:
    """Create a table."""
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.schema_name, name=args.table_name)
    schema = _dynamic_schema(catalog, args.schema_name)
    with host.unit_of_work(request, catalog):
        create = read_create_table(args)
        table = schema.create_table(replace(create, rows_follow=request.header(protocol.ROWS_FOLLOW) == "1"))
    return listed_table(table, request.catalog, args.schema_name).SerializeToString()


@action("drop_table", DropRequest)
def _drop_table(host: Host, request: Request, args: DropRequest) -> bytes:
    """Drop a table."""
    request, catalog = host.open_catalog(request, args.catalog_name, schema=args.schema_name, name=args.name)
    if args.ignore_not_found and catalog.schema(args.schema_name) is None:
        return b""
    schema = _dynamic_schema(catalog, args.schema_name)
    with host.unit_of_work(request, catalog):
        schema.drop_table(args.name, if_exists=args.ignore_not_found)
    return b""


@action("rename_table", AlterRequest)
def _rename_table(host: Host, request: Request, args: AlterRequest) -> bytes:
    """Rename a table."""
    request, catalog = host.open_catalog(request, args.catalog, schema=args.schema, name=args.name)
    path = ObjectPath(request.catalog, args.schema, args.name)
    if args.ignore_not_found and not _exists(catalog, path):
        return _nothing(path)
    schema = _dynamic_schema(catalog, args.schema)
    with host.unit_of_work(request, catalog):
        schema.rename_table(args.name, args.new_table_name)
    return _table_info(catalog, ObjectPath(request.catalog, args.schema, args.new_table_name))


Alter = Callable[[DynamicTable, AlterRequest], None]


def _altering(name: str, description: str, alter: Alter) -> Action:
    """The action `name`, which applies `alter` to a table and returns the FlightInfo of the altered table.

    With `ignore_not_found`, a table that does not exist is returned without columns: the client must get an entry.
    """

    def run(host: Host, request: Request, body: bytes) -> bytes:
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

    run.__doc__ = description
    return run


def read_create_table(args: CreateTableRequest) -> CreateTable:
    """Decode the body of `create_table`, with constraints on columns by name."""
    schema = _read_schema(binary(args.arrow_schema), "create_table")
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


def _read_schema(data: bytes, what: str) -> pa.Schema:
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
    descriptor = structs.replace(path, signature="dropped").descriptor()
    return flight_info_of(descriptor, as_listed(pa.schema([])), metadata=encode(metadata)).SerializeToString()


def _table_info(catalog: Catalog, path: ObjectPath) -> bytes:
    return listed_table(find_table(catalog, path), path.catalog or "", path.schema).SerializeToString()


def _field(args: AlterRequest, what: str) -> pa.Field:
    schema = _read_schema(binary(args.column_schema), what)
    if len(schema) != 1:
        raise InvalidArgument(f"{what} takes one column, not {len(schema)}")
    return schema.field(0)


def _add_field(table: DynamicTable, args: AlterRequest) -> None:
    field = _field(args, "add_field")
    if args.field_name:
        field = field.with_name(args.field_name)
    elif args.column_path and field.name == args.column_path[0]:  # the name of the column instead
        raise Unsupported(
            f"DuckDB does not send the name of a new struct field, only its position {'.'.join(args.column_path)}; "
            "use the Python API, or change the type of the whole column"
        )
    table.add_field(_path(args), field, if_not_exists=args.if_field_not_exists)


def _path(args: AlterRequest) -> tuple[str, ...]:
    """The names that lead to a struct or one of its fields."""
    if not args.column_path or not all(args.column_path):
        problem = "empty" if not args.column_path else "one with an empty name"
        raise InvalidArgument(
            f"the path of the field is {problem}: name the column, and then the fields that lead to it",
            key="column.path",
        )
    return tuple(args.column_path)


_ALTERATIONS: Final[dict[str, tuple[str, Alter]]] = {
    "add_column": (
        "Add a column.",
        lambda table, args: table.add_column(_field(args, "add_column"), if_not_exists=args.if_column_not_exists),
    ),
    "remove_column": (
        "Drop a column.",
        lambda table, args: table.remove_column(
            args.removed_column, if_exists=args.if_column_exists, cascade=args.cascade
        ),
    ),
    "rename_column": ("Rename a column.", lambda table, args: table.rename_column(args.old_name, args.new_name)),
    "change_column_type": (
        "Change the type of a column.",
        lambda table, args: table.change_column_type(_field(args, "change_column_type"), args.expression),
    ),
    "set_not_null": (
        "Add a NOT NULL constraint to a column.",
        lambda table, args: table.set_not_null(args.column_name),
    ),
    "drop_not_null": (
        "Drop the NOT NULL constraint of a column.",
        lambda table, args: table.drop_not_null(args.column_name),
    ),
    "set_default": (
        "Set the default of a column.",
        lambda table, args: table.set_default(args.column_name, args.expression),
    ),
    "add_constraint": ("Add a constraint.", lambda table, args: table.add_constraint(args.constraint)),
    "add_field": ("Add a field to a struct.", _add_field),
    "rename_field": (
        "Rename a field of a struct.",
        lambda table, args: table.rename_field(_path(args), args.new_name),
    ),
    "remove_field": (
        "Drop a field of a struct.",
        lambda table, args: table.remove_field(_path(args), if_exists=args.if_column_exists, cascade=args.cascade),
    ),
}

ACTIONS.update({name: _altering(name, *facts) for name, facts in _ALTERATIONS.items()})
ACTIONS["delete"] = delete_by_ids
