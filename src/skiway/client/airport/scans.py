"""Scans: bind a table or flight, plan, and stream its rows, in the steps that DuckDB takes."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.payloads import ScanParameters, packed
from skiway.client.airport.calls import NOW, Calls, TimeTravel, Trace, TransactionContext
from skiway.client.airport.catalog import Table, TableName, read_schema
from skiway.client.airport.endpoints import Endpoint, FunctionCall, read_endpoint
from skiway.client.airport.exchange import cast
from skiway.client.airport.listing import describe_descriptor, flight_descriptor
from skiway.client.airport.results import ColumnStatistics, Rows, first_rows, read_statistics
from skiway.client.airport.selection import Selection, Where, select
from skiway.client.airport.session import Session
from skiway.client.connection import Connection
from skiway.client.errors import blame_server
from skiway.errors import Internal, InvalidArgument
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

__all__ = [
    "BoundScan",
    "ScanPart",
    "bind",
    "bind_flight",
    "check_descriptor",
    "table_at",
    "time_travel",
]


@dataclass(frozen=True)
class ScanPart:
    """A part of a scan, which another process can read with `AirportClient.read_part`. It can be pickled.

    It contains no credentials.
    """

    trace: Trace
    selection: Selection
    endpoint: Endpoint

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self.selection.schema


@dataclass(frozen=True)
class BoundScan:
    """A scan of a known table, with one trace id for all its calls. `AirportClient.scan()` runs all its steps at once.

    `arguments` are those of a table function. Take the steps one by one to interleave scans: DuckDB binds all tables of a
    join before it plans them.
    """

    calls: Calls
    trace: Trace
    selection: Selection
    at: TimeTravel = NOW
    arguments: bytes = b""

    @property
    def table(self) -> Table:
        """The table that is scanned."""
        return self.selection.table

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows."""
        return self.selection.schema

    def plan(self) -> Self:
        """Request the statistics that DuckDB would use to plan the scan."""
        if self.table.has_statistics:
            for position in self.selection.statistics_columns():
                self.statistics(self.table.schema.field(position).name)
        return self

    def statistics(self, column: str) -> ColumnStatistics:
        """Return the server's statistics of a column."""
        field = self.table.schema.field(self.table.position(column))
        data = self.calls.column_statistics(self.trace, field.name, duckdb_type(field))
        with blame_server(self._location, "column_statistics"):
            return read_statistics(data, field.name)

    def endpoints(self) -> list[Endpoint]:
        """Return where the rows can be read."""
        parameters = ScanParameters(
            json_filters=self.selection.json_filters(),
            column_ids=self.selection.column_ids(),
            table_function_parameters=packed(self.arguments),
            at_unit=self.at.unit,
            at_value=self.at.value,
        )
        found = self.calls.endpoints(self.trace, parameters)
        with blame_server(self._location, "endpoints"):
            return [read_endpoint(message) for message in found]

    def parts(self) -> list[ScanPart]:
        """Return the parts of the scan, to read them in several processes."""
        return [ScanPart(self.trace, self.selection, endpoint) for endpoint in self.endpoints()]

    @classmethod
    def read_part(cls, calls: Calls, part: ScanPart) -> Rows:
        """Return the rows of a part of a scan that another client has bound."""
        scan = cls(calls, part.trace, part.selection)
        return Rows(scan.schema, scan._batches([part.endpoint]))

    def read(self, *, limit: int | None = None) -> Rows:
        """Request the endpoints, and return the rows, at most `limit`; the endpoints are read one after another."""
        if limit is not None and limit < 0:
            raise InvalidArgument(f"limit is {limit}: it must not be negative")
        if limit == 0:
            return Rows(self.schema, first_rows(iter(()), 0))
        batches = self._batches(self.endpoints())
        return Rows(self.schema, batches if limit is None else first_rows(batches, limit))

    @property
    def _location(self) -> str:
        return self.calls.connection.location.text

    def _batches(self, endpoints: Sequence[Endpoint]) -> Generator[pa.RecordBatch]:
        for endpoint in endpoints:
            if endpoint.call is not None:
                self.calls.connection.refuse_elsewhere(f"files that {endpoint.call.name}() reads")
            source = self._run_function(endpoint.call) if endpoint.call is not None else self._stream(endpoint)
            with contextlib.closing(source) as batches:
                for batch in batches:
                    if (rows := self.selection.apply(batch)).num_rows:
                        yield rows

    def _stream(self, endpoint: Endpoint) -> Generator[pa.RecordBatch]:
        connection = self.calls.connection if endpoint.location is None else self._connect(endpoint.location)
        stream = self.calls.get(self.trace, endpoint.ticket, connection)
        try:
            with blame_server(connection.location.text, "DoGet"):
                reader = BatchReader(
                    stream,
                    trusted=connection.trusted,  # without validation if the user chose the server
                    columns=self.selection.referenced or [0],
                )
                self._check_schema(reader.schema)
                yield from reader
        finally:
            stream.close()
            if connection is not self.calls.connection:
                connection.close()

    def _connect(self, uri: str) -> Connection:
        self.calls.connection.refuse_elsewhere("another server")
        with blame_server(self._location, "endpoints"):
            return self.calls.connection.to(uri)

    def _check_schema(self, streamed: pa.Schema) -> None:
        """Check the types of the stream; DuckDB relies on the positions of columns without a check."""
        expected = self.table.schema
        if [storage_type(field.type) for field in streamed] != [storage_type(field.type) for field in expected]:
            raise InvalidArgument(
                f"the stream has columns {_column_list(streamed)}, but {self.table} has {_column_list(expected)}"
            )

    def _run_function(self, call: FunctionCall) -> Generator[pa.RecordBatch]:
        schema = self.table.schema
        names = [schema.field(position).name for position in self.selection.referenced]
        with contextlib.closing(call.run(names)) as batches:
            for batch in batches:
                found = dict(zip(names, batch.columns, strict=False))
                yield _conform(found, schema, batch.num_rows)


