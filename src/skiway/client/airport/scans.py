"""Scans: bind a table or flight, plan, and stream its rows, in the steps that DuckDB takes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.payloads import ROWID_COLUMN, ScanParameters, packed
from skiway.client.airport.calls import NOW, Calls, TimeTravel, Trace, TransactionContext
from skiway.client.airport.catalog import ROWID, Table, TableName, read_schema
from skiway.client.airport.endpoints import Endpoint, FunctionCall, read_endpoint
from skiway.client.airport.exchange import cast
from skiway.client.airport.filters import filter_json, filter_mask
from skiway.client.airport.listing import describe_descriptor, flight_descriptor
from skiway.client.airport.predicates import Predicate
from skiway.client.airport.session import Session
from skiway.client.connection import Connection
from skiway.client.errors import blame_server
from skiway.errors import Internal, InvalidArgument
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

__all__ = [
    "BoundScan",
    "ColumnStatistics",
    "Rows",
    "ScanPart",
    "Selection",
    "Where",
    "bind",
    "bind_flight",
    "check_descriptor",
    "select",
    "table_at",
    "time_travel",
]

Where = Predicate | str | None


class Rows:
    """A stream of record batches from the server. Use it once, from one thread at a time.

    It has the interface of a `pyarrow.RecordBatchReader` and works wherever Arrow streams are accepted:
    `pyarrow.table(rows)`, Polars, DuckDB. Unlike pyarrow's reader, `close()` cancels the call on the server.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; raise `StopIteration` after the last."""
        return next(self._batches)

    def read_all(self) -> pa.Table:
        """Return all remaining rows."""
        return pa.Table.from_batches(self._batches, self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the stream as pyarrow's own reader, which cancels the call when it is garbage collected."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the stream through Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Stop reading and cancel the call on the server."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Generator[pa.RecordBatch]:
    """Yield the first rows, and close the stream as soon as they are complete."""
    left = limit
    with contextlib.ExitStack() as stack:
        if isinstance(batches, Generator):
            stack.enter_context(contextlib.closing(batches))
        for batch in batches:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column, as the server reports them; None means unknown.

    `min` and `max` are bounds: no value lies outside of them, but they need not occur themselves. A bound that Python
    cannot represent, such as a date of the year 10000, is an Arrow scalar.
    """

    min: Any
    max: Any
    has_null: bool
    has_not_null: bool
    distinct_count: int | None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


def read_statistics(data: bytes, column: str) -> ColumnStatistics:
    """Parse the response to `column_statistics`, an Arrow stream of one row."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
            batch.validate(full=True)
            row = {
                name: _python_value(column[0]) for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
    except (pa.ArrowException, OSError, ValueError, StopIteration, IndexError) as error:
        raise InvalidArgument(f"the statistics of {column!r} are not an Arrow stream of one row") from error
    missing = {"min", "max", "has_null", "has_not_null", "distinct_count"} - row.keys()
    if missing:
        raise InvalidArgument(f"the statistics of {column!r} lack {min(missing)!r}")
    return ColumnStatistics(
        min=row["min"],
        max=row["max"],
        has_null=bool(row["has_null"]),
        has_not_null=bool(row["has_not_null"]),
        distinct_count=row["distinct_count"] or None,  # the protocol uses zero for "unknown"
        max_string_length=row.get("max_string_length"),
        contains_unicode=row.get("contains_unicode"),
    )


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value


@dataclass(frozen=True)
class Selection:
    """The columns and the filter of a scan of `table`.

    `columns` are those of the result; None selects all visible ones. As in DuckDB, the columns of the filter are requested
    before them and dropped from the result. A filter given as JSON is sent unchanged and is not applied again here.
    The columns in `repeated` are requested last, each once more even if it is among the others, as UPDATE and DELETE do.
    """

    table: Table
    columns: Sequence[str] | None
    where: Where
    repeated: Sequence[str] = ()

    @cached_property
    def positions(self) -> list[int]:
        """The columns of the result, as positions in the table's schema."""
        return [*self._selected, *(self.table.position(name) for name in self.repeated)]

    @cached_property
    def _selected(self) -> list[int]:
        names = self.table.columns if self.columns is None else self.columns
        return [self.table.position(name) for name in names]

    @cached_property
    def filter_columns(self) -> dict[str, int]:
        """The columns of the filter, by the names it uses, with their positions."""
        if not isinstance(self.where, Predicate):
            return {}
        return {name: self.table.position(name) for name in self.where.columns()}

    @cached_property
    def referenced(self) -> list[int]:
        """All columns that the scan needs, each once, followed by the repeated ones."""
        once = dict.fromkeys([*self.filter_columns.values(), *self._selected])
        return [*once, *self.positions[len(self._selected) :]]

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return pa.schema([self._field(position) for position in self.positions])

    def column_ids(self) -> list[int]:
        """The referenced columns as DuckDB numbers them. A scan that needs no column still has to request one."""
        if not self.referenced:
            return [ROWID_COLUMN] if self.table.rowid is not None else [0] if self.table.columns else []
        return [self._column_id(position) for position in self.referenced]

    def json_filters(self) -> str:
        """The filter as JSON, including the names of the columns that it refers to by number."""
        if isinstance(self.where, str):
            return _check_json_filter(self.where)
        names = [self._field(position).name for position in self.referenced]
        aliases = {name: self._field(position) for name, position in self.filter_columns.items()}
        return filter_json(self.where, names, aliases)

    def statistics_columns(self) -> list[int]:
        """The columns whose statistics DuckDB requests: each referenced one twice, or the first one to count rows."""
        if not self.referenced:
            return (
                [] if self.table.rowid is not None else [self.table.position(name) for name in self.table.columns[:1]]
            )
        return [position for position in dict.fromkeys(self.referenced) if position != self.table.rowid] * 2

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows and the selected columns of a batch that has all columns of the table."""
        selected = batch.select(self.positions)
        if isinstance(self.where, Predicate):
            mask = filter_mask(self.where, batch, self.filter_columns)
            selected = selected.filter(mask) if self.positions else selected.slice(0, mask.true_count)
        return pa.RecordBatch.from_arrays(selected.columns, schema=self.schema) if self.positions else selected

    def _field(self, position: int) -> pa.Field:
        field = self.table.schema.field(position)
        return field.with_name(ROWID) if position == self.table.rowid else field

    def _column_id(self, position: int) -> int:
        rowid = self.table.rowid
        if position == rowid:
            return ROWID_COLUMN
        return position if rowid is None or position < rowid else position - 1


def _check_json_filter(text: str) -> str:
    try:
        document = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidArgument(f"where= is not valid filter JSON: {error}; build a predicate with col(…)") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"where= is a JSON {type(document).__name__}, expected an object with 'filters'")
    return text


def select(table: Table, columns: Sequence[str] | None, where: Where) -> Selection:
    """Return a validated selection: errors in names and values surface before any request is sent."""
    if isinstance(columns, str):
        raise InvalidArgument(f"columns={columns!r} is a string; give a list of names: [{columns!r}]")
    selection = Selection(table, columns, where)
    selection.json_filters()
    return selection


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
            return Rows(self.schema, _first_rows(iter(()), 0))
        batches = self._batches(self.endpoints())
        return Rows(self.schema, batches if limit is None else _first_rows(batches, limit))

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
                    stream, trusted=connection.trusted
                )  # without validation if the user chose the server
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
