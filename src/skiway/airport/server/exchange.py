"""DoExchange: statements and functions, batch by batch in lock-step with the client.

The client sends a descriptor, then its schema, and waits for ours before it sends rows. With `return-chunks: 1` it
waits after each batch for exactly one in return.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Any, Final

import pyarrow as pa

from skiway.airport.catalog import Catalog, Table
from skiway.airport.functions import ScalarFunction, TableInOutFunction, read_arguments
from skiway.airport.request import Request, ServedCall, call_of
from skiway.airport.server.host import Host
from skiway.airport.server.lookup import open_scalar_function, open_table, open_table_function
from skiway.airport.server.streams import Conform, Nulls, fitted
from skiway.airport.server.tickets import ObjectPath, parse_descriptor
from skiway.airport.server.writing import run, visible_columns
from skiway.airport.wire import headers
from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame
from skiway.airport.wire.payloads import InOutParameters, TotalChanged, binary, decode, encode
from skiway.airport.writing import Operation
from skiway.errors import Internal, InvalidArgument, PreconditionFailed, Unsupported

__all__ = ["EXCHANGES", "do_exchange"]


VECTOR: Final = 2048  # rows that DuckDB takes at once; more in one returned batch would be lost
CONTINUES: Final = b"chunk_continues"
FINISHED: Final = b"chunk_finished"

EXCHANGES: Final = ("insert", "update", "delete", "scalar_function", "table_function_in_out")
"""The kinds of exchanges, as the header that names them spells them."""

Frames = Iterator[bytes]


def do_exchange(host: Host, request: Request, messages: Iterator[bytes]) -> Frames:
    """One exchange, of the kind that its header names."""
    operation = request.header(headers.OPERATION)
    if not operation:
        raise Unsupported(f"an exchange needs the header {headers.OPERATION}, as DuckDB's Airport extension sends it")
    reader = BatchReader(messages)
    call = call_of(request)
    if operation in EXCHANGES:
        call.operation = operation
    request, catalog, path = host.open(request, parse_descriptor(reader.wait_for_descriptor()))
    try:
        match operation:
            case "insert" | "update" | "delete":
                returning = request.header(headers.RETURN_CHUNKS) == "1"
                with host.unit_of_work(request, catalog):
                    affected = yield from _dml(_table(catalog, path), operation, reader, call, returning=returning)
                yield metadata_frame(encode(TotalChanged(affected)))  # only now: what follows it reaches no one
            case "scalar_function":
                yield from _scalar(open_scalar_function(catalog, path), reader, call)
            case "table_function_in_out":
                yield from _in_out(catalog, path, reader, call)
            case _:
                raise InvalidArgument(f"unknown operation {operation!r} in header {headers.OPERATION}")
    finally:
        call.rows_in = reader.rows


def _table(catalog: Catalog, path: ObjectPath) -> Table:
    table = open_table(catalog, path)
    if not isinstance(table, Table):
        raise PreconditionFailed(f"table '{path}' is read by DuckDB itself and cannot be written")
    return table


def _dml(
    table: Table, operation: Operation, reader: BatchReader, call: ServedCall, *, returning: bool
) -> Generator[bytes, None, int]:
    schema = reader.schema
    answer = schema if operation == "update" else _visible(table.schema)
    writer = FrameWriter(answer)
    yield writer.begin()
    fit = _Fit(answer, f"RETURNING of {table.name!r}")
    with contextlib.closing(run(table, operation, schema, iter(reader), returning=returning)) as statement:
        while True:
            try:
                returned = next(statement)
            except StopIteration as end:
                return int(end.value)
            call.rows_out += returned.num_rows
            yield from writer.batch(fit(returned))


def _visible(schema: pa.Schema) -> pa.Schema:
    return pa.schema([schema.field(name) for name in visible_columns(schema)])


class _Fit:
    """Makes returned batches exactly what was announced; a missing column is an error here, not NULLs."""

    def __init__(self, schema: pa.Schema, what: str) -> None:
        self._schema = schema
        self._what = what
        self._nulls = Nulls()
        self._layout: pa.Schema | None = None
        self._plan: Conform | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.num_columns == 0 and batch.num_rows == 0:
            return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in self._schema], schema=self._schema)
        if self._plan is None or not batch.schema.equals(self._layout):
            self._layout = batch.schema
            missing = [name for name in self._schema.names if name not in batch.schema.names]
            if missing:
                raise Internal(f"{self._what} lacks column {missing[0]!r}")
            self._plan = Conform.plan(self._schema, batch.schema, None)
        return self._plan.apply(batch, self._nulls)


# -- functions --------------------------------------------------------------------------------------------------------


def _scalar(function: ScalarFunction, reader: BatchReader, call: ServedCall) -> Frames:
    result = pa.field("result", function.returns)
    writer = FrameWriter(pa.schema([result]))
    yield writer.begin()
    for batch in reader:
        call.rows_out += batch.num_rows
        values = _values(function, function.execute(_arguments(function, batch)), batch.num_rows)
        yield from writer.batch(pa.RecordBatch.from_arrays([fitted(values, result)], schema=writer.schema))


def _arguments(function: ScalarFunction, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its columns in the declared types; usually it has them already."""
    wanted = [parameter.type for parameter in function.parameters]
    if len(wanted) != batch.num_columns:
        raise InvalidArgument(f"{function.name} takes {len(wanted)} arguments, {batch.num_columns} came")
    if all(
        not isinstance(kind, pa.DataType) or kind == given.type
        for kind, given in zip(wanted, batch.schema, strict=True)
    ):
        return batch
    columns = [
        fitted(column, pa.field(parameter.name, parameter.type)) if isinstance(parameter.type, pa.DataType) else column
        for parameter, column in zip(function.parameters, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _values(function: ScalarFunction, made: Any, rows: int) -> pa.Array:
    if isinstance(made, pa.ChunkedArray):
        made = made.combine_chunks()
    elif isinstance(made, pa.Scalar):
        made = pa.repeat(made, rows)
    elif not isinstance(made, pa.Array):
        made = pa.array(made, function.returns)
    if len(made) != rows:
        raise Internal(f"{function.name} must give one value for each row: {rows} came in, {len(made)} went out")
    return made


def _in_out(catalog: Catalog, path: ObjectPath, reader: BatchReader, served: ServedCall) -> Frames:
    function = open_table_function(catalog, path)
    if not isinstance(function, TableInOutFunction):
        raise InvalidArgument(f"{path} takes no rows: call it with its parameters alone")
    rows = reader.schema
    opening = reader.opening[0] if reader.opening else encode(InOutParameters())
    asked = decode(opening, InOutParameters, f"the parameters of {path}")
    arguments = read_arguments(function, binary(asked.parameters))
    writer = FrameWriter(function.schema_for(arguments, rows))
    fit = _Fit(writer.schema, f"function {path}")
    nothing = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in writer.schema], schema=writer.schema)
    call = function.open(arguments, rows)
    try:
        yield writer.begin()
        for batch in reader:
            yield from _chunk(writer, fit, call.process(batch), nothing, served)
        yield from _chunk(writer, fit, call.finish(), nothing, served)
    finally:
        call.close()


def _chunk(writer: FrameWriter, fit: _Fit, batches: Any, nothing: pa.RecordBatch, served: ServedCall) -> Frames:
    """All output for one input. The end is marked on an empty batch: on a full one the client would wait for more."""
    for batch in (batches,) if isinstance(batches, pa.RecordBatch) else batches:
        fitting = fit(batch)
        served.rows_out += fitting.num_rows
        for start in range(0, fitting.num_rows, VECTOR):
            yield from writer.batch(fitting.slice(start, VECTOR), app_metadata=CONTINUES)
    yield from writer.batch(nothing, app_metadata=FINISHED)