def _column_list(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _conform(columns: Mapping[str, pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a batch with all columns of `schema`: the given ones, cast, and NULLs for the others."""
    try:
        arrays = [
            cast(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
            for field in schema
        ]
    except pa.ArrowException as error:
        raise Internal(f"the columns of the file do not match those of the table: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([field.with_nullable(True) for field in schema]))


# -- binding -----------------------------------------------------------------------------------------------------------


def time_travel(version: int | str | None, timestamp: object | None) -> TimeTravel:
    """Return the point in time that `at_version` or `at_timestamp` names."""
    if version is not None and timestamp is not None:
        raise InvalidArgument("at_version and at_timestamp are mutually exclusive: give one of them")
    if version is not None:
        return TimeTravel("VERSION", str(version))
    return NOW if timestamp is None else TimeTravel("TIMESTAMP", str(timestamp))


def bind(
    session: Session,
    name: TableName,
    *,
    columns: Sequence[str] | None,
    where: Where,
    at: TimeTravel = NOW,
    transaction: TransactionContext | None = None,
) -> BoundScan:
    """Look up a table and validate the selection, with the calls that DuckDB makes to bind a table."""
    transaction = transaction or session.begin()
    table = session.listing().table(name)
    if at.unit:
        table = table_at(session, table, session.calls.find_at(table.descriptor, at))
    session.poll_version()
    trace = session.trace(table.descriptor, transaction)
    if at.unit:
        info = session.calls.bind_at(trace, at)
        table = table_at(session, table, check_descriptor(session, info, table.descriptor))
    return BoundScan(session.calls, trace, select(table, columns, where), at)


def bind_flight(
    session: Session,
    descriptor: Sequence[str] | str | bytes,
    *,
    columns: Sequence[str] | None,
    where: Where,
    headers: Mapping[str, str] | None,
) -> BoundScan:
    """Bind a flight that is not in the catalog."""
    trace = session.flight_trace(flight_descriptor(descriptor), tuple((headers or {}).items()))
    info = check_descriptor(session, session.calls.bind_flight(trace), trace.descriptor)
    name = "/".join(trace.descriptor.path) or "the command"
    flight = table_at(session, Table("", name, pa.schema([])), info)
    return BoundScan(session.calls, trace, select(flight, columns, where))


def table_at(session: Session, table: Table, info: FlightInfo) -> Table:
    """Return `table` with the schema and descriptor of `info`."""
    with blame_server(session.location, f"the request for {table}"):
        schema = read_schema(info.schema, str(table))
    return Table(table.schema_name, table.name, schema, table.comment, info.flight_descriptor)


def check_descriptor(session: Session, info: FlightInfo, requested: FlightDescriptor) -> FlightInfo:
    """Return `info` if it describes the flight that was requested."""
    if info.flight_descriptor != requested:
        raise Internal(
            f"{session.location} was asked for {describe_descriptor(requested)} "
            f"but described {describe_descriptor(info.flight_descriptor)}"
        )
    return info
