"""Reading tables and table functions: the `endpoints` action, and the DoGet stream of a ticket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs

from skiway.airport import filters
from skiway.airport.catalog import Catalog, Planned, Table
from skiway.airport.functions import TableFunction
from skiway.airport.request import Request, call_of
from skiway.airport.scan import ROWID, ScanOptions, TimePoint, find_rowid_column, with_parsed_filter
from skiway.airport.server.bindings import as_plain, fingerprint, function_changed, table_changed
from skiway.airport.server.host import Host
from skiway.airport.server.lookup import OpenedTable, open_table, open_table_function, read_arguments, read_row
from skiway.airport.server.streams import scan_frames
from skiway.airport.server.tickets import DATABASES, ObjectPath, Ticket, parse_descriptor
from skiway.airport.table_refs import DynamicSchemaTableRef, FunctionCall, FunctionCallRequest, SchemaRequest, TableRef
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import ROWID_COLUMN, EndpointsRequest, ScanParameters, binary
from skiway.errors import Internal, InvalidArgument, Unsupported
from skiway.model.flight_pb2 import FlightDescriptor, FlightEndpoint, FlightInfo, Location
from skiway.model.flight_pb2 import Ticket as TicketMessage

__all__ = ["announce", "check_announced", "databases_info", "do_get", "endpoints", "is_databases"]

DATABASES_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False)])


def endpoints(host: Host, request: Request, body: EndpointsRequest) -> list[bytes]:
    """The serialized endpoints of a scan: a ticket for DoGet, or function calls that the client runs itself."""
    descriptor = parse_descriptor(binary(body.descriptor))
    parameters = body.parameters
    if is_databases(descriptor):
        return [_endpoint(host, Ticket(None))]
    point = TimePoint.parse(parameters.at_unit, parameters.at_value)
    parsed = filters.parse(parameters.json_filters)
    json_filters = parameters.json_filters if parsed else ""
    request, catalog, path = host.open(request, descriptor)
    if path.kind == "table_function":
        function = _table_function(catalog, path)
        arguments = binary(parameters.table_function_parameters)
        schema = as_plain(function.schema_for(read_arguments(function, arguments)))
        if host.announcements.contradict(request.trace_id, schema):
            raise function_changed(path)
        columns = column_names(schema, parameters.column_ids)
        return [_endpoint(host, _ticket(path, columns, json_filters, parameters, fingerprint(schema), arguments))]
    opened = open_table(catalog, path, point)
    table, schema = opened.table, opened.schema
    check_announced(host, request, opened)
    if isinstance(table, TableRef):
        return _delegated(host, table, parsed, parameters, point)
    columns = column_names(schema, parameters.column_ids)
    if not opened.has_row_ids:
        columns = None if columns is None else opened.own_columns(columns)
        if ROWID in parsed.columns:  # the table cannot evaluate it, and DuckDB filters again
            parsed, json_filters = filters.parse(""), ""
    ticket = _ticket(path, columns, json_filters, parameters, fingerprint(schema))
    if isinstance(table, Planned):
        options = with_parsed_filter(_options(ticket), parsed)
        return [
            _delegation(part.location(host.allowed_functions))
            if isinstance(part, FunctionCall)
            else _endpoint(host, structs.replace(ticket, part=part))
            for part in table.plan(options)
        ]
    return [_endpoint(host, ticket)]


def announce(host: Host, request: Request, opened: OpenedTable) -> None:
    """Remember the schema that is announced under an address without binding."""
    if not opened.path.signature and request.trace_id:
        host.announcements.remember(request.trace_id, opened.schema)


def check_announced(host: Host, request: Request, opened: OpenedTable) -> None:
    """Raise `PreconditionFailed` if the client planned this scan with another schema, under an address without binding."""
    if not opened.path.signature and host.announcements.contradict(request.trace_id, opened.schema):
        raise table_changed(opened.path, "it has other columns than when the query was planned")


def column_names(schema: pa.Schema, ids: Sequence[int]) -> list[str] | None:
    """The names of the columns with DuckDB's `ids`, without duplicates.

    An id is the index of a visible column; a special id stands for the row id.
    """
    if not ids:
        return None
    rowid = find_rowid_column(schema)
    visible = [name for index, name in enumerate(schema.names) if index != rowid]
    names: dict[str, None] = {}
    for number in ids:
        if number == ROWID_COLUMN and rowid is not None:
            names[schema.names[rowid]] = None
        elif number < len(visible):
            names[visible[number]] = None
        elif number != ROWID_COLUMN:
            raise InvalidArgument(f"column id {number} is out of range: {len(visible)} columns are visible")
    return list(names)


def do_get(host: Host, request: Request, data: bytes) -> Iterator[bytes]:
    """The stream of a ticket. The caller is authorized again."""
    ticket, call = host.tickets.redeem(data), call_of(request)
    if ticket.path is None:
        call.operation = "list_catalogs"
        names = pa.table({"name": list(host.visible_catalogs(request))}, DATABASES_SCHEMA)
        return scan_frames(DATABASES_SCHEMA, names, call=call)
    request, catalog, path = host.open_path(request, ticket.path)
    options = _options(ticket)
    skip = bool(request.header(headers.SKIP_RESULTS))
    if path.kind == "table_function":
        call.operation = "table_function"
        function = _table_function(catalog, path)
        arguments = read_arguments(function, ticket.parameters)
        schema = as_plain(function.schema_for(arguments))
        if fingerprint(schema) != ticket.fingerprint:
            raise function_changed(path)
        result = () if skip else function.execute(arguments, options)
        return scan_frames(
            schema,
            result,
            columns=options.columns,
            rows=function.row_count(arguments),
            pool=host.memory_pool,
            call=call,
            what=f"function {path}",
        )
    opened = open_table(catalog, path, options.time_point)
    table, schema = opened.table, opened.schema
    if not isinstance(table, Table):
        raise Internal(f"table {path} is a table reference and cannot be streamed: request its endpoints again")
    if fingerprint(schema) != ticket.fingerprint:
        raise table_changed(path, "it has other columns than when the scan was planned")
    rows = () if skip else table.scan(options)
    return scan_frames(
        schema,
        rows,
        columns=opened.own_columns(options.columns),
        rows=None if options.json_filters else table.row_count(),
        pool=host.memory_pool,
        call=call,
        what=f"the scan of table '{path}'",
    )


def is_databases(descriptor: FlightDescriptor) -> bool:
    """Whether the descriptor stands for the list of catalogs."""
    return list(descriptor.path) == [DATABASES]


def databases_info(descriptor: FlightDescriptor) -> FlightInfo:
    """The FlightInfo of the list of catalogs, which DuckDB's `airport_databases()` reads."""
    return FlightInfo(
        schema=DATABASES_SCHEMA.serialize().to_pybytes(), flight_descriptor=descriptor, total_records=-1, total_bytes=-1
    )


