"""Scans of tables and calls of functions, in the steps that DuckDB takes: bind, plan, and stream the rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import pyarrow as pa

from skiway.airport.conversion import cast_array
from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.protocol import InOutParameters, ScanParameters, arrow_stream, encode, packed
from skiway.client.airport.calls import (
    NOW,
    Calls,
    Function,
    Table,
    TableName,
    TimeTravel,
    Trace,
    TransactionContext,
    read_schema,
)
from skiway.client.airport.exchange import VALUE_ERRORS, Batches, Exchange, in_vectors, single_value, to_batches
from skiway.client.airport.filters import Selection, Where, select
from skiway.client.airport.results import (
    ColumnStatistics,
    Endpoint,
    FunctionCall,
    Rows,
    first_rows,
    read_endpoint,
    read_statistics,
)
from skiway.client.airport.session import Session, describe_descriptor, flight_descriptor
from skiway.client.airport.together import together
from skiway.client.connection import Connection, Stream
from skiway.client.errors import blame_server
from skiway.errors import Internal, InvalidArgument
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo


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
        messages = self.calls.endpoints(self.trace, parameters)
        with blame_server(self._location, "endpoints"):
            return [read_endpoint(message) for message in messages]

    def parts(self) -> list[ScanPart]:
        """Return the parts of the scan, to read them in several processes."""
        return [ScanPart(self.trace, self.selection, endpoint) for endpoint in self.endpoints()]

    @classmethod
    def read_part(cls, calls: Calls, part: ScanPart) -> Rows:
        """Return the rows of a part of a scan that another client has bound."""
        scan = cls(calls, part.trace, part.selection)
        return Rows(scan.schema, scan._batches([part.endpoint]))

    def read(self, *, limit: int | None = None, streams: int = 1) -> Rows:
        """Request the endpoints, and return the rows, at most `limit`.

        The endpoints are read one after another, or, without a limit, by up to `streams` threads.
        """
        if limit is not None and limit < 0:
            raise InvalidArgument(f"limit is {limit}: it must not be negative")
        if limit == 0:
            return Rows(self.schema, first_rows(iter(()), 0))
        endpoints = self.endpoints()
        if limit is None and min(streams, len(endpoints)) > 1:
            return Rows(self.schema, together([partial(self._part, endpoint) for endpoint in endpoints], streams))
        batches = self._batches(endpoints)
        return Rows(self.schema, batches if limit is None else first_rows(batches, limit))

    @property
    def _location(self) -> str:
        return self.calls.connection.location.text

    def _batches(self, endpoints: Sequence[Endpoint]) -> Generator[pa.RecordBatch]:
        for endpoint in endpoints:
            with contextlib.closing(self._part(endpoint)) as batches:
                yield from batches

    def _part(self, endpoint: Endpoint, opened: Callable[[Stream], None] | None = None) -> Generator[pa.RecordBatch]:
        if endpoint.call is not None:
            self.calls.connection.refuse_elsewhere(f"files that {endpoint.call.name}() reads")
        source = self._run_function(endpoint.call) if endpoint.call is not None else self._stream(endpoint, opened)
        with contextlib.closing(source) as batches:
            for batch in batches:
                if (rows := self.selection.apply(batch)).num_rows:
                    yield rows

    def _stream(self, endpoint: Endpoint, opened: Callable[[Stream], None] | None) -> Generator[pa.RecordBatch]:
        connection = self.calls.connection if endpoint.location is None else self._connect(endpoint.location)
        stream = self.calls.get(self.trace, endpoint.ticket, connection)
        if opened is not None:
            opened(stream)
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
                columns = dict(zip(names, batch.columns, strict=False))
                yield _conform(columns, schema, batch.num_rows)


def _column_list(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)


def _conform(columns: Mapping[str, pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Return a batch with all columns of `schema`: the given ones, cast, and NULLs for the others."""
    try:
        arrays = [
            cast_array(columns[field.name], field.type) if field.name in columns else pa.nulls(rows, field.type)
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
    is_brief = transaction is None and session.is_brief()
    transaction = transaction or (TransactionContext() if is_brief else session.begin())
    table = session.listing().table(name)
    if at.unit:
        table = table_at(session, table, session.calls.find_at(table.descriptor, at))
    if not is_brief:
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


def call_scalar(session: Session, name: TableName, arguments: Sequence[Any], *, rows: int) -> pa.ChunkedArray:
    """Call a scalar function; return one value for each row of the arguments."""
    transaction = session.begin()
    overloads = session.listing().functions(name, "scalar_function")
    columns = arguments[0].columns if len(arguments) == 1 and isinstance(arguments[0], pa.RecordBatch) else arguments
    function = _choose_scalar(overloads, columns)
    batch = _argument_batch(function, columns, rows)
    trace = session.trace(function.descriptor, transaction)
    exchange = Exchange(session.calls, trace, "scalar_function", schema=batch.schema, returning=True)
    with contextlib.closing(exchange):
        results = [exchange.send_and_receive(part).column(0) for part in in_vectors([batch])]
        exchange.finish()
    return pa.chunked_array(results, exchange.schema.field(0).type)


def call_table_function(
    session: Session,
    name: TableName,
    arguments: Sequence[Any],
    named: Mapping[str, Any],
    *,
    rows: Any = None,
    columns: Sequence[str] | None = None,
    where: Where = None,
    plan: bool = False,
    transaction: TransactionContext | None = None,
) -> Rows:
    """Call a table function, over the input `rows` unless they are None; return the rows it produces.

    The call is part of the given `transaction`, or of an explicit one that is open.
    """
    if session.open_transaction() is not None:
        session.begin()  # an open transaction begins with its first statement
    overloads = session.listing().functions(name, "table_function")
    function = _choose_overload(overloads, arguments, named, over_rows=rows is not None)
    packed_row = _argument_row(function, arguments, named)
    # Like DuckDB, this sends no transaction with function calls, so it creates none, which saves one call of four. DuckDB has no
    # explicit ones, which functions must know about.
    trace = session.trace(function.descriptor, transaction or session.explicit_context())
    schema, batches = (None, iter(())) if rows is None else to_batches(rows)
    if rows is not None and schema is None:
        raise InvalidArgument(f"the rows for {function} contain no batch: give at least an empty one")
    input_schema = b"" if schema is None else schema.serialize().to_pybytes()
    info = session.calls.bind_function(trace, packed_row, input_schema)
    check_descriptor(session, info, function.descriptor)
    output = table_at(session, Table(function.schema_name, function.name, pa.schema([])), info)
    selection = select(output, columns, where)
    if schema is not None:
        return Rows(selection.schema, _run_over_rows(session, selection, packed_row, schema, batches))
    bound = BoundScan(session.calls, trace, selection, arguments=packed_row)
    return (bound.plan() if plan else bound).read()


def _run_over_rows(
    session: Session, selection: Selection, arguments: bytes, schema: pa.Schema, batches: Batches
) -> Generator[pa.RecordBatch]:
    """Yield the output of a function over input rows, which are sent while the output is read."""
    everything = Selection(selection.table, None, selection.where)  # the function always returns all its columns
    opening = InOutParameters(json_filters=everything.json_filters(), parameters=packed(arguments))
    trace = session.trace(selection.table.descriptor, session.explicit_context())
    exchange = Exchange(
        session.calls, trace, "table_function_in_out", schema=schema, returning=True, opening=encode(opening)
    )
    with contextlib.closing(exchange):
        for batch in in_vectors(batches):
            exchange.send(batch)
            yield from _selected_rows(selection, exchange)
        exchange.half_close()
        yield from _selected_rows(selection, exchange)
        exchange.finish()


def _selected_rows(selection: Selection, exchange: Exchange) -> Generator[pa.RecordBatch]:
    for batch in exchange.receive_chunk():
        if (rows := selection.apply(batch)).num_rows:
            yield rows


# -- overloads ---------------------------------------------------------------------------------------------------------


def _choose_overload(
    functions: Sequence[Function], values: Sequence[Any], named: Mapping[str, Any], *, over_rows: bool
) -> Function:
    """Return the first overload with this number of arguments, these names, and input rows or none."""
    for function in functions:
        positional = [field for field in function.parameters if not _has_mark(field, b"is_named_parameter")]
        names = {field.name for field in function.parameters if _has_mark(field, b"is_named_parameter")}
        tables = sum(_has_mark(field, b"is_table_type") for field in positional)
        if bool(tables) == over_rows and len(positional) - tables == len(values) and named.keys() <= names:
            return function
    if not over_rows and any(_has_mark(field, b"is_table_type") for field in functions[0].parameters):
        raise InvalidArgument(f"{functions[0]} needs input rows: give them as rows=…")
    arguments = f"{len(values)} arguments" + (f" and {', '.join(named)}" if named else "")
    rows = " over rows" if over_rows else ""
    raise InvalidArgument(f"{functions[0]} does not accept {arguments}{rows}; overloads: {_signatures(functions)}")


def _choose_scalar(functions: Sequence[Function], columns: Sequence[Any]) -> Function:
    """Return the overload with exactly these types, else the first with this number of arguments."""
    fitting = [function for function in functions if len(function.parameters) == len(columns)]
    if not fitting:
        raise InvalidArgument(
            f"{functions[0]} does not accept {len(columns)} arguments; overloads: {_signatures(functions)}"
        )
    types = [getattr(column, "type", None) for column in columns]
    return next((function for function in fitting if function.parameters.types == types), fitting[0])


# -- arguments ---------------------------------------------------------------------------------------------------------


def _argument_batch(function: Function, columns: Sequence[Any], rows: int) -> pa.RecordBatch:
    """Return the batch to send for the arguments of a scalar function, cast to the declared types."""
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    arrays = [
        _column(function, parameter, column) for parameter, column in zip(function.parameters, columns, strict=True)
    ]
    if len({len(array) for array in arrays}) > 1:
        raise InvalidArgument(f"{function}: arguments differ in length: {', '.join(str(len(a)) for a in arrays)} rows")
    return pa.record_batch(arrays, names=function.parameters.names)


def _column(function: Function, parameter: pa.Field, value: Any) -> pa.Array:
    if isinstance(value, pa.ChunkedArray):
        value = value.combine_chunks()
    if not isinstance(value, pa.Array):
        raise InvalidArgument(f"{function}: argument {parameter.name} must be an array, not a {type(value).__name__}")
    if _has_mark(parameter, b"is_any_type"):
        return value
    try:
        return cast_array(value, parameter.type)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"{function}: cannot cast {value.type} to {parameter.type} for parameter {parameter.name}: {error}"
        ) from error


