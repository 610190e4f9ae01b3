"""Reading: what `endpoints` offers for a scan, and what DoGet streams for a ticket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from msgspec import structs

from skiway.airport import filters
from skiway.airport.catalog import Catalog, Planned, Table
from skiway.airport.functions import TableFunction, read_arguments
from skiway.airport.request import Request, call_of
from skiway.airport.scan import ScanOptions, TimePoint, find_rowid_column
from skiway.airport.server.host import Host
from skiway.airport.server.lookup import open_table, open_table_function, table_at
from skiway.airport.server.streams import scan_frames
from skiway.airport.server.tickets import DATABASES, ObjectPath, Ticket, parse_descriptor
from skiway.airport.table_refs import DynamicSchemaTableRef, FunctionCallRequest, SchemaRequest, TableRef
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import ROWID_COLUMN, EndpointsRequest, ScanParameters, binary
from skiway.errors import Internal, InvalidArgument, Unsupported
from skiway.model.flight_pb2 import FlightDescriptor, FlightEndpoint, FlightInfo, Location
from skiway.model.flight_pb2 import Ticket as TicketMessage

__all__ = ["databases_info", "do_get", "endpoints", "is_databases"]


DATABASES_SCHEMA = pa.schema([pa.field("name", pa.string(), nullable=False)])


def endpoints(host: Host, request: Request, asked: EndpointsRequest) -> list[bytes]:
    """Where the rows are, as serialised endpoints: a ticket for DoGet, or function calls that the client runs itself."""
    descriptor = parse_descriptor(binary(asked.descriptor))
    wanted = asked.parameters
    if is_databases(descriptor):
        return [_endpoint(host, Ticket(None))]
    point = TimePoint.parse(wanted.at_unit, wanted.at_value)
    json_filters = wanted.json_filters if filters.parse(wanted.json_filters) else ""
    _, catalog, path = host.open(request, descriptor)
    if path.kind == "table_function":
        function = _plain(catalog, path)
        parameters = binary(wanted.table_function_parameters)
        columns = column_names(function.schema_for(read_arguments(function, parameters)), wanted.column_ids)
        return [_endpoint(host, _ticket(path, columns, json_filters, wanted, parameters))]
    table = table_at(open_table(catalog, path), point)
    if isinstance(table, TableRef):
        return _delegated(host, table, json_filters, wanted, point)
    ticket = _ticket(path, column_names(table.schema, wanted.column_ids), json_filters, wanted)
    if isinstance(table, Planned):
        return [_endpoint(host, structs.replace(ticket, part=part)) for part in table.plan(_options(ticket))]
    return [_endpoint(host, ticket)]


def column_names(schema: pa.Schema, ids: Sequence[int]) -> list[str] | None:
    """The columns behind DuckDB's ids, each once; ids count the visible columns, and one special id is the row id."""
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
    """The stream for a ticket; the caller is authorized again."""
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
        function = _plain(catalog, path)
        arguments = read_arguments(function, ticket.parameters)
        schema = function.schema_for(arguments)
        made = () if skip else function.execute(arguments, options)
        return scan_frames(
            schema,
            made,
            columns=options.columns,
            rows=function.row_count(arguments),
            pool=host.memory_pool,
            call=call,
        )
    table = table_at(open_table(catalog, path), options.time_point)
    if not isinstance(table, Table):
        raise Internal(f"table {path} is read by function calls and has no stream: ask for endpoints again")
    rows = () if skip else table.scan(options)
    expected = None if options.json_filters else table.row_count()
    return scan_frames(table.schema, rows, columns=options.columns, rows=expected, pool=host.memory_pool, call=call)


def _options(ticket: Ticket) -> ScanOptions:
    return ScanOptions(
        columns=ticket.columns,
        json_filters=ticket.json_filters,
        time_point=TimePoint.parse(ticket.at_unit, ticket.at_value),
        part=ticket.part,
    )


def is_databases(descriptor: FlightDescriptor) -> bool:
    """Whether a descriptor asks for the list of catalogs."""
    return list(descriptor.path) == [DATABASES]


def databases_info(descriptor: FlightDescriptor) -> FlightInfo:
    """What `airport_databases()` is told about its result."""
    return FlightInfo(
        schema=DATABASES_SCHEMA.serialize().to_pybytes(), flight_descriptor=descriptor, total_records=-1, total_bytes=-1
    )


def _plain(catalog: Catalog, path: ObjectPath) -> TableFunction:
    function = open_table_function(catalog, path)
    if not isinstance(function, TableFunction):
        raise Unsupported(f"{path} works on rows: call it as {function.name}(…, (SELECT …))")
    return function


def _ticket(
    path: ObjectPath,
    columns: list[str] | None,
    json_filters: str,
    wanted: ScanParameters,
    parameters: bytes = b"",
) -> Ticket:
    return Ticket(path, columns, json_filters, wanted.at_unit, wanted.at_value, parameters)


def _endpoint(host: Host, ticket: Ticket) -> bytes:
    # two partial messages after each other are one whole message to protobuf
    issued = FlightEndpoint(ticket=TicketMessage(ticket=host.tickets.issue(ticket)))
    return issued.SerializeToString() + host.endpoint_location


def _delegated(
    host: Host, table: TableRef, json_filters: str, wanted: ScanParameters, point: TimePoint | None
) -> list[bytes]:
    parameters = _values(wanted)
    schema = table.schema
    if isinstance(table, DynamicSchemaTableRef):
        schema = table.schema_for(SchemaRequest(parameters, point))
    calls = table.function_calls(
        FunctionCallRequest(column_names(schema, wanted.column_ids), json_filters, parameters, point)
    )
    if not calls:
        raise Internal(f"table reference {table.name!r} gave no function call; it must give at least one")
    return [_delegation(call.location(host.allowed_functions)) for call in calls]


def _delegation(uri: str) -> bytes:
    return FlightEndpoint(ticket=TicketMessage(ticket=b"{}"), location=[Location(uri=uri)]).SerializeToString()


def _values(wanted: ScanParameters) -> tuple[Any, ...]:
    """The parameters of a table reference as Python values."""
    stream = binary(wanted.table_function_parameters)
    if not stream:
        return ()
    try:
        with pa.ipc.open_stream(stream) as reader:
            row = reader.read_next_batch()
            row.validate(full=True)
        return tuple(column[0].as_py() for column in row.columns)
    except (pa.ArrowException, OSError, ValueError, IndexError, StopIteration) as error:
        raise InvalidArgument("the parameters are not an Arrow stream of one row") from error
