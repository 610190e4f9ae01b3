"""The actions of the Airport protocol. Each function decodes a request body and returns the body of the single result.

The DDL actions are in `skiway.airport.server.ddl`, the action `delete` in `skiway.airport.server.writing`. The first
line of each docstring is the description that ListActions returns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import msgspec

from skiway.airport.catalog import HasStatistics, TransactionManager, TransactionStatus
from skiway.airport.functions import TableInOutFunction
from skiway.airport.request import Request
from skiway.airport.server.ddl import DDL_ACTIONS, read_schema
from skiway.airport.server.discovery import catalog_version, statistics_response, table_info
from skiway.airport.server.exchange import in_out_key
from skiway.airport.server.host import Host
from skiway.airport.server.lookup import OpenedTable, open_table, open_table_function, read_arguments
from skiway.airport.server.scans import announce, check_announced, endpoints
from skiway.airport.server.tickets import as_plain, object_path, parse_descriptor
from skiway.airport.server.writing import JSON_ACTIONS
from skiway.airport.tables import TimePoint
from skiway.airport.wire.protocol import (
    CatalogRequest,
    EndpointsRequest,
    FlightInfoRequest,
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
from skiway.model.flight_pb2 import FlightInfo

Action = Callable[[Host, Request, bytes], bytes]


def list_schemas(host: Host, request: Request, body: bytes) -> bytes:
    """List all schemas with their tables and functions."""
    name = decode(body, CatalogRequest, "list_schemas").catalog_name
    request, catalog = host.open_catalog(request, name)
    return host.listings.list_schemas(catalog, request.catalog)


def read_catalog_version(host: Host, request: Request, body: bytes) -> bytes:
    """Return the catalog version, which tells DuckDB whether its plans are stale."""
    name = decode(body, CatalogRequest, "catalog_version").catalog_name
    _, catalog = host.open_catalog(request, name)
    version = catalog_version(catalog)
    return encode(VersionInfo(version.version, version.fixed))


def read_endpoints(host: Host, request: Request, body: bytes) -> bytes:
    """Return the endpoints of a scan."""
    return encode(endpoints(host, request, decode(body, EndpointsRequest, "endpoints")))


def flight_info(host: Host, request: Request, body: bytes) -> bytes:
    """Return the FlightInfo of a table at a point in time."""
    args = decode(body, FlightInfoRequest, "flight_info")
    request, catalog, path = host.open(request, parse_descriptor(binary(args.descriptor)))
    point = TimePoint.parse(args.at_unit, args.at_value)
    # DuckDB calls this twice: first for the entry of its catalog, which may have an outdated binding and is accepted, then
    # with the id of the scan.
    opened = open_table(catalog, path, point, any_binding=not request.trace_id)
    announce(host, request, opened)
    return table_info(opened.table, opened.path, opened.schema, past=point is not None).SerializeToString()


def column_statistics(host: Host, request: Request, body: bytes) -> bytes:
    """Return the statistics of a column, as a one-row Arrow stream."""
    args = decode(body, StatisticsRequest, "column_statistics")
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
        place = opened.schema.get_field_index(args.column_name)
        if place < 0:
            raise NotFound(f"column {args.column_name!r} not found in table '{path}'")
        batch = statistics_response(opened.schema.field(place), table.column_statistics, args.type, path)
        return arrow_stream(batch.schema, [batch])

    scanned = host.scanned_tables.of(request, path, find)
    return host.scanned_tables.response(scanned, (args.column_name, args.type), answer)


def table_function_flight_info(host: Host, request: Request, body: bytes) -> bytes:
    """Return the columns of a table function call."""
    args = decode(body, TableFunctionRequest, "table_function_flight_info")
    descriptor = parse_descriptor(binary(args.descriptor))
    request, catalog, path = host.open(request, descriptor)
    function = open_table_function(catalog, path)
    parameters = binary(args.parameters)
    arguments = read_arguments(function, parameters)
    rows: int | None = None
    if isinstance(function, TableInOutFunction):
        given = read_schema(binary(args.table_input_schema), function.name)
        schema = as_plain(function.schema_for(arguments, given))
        host.announcements.remember(in_out_key(request, path, parameters, given), schema)
    else:
        schema, rows = as_plain(function.schema_for(arguments)), function.row_count(arguments)
        if request.trace_id:
            host.announcements.remember(request.trace_id, schema)
    return FlightInfo(
        schema=schema.serialize().to_pybytes(),
        flight_descriptor=descriptor,
        total_records=-1 if rows is None else rows,
        total_bytes=-1,
    ).SerializeToString()


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


def get_transaction_status(host: Host, request: Request, body: bytes) -> bytes:
    """Return the status of a transaction: active, committed or aborted."""
    manager, args = _manager(host, request, body, "get_transaction_status")
    status = manager.status(args.transaction_id)
    return _status_response(body, args.transaction_id, status)


def commit_transaction(host: Host, request: Request, body: bytes) -> bytes:
    """Commit a transaction."""
    manager, args = _manager(host, request, body, "commit_transaction")
    _require_known(manager, args.transaction_id)
    manager.commit(args.transaction_id)
    return _status_response(body, args.transaction_id, manager.status(args.transaction_id))


def rollback_transaction(host: Host, request: Request, body: bytes) -> bytes:
    """Roll back a transaction."""
    manager, args = _manager(host, request, body, "rollback_transaction")
    _require_known(manager, args.transaction_id)
    manager.rollback(args.transaction_id)
    return _status_response(body, args.transaction_id, manager.status(args.transaction_id))


def _manager(host: Host, request: Request, body: bytes, what: str) -> tuple[TransactionManager, TransactionRequest]:
    args = _decode_either(body, TransactionRequest, what)
    request, catalog = host.open_catalog(request, args.catalog_name)
    manager = host.transactions_of(catalog)
    if manager is None:
        raise Unsupported(f"catalog {request.catalog!r} has no transactions")
    if not args.transaction_id:
        raise InvalidArgument(f"{what} needs a transaction_id")
    return manager, args


def _require_known(manager: TransactionManager, transaction_id: str) -> None:
    if manager.status(transaction_id) is None:
        raise NotFound(f"transaction {transaction_id!r} is unknown or has expired")


def _status_response(body: bytes, transaction_id: str, status: TransactionStatus | None) -> bytes:
    if _is_json(body):
        return _json(
            {"status": "success", "transaction_id": transaction_id, "transaction_status": status and str(status)}
        )
    return encode(TransactionState(status=str(status) if status else "", exists=status is not None))


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


ACTIONS: Final[dict[str, Action]] = {
    "list_schemas": list_schemas,
    "catalog_version": read_catalog_version,
    "endpoints": read_endpoints,
    "flight_info": flight_info,
    "column_statistics": column_statistics,
    "table_function_flight_info": table_function_flight_info,
    "create_transaction": create_transaction,
    "get_transaction_status": get_transaction_status,
    "commit_transaction": commit_transaction,
    "rollback_transaction": rollback_transaction,
    **DDL_ACTIONS,
    **JSON_ACTIONS,
}