def _argument_row(function: Function, positional: Sequence[Any], named: Mapping[str, Any]) -> bytes:
    """Return the Arrow stream of one row to send for the arguments of a table function.

    Parameters are in their declared order, without named ones that were not given.
    """
    values = iter(positional)
    fields, arrays = [], []
    for parameter in function.parameters:
        if _has_mark(parameter, b"is_table_type"):
            continue
        if _has_mark(parameter, b"is_named_parameter"):
            if parameter.name not in named:
                continue
            value = named[parameter.name]
        else:
            value = next(values)
        arrays.append(_array(function, parameter, value))
        fields.append(pa.field(parameter.name, arrays[-1].type))
    no_columns = pa.RecordBatch.from_struct_array(pa.array([{}], pa.struct([])))  # one row, even without arguments
    batch = pa.record_batch(arrays, schema=pa.schema(fields)) if fields else no_columns
    return arrow_stream(batch.schema, [batch])


def _array(function: Function, parameter: pa.Field, value: Any) -> pa.Array:
    is_untyped = _has_mark(parameter, b"is_any_type") and not isinstance(value, pa.Scalar)
    data_type = _literal_type(value) if is_untyped else parameter.type
    try:
        return single_value(value, data_type)
    except VALUE_ERRORS as error:
        raise InvalidArgument(
            f"{function}: {value!r} ({type(value).__name__}) does not fit parameter {parameter.name} {parameter.type}"
        ) from error


def _literal_type(value: Any) -> pa.DataType | None:
    """Return the type that SQL gives a literal where Arrow would infer another one; None where they agree."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return pa.int32() if -(2**31) <= value < 2**31 else pa.int64()
    if isinstance(value, Mapping):
        return pa.struct(
            [pa.field(str(name), _literal_type(item) or pa.scalar(item).type) for name, item in value.items()]
        )
    if isinstance(value, list | tuple) and value:
        return pa.list_(_literal_type(value[0]) or pa.scalar(value[0]).type)
    return None


def _has_mark(field: pa.Field, mark: bytes) -> bool:
    return bool((field.metadata or {}).get(mark))


def _signatures(functions: Sequence[Function]) -> str:
    return "; ".join(map(_signature, functions))


def _signature(function: Function) -> str:
    parameters = (
        f"{f.name} => {f.type}" if _has_mark(f, b"is_named_parameter") else f.name for f in function.parameters
    )
    return f"{function.name}({', '.join(parameters)})"
