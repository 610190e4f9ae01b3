"""Airport's actions: one function each, from the body of a request to the body of its one result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa

from skiway.airport.catalog import HasStatistics
from skiway.airport.functions import TableInOutFunction, read_arguments
from skiway.airport.request import Request
from skiway.airport.scan import TimePoint
from skiway.airport.server.ddl import DDL_ACTIONS, read_schema
from skiway.airport.server.discovery import catalog_version, table_info
from skiway.airport.server.host import Host
from skiway.airport.server.json_contract import JSON_ACTIONS
from skiway.airport.server.lookup import open_table, open_table_function, table_at
from skiway.airport.server.scans import endpoints
from skiway.airport.server.tickets import parse_descriptor
from skiway.airport.server.transactions import TRANSACTION_ACTIONS
from skiway.airport.statistics import statistics_batch
from skiway.airport.table_refs import DynamicSchemaTableRef, SchemaRequest
from skiway.airport.wire.payloads import (
    CatalogRequest,
    EndpointsRequest,
    FlightInfoRequest,
    StatisticsRequest,
    TableFunctionRequest,
    VersionInfo,
    binary,
    decode,
    encode,
)
from skiway.errors import NotFound, Unsupported
from skiway.model.flight_pb2 import FlightInfo

__all__ = ["ACTIONS"]


Action = Callable[[Host, Request, bytes], bytes]


def list_schemas(host: Host, request: Request, body: bytes) -> bytes:
    """All schemas with their tables and functions, sealed."""
    named = decode(body, CatalogRequest, "list_schemas").catalog_name
    request, catalog = host.open_catalog(request, named)
    return host.listings.list_schemas(catalog, request.catalog)


def read_catalog_version(host: Host, request: Request, body: bytes) -> bytes:
    """The number that tells DuckDB whether its plans are stale."""
    named = decode(body, CatalogRequest, "catalog_version").catalog_name
    _, catalog = host.open_catalog(request, named)
    version = catalog_version(catalog)
    return encode(VersionInfo(version.version, version.fixed))


def read_endpoints(host: Host, request: Request, body: bytes) -> bytes:
    """Where the rows of a scan are."""
    asked = decode(body, EndpointsRequest, "endpoints")
    return encode(endpoints(host, request, asked))


def flight_info(host: Host, request: Request, body: bytes) -> bytes:
    """A table at a point in time, with the schema of that time."""
    asked = decode(body, FlightInfoRequest, "flight_info")
    _, catalog, path = host.open(request, parse_descriptor(binary(asked.descriptor)))
    point = TimePoint.parse(asked.at_unit, asked.at_value)
    table = table_at(open_table(catalog, path), point)
    schema = table.schema_for(SchemaRequest((), point)) if isinstance(table, DynamicSchemaTableRef) else None
    return table_info(table, path, schema, past=point is not None).SerializeToString()


def column_statistics(host: Host, request: Request, body: bytes) -> bytes:
    """What is known about one column, as a one-row Arrow stream."""
    asked = decode(body, StatisticsRequest, "column_statistics")
    _, catalog, path = host.open(request, parse_descriptor(binary(asked.flight_descriptor)))
    if path.kind == "table":
        table = open_table(catalog, path)
        if not isinstance(table, HasStatistics):
            raise Unsupported(f"table {path} keeps no statistics")
        if asked.column_name not in table.schema.names:
            raise NotFound(f"column {asked.column_name!r} not found in table '{path}'")
        field = table.schema.field(asked.column_name)
        return _stream(statistics_batch(field, table.column_statistics(asked.column_name, asked.type)))
    raise Unsupported(f"{path} is a function and keeps no statistics")


def table_function_flight_info(host: Host, request: Request, body: bytes) -> bytes:
    """The columns of one call of a table function."""
    asked = decode(body, TableFunctionRequest, "table_function_flight_info")
    descriptor = parse_descriptor(binary(asked.descriptor))
    _, catalog, path = host.open(request, descriptor)
    function = open_table_function(catalog, path)
    arguments = read_arguments(function, binary(asked.parameters))
    rows: int | None = None
    if isinstance(function, TableInOutFunction):
        schema = function.schema_for(arguments, read_schema(binary(asked.table_input_schema), function.name))
    else:
        schema, rows = function.schema_for(arguments), function.row_count(arguments)
    return FlightInfo(
        schema=schema.serialize().to_pybytes(),
        flight_descriptor=descriptor,
        total_records=-1 if rows is None else rows,
        total_bytes=-1,
    ).SerializeToString()


def _stream(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


ACTIONS: Final[dict[str, Action]] = {
    "list_schemas": list_schemas,
    "catalog_version": read_catalog_version,
    "endpoints": read_endpoints,
    "flight_info": flight_info,
    "column_statistics": column_statistics,
    "table_function_flight_info": table_function_flight_info,
    **TRANSACTION_ACTIONS,
    **DDL_ACTIONS,
    **JSON_ACTIONS,
}