def _table_function(catalog: Catalog, path: ObjectPath) -> TableFunction:
    function = open_table_function(catalog, path)
    if not isinstance(function, TableFunction):
        raise Unsupported(f"{path} takes rows as input: call it as {function.name}(…, (SELECT …))")
    return function


def _options(ticket: Ticket) -> ScanOptions:
    return ScanOptions(
        columns=ticket.columns,
        json_filters=ticket.json_filters,
        time_point=TimePoint.parse(ticket.at_unit, ticket.at_value),
        part=ticket.part,
    )


def _ticket(
    path: ObjectPath,
    columns: list[str] | None,
    json_filters: str,
    parameters: ScanParameters,
    known: str,
    arguments: bytes = b"",
) -> Ticket:
    return Ticket(
        path,
        columns,
        json_filters,
        parameters.at_unit,
        parameters.at_value,
        arguments,
        fingerprint=known,
    )


def _endpoint(host: Host, ticket: Ticket) -> bytes:
    # Concatenated protobuf messages merge into one message, so the location is serialized only once.
    issued = FlightEndpoint(ticket=TicketMessage(ticket=host.tickets.issue(ticket)))
    return issued.SerializeToString() + host.endpoint_location


def _delegated(
    host: Host, table: TableRef, parsed: filters.Filter, parameters: ScanParameters, point: TimePoint | None
) -> list[bytes]:
    values = _parameter_values(parameters)
    schema = table.schema
    if isinstance(table, DynamicSchemaTableRef):
        schema = table.schema_for(SchemaRequest(values, point))
    columns = column_names(schema, parameters.column_ids)
    json_filters = parameters.json_filters if parsed else ""
    request = FunctionCallRequest(columns, json_filters, values, point)
    calls = table.function_calls(with_parsed_filter(request, parsed))
    if not calls:
        raise Internal(f"table reference {table.name!r} returned no function calls; at least one is required")
    return [_delegation(call.location(host.allowed_functions)) for call in calls]


def _delegation(uri: str) -> bytes:
    return FlightEndpoint(ticket=TicketMessage(ticket=b"{}"), location=[Location(uri=uri)]).SerializeToString()


def _parameter_values(parameters: ScanParameters) -> tuple[Any, ...]:
    """The parameters of a table reference as Python values."""
    stream = binary(parameters.table_function_parameters)
    if not stream:
        return ()
    row = read_row(stream, "the parameters")
    try:
        return tuple(column[0].as_py() for column in row.columns)
    except (pa.ArrowException, ValueError) as error:  # such as a date that Python cannot represent
        raise InvalidArgument(f"the parameters cannot be converted to Python values: {error}") from error
