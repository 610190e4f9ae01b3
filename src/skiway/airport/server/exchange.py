"""DoExchange: writing statements and function calls, batch by batch in lock-step with the client.

The client sends a descriptor and its schema, and waits for the schema of the response before it sends rows. With
`return-chunks: 1` it waits after each batch for exactly one batch in return.

Every write runs as a generator, whichever capability the table has: it takes batches from an iterator, yields the rows to
return for each batch (with RETURNING), and returns the number of affected rows. A table that returns the wrong number of
rows is an error; otherwise the client, which waits in lock-step, would hang.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Generator, Hashable, Iterator
from typing import Any, Final, ParamSpec

import pyarrow as pa

from skiway.airport.catalog import Catalog, Table
from skiway.airport.conversion import cast_array
from skiway.airport.functions import Parameter, ScalarFunction, TableInOutFunction, read_arguments
from skiway.airport.request import Request, ServedCall, call_of, current_request
from skiway.airport.server.host import Host, OpenedTable, open_scalar_function, open_table, open_table_function
from skiway.airport.server.scans import BatchAdapter, cast_column
from skiway.airport.server.tickets import ObjectPath, as_plain, fingerprint, function_changed, parse_descriptor
from skiway.airport.tables import (
    ArrowData,
    Deletable,
    DeletableBatch,
    DmlOptions,
    DmlResult,
    Insertable,
    Operation,
    Statement,
    Updatable,
    UpdatableBatch,
    Writable,
    Write,
    find_rowid_column,
    instead_of,
    record_batches,
    rowid_index,
)
from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import without_dictionaries
from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame
from skiway.airport.wire.protocol import (
    InOutParameters,
    TotalChanged,
    binary,
    decode,
    encode,
)
from skiway.errors import (
    Cancelled,
    ConstraintViolation,
    Internal,
    InvalidArgument,
    NullRowId,
    PreconditionFailed,
    Unsupported,
)

VECTOR_SIZE: Final = 2048  # DuckDB drops the rows of a returned batch beyond this number
CONTINUES: Final = b"chunk_continues"
FINISHED: Final = b"chunk_finished"

EXCHANGES: Final = ("insert", "update", "delete", "scalar_function", "table_function_in_out")
"""The operations that the header of an exchange may name."""

Frames = Iterator[bytes]


def do_exchange(host: Host, request: Request, messages: Iterator[bytes]) -> Generator[bytes, None, bytes | None]:
    """Run an exchange. A header names its operation."""
    operation = request.header(protocol.OPERATION)
    if not operation:
        raise Unsupported(
            f"an exchange requires the header {protocol.OPERATION}, which DuckDB's Airport extension sends"
        )
    reader = BatchReader(messages, max_decoded_bytes=host.max_decoded_bytes)
    call = call_of(request)
    if operation in EXCHANGES:
        call.operation = operation
    request, catalog, path = host.open(request, parse_descriptor(reader.wait_for_descriptor()))
    try:
        match operation:
            case "insert" | "update" | "delete":
                returning = request.header(protocol.RETURN_CHUNKS) == "1"
                with host.unit_of_work(request, catalog):
                    opened = open_table(catalog, path)
                    affected = yield from _dml(opened, operation, reader, call, returning=returning)
                # The client stops reading at this frame, so the service sends it when the call is over for observers.
                return metadata_frame(encode(TotalChanged(affected)))
            case "scalar_function":
                yield from _scalar(open_scalar_function(catalog, path), reader, call)
            case "table_function_in_out":
                yield from _in_out(host, request, catalog, path, reader, call)
            case _:
                raise InvalidArgument(f"unknown operation {operation!r} in header {protocol.OPERATION}")
    finally:
        call.rows_in = reader.rows
    return None


def _dml(
    opened: OpenedTable, operation: Operation, reader: BatchReader, call: ServedCall, *, returning: bool
) -> Generator[bytes, None, int]:
    table = opened.table
    if not isinstance(table, Table):
        raise PreconditionFailed(f"table '{opened.path}' is a table reference and cannot be written")
    schema = reader.schema
    statement = run_statement(table, opened.schema, operation, schema, iter(reader), returning=returning)
    returned_schema = schema if operation == "update" else visible_schema(opened.schema)
    writer = FrameWriter(returned_schema)
    yield writer.begin()
    adapt = BatchAdapter(returned_schema, what=f"RETURNING of table '{opened.path}'")
    with contextlib.closing(statement):
        while True:
            try:
                returned = next(statement)
            except StopIteration as end:
                return int(end.value)
            call.rows_out += returned.num_rows
            yield from writer.batch(adapt(returned))


def visible_schema(schema: pa.Schema) -> pa.Schema:
    """The schema without the row id."""
    return pa.schema([schema.field(name) for name in visible_columns(schema)])


# -- statements -------------------------------------------------------------------------------------------------------

Batches = Iterator[pa.RecordBatch]
P = ParamSpec("P")
Run = Generator[pa.RecordBatch, None, int]


def run_statement(
    table: Table, known: pa.Schema, operation: Operation, schema: pa.Schema, batches: Batches, *, returning: bool
) -> Run:
    """Run a statement over batches of `schema`. Closing the generator early aborts it.

    `known` is the schema of the table as the client knows it.
    """
    write = Write(operation, schema, DmlOptions(returning, visible_columns(known) if returning else ()))
    runner = _runner(table, operation)
    if operation != "insert":
        if find_rowid_column(table.schema) is None:
            raise PreconditionFailed(
                f"table {table.name!r} does not support {operation.upper()} operations: it has no row id column"
            )
        batches = _check_rowids(operation, schema, batches)
    return runner(write, _check_not_null(table.name, known, schema, batches))


def _check_not_null(table: str, known: pa.Schema, schema: pa.Schema, batches: Batches) -> Batches:
    """The same batches, checked for NULLs in columns that are NOT NULL."""
    strict = {field.name for field in known if not field.nullable}
    required = [(index, name) for index, name in enumerate(schema.names) if name in strict]

    def checked() -> Batches:
        for batch in batches:
            for index, name in required:
                if batch.column(index).null_count:
                    raise ConstraintViolation(
                        f"NOT NULL constraint failed: {table}.{name}", key="not_null", table=table, column=name
                    )
            yield batch

    return checked() if required else batches


def visible_columns(schema: pa.Schema) -> tuple[str, ...]:
    """The names of all columns except the row id."""
    rowid = find_rowid_column(schema)
    return tuple(name for index, name in enumerate(schema.names) if index != rowid)


def _runner(table: Table, operation: Operation) -> Callable[[Write, Batches], Run]:
    """The function that runs `operation` on `table`. Interfaces with the row id as a column are preferred."""
    if isinstance(table, Writable) and operation in table.operations:
        return lambda write, batches: _statement(table, write, batches)
    match operation:
        case "insert" if isinstance(table, Insertable):
            return lambda write, batches: _with_reader(_checked(table, table.insert), write, batches)
        case "update" if isinstance(table, UpdatableBatch):
            return lambda write, batches: _with_reader(_checked(table, table.update_batch), write, batches)
        case "update" if isinstance(table, Updatable):
            return lambda write, batches: _per_batch(_update(table, write), batches, write.options)
        case "delete" if isinstance(table, DeletableBatch):
            return lambda write, batches: _with_reader(_checked(table, table.delete_batch), write, batches)
        case "delete" if isinstance(table, Deletable):
            return lambda write, batches: _per_batch(_delete(table, write), batches, write.options)
    raise PreconditionFailed(f"table {table.name!r} does not support {operation.upper()} operations")


def _checked(table: Table, method: Callable[P, DmlResult]) -> Callable[P, DmlResult]:
    """A writing method of a table, with its result checked."""

    def call(*args: P.args, **kwargs: P.kwargs) -> DmlResult:
        result = method(*args, **kwargs)
        if not isinstance(result, DmlResult):
            raise _wrong_result(table, method.__name__, result, "DmlResult(affected_rows=…)")
        if not hasattr(result.affected_rows, "__index__"):
            counted = instead_of(result.affected_rows)
            raise Internal(
                f"{method.__name__}() of table {table.name!r} returned a DmlResult with {counted} as affected_rows: "
                "pass the number of rows"
            )
        return result

    return call


def _wrong_result(table: Table, method: str, result: object, expected: str) -> Internal:
    return Internal(f"{method}() of table {table.name!r} returned {instead_of(result)}: return {expected}")


def _statement(table: Table, write: Write, batches: Batches) -> Run:
    assert isinstance(table, Writable)
    statement = table.write(write)
    if not isinstance(statement, Statement):
        raise _wrong_result(table, "write", statement, "a Statement")
    try:
        for batch in batches:
            returned = statement.apply(batch)
            if write.options.returning:
                yield _single_batch(returned, batch.num_rows)
        if not current_request().is_active():
            raise Cancelled("the client disconnected before the statement was complete; nothing was changed")
    except BaseException:  # including GeneratorExit, when the caller closes the generator
        statement.abort()
        raise
    affected = statement.commit()
    if not hasattr(affected, "__index__"):
        raise _wrong_result(table, "commit", affected, "the number of affected rows")
    return affected


def _with_reader(call: Callable[[pa.RecordBatchReader, DmlOptions], DmlResult], write: Write, batches: Batches) -> Run:
    """Call once with all batches, or once per batch with RETURNING, because the client waits after each batch."""
    options = write.options
    if options.returning:
        return (yield from _per_batch(lambda batch: call(_reader(write.schema, [batch]), options), batches, options))
    result = call(_reader(write.schema, batches), options)
    for _ in batches:  # drain the stream if the table did not read all of it
        pass
    return result.affected_rows


def _per_batch(call: Callable[[pa.RecordBatch], DmlResult], batches: Batches, options: DmlOptions) -> Run:
    affected = 0
    for batch in batches:
        result = call(batch)
        affected += result.affected_rows
        if options.returning:
            yield _single_batch(result.returning_data, batch.num_rows)
    return affected


def _update(table: Table, write: Write) -> Callable[[pa.RecordBatch], DmlResult]:
    index = rowid_index("update", write.schema)
    names = [name for position, name in enumerate(write.schema.names) if position != index]
    assert isinstance(table, Updatable)
    update = _checked(table, table.update)

    def call(batch: pa.RecordBatch) -> DmlResult:
        values = batch.select(names)
        return update(_as_int64(batch.column(index)), _reader(values.schema, [values]), write.options)

    return call


def _delete(table: Table, write: Write) -> Callable[[pa.RecordBatch], DmlResult]:
    index = rowid_index("delete", write.schema)
    assert isinstance(table, Deletable)
    delete = _checked(table, table.delete)
    return lambda batch: delete(_as_int64(batch.column(index)), write.options)


def _reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(schema, batches)


# -- row ids ----------------------------------------------------------------------------------------------------------


def _check_rowids(operation: Operation, schema: pa.Schema, batches: Batches) -> Batches:
    """The same batches, checked for NULL row ids."""
    index = rowid_index(operation, schema)

    def checked() -> Batches:
        for batch in batches:
            if batch.column(index).null_count:
                raise NullRowId
            yield batch

    return checked()


def _as_int64(ids: pa.Array) -> pa.Array:
    try:
        return ids if ids.type == pa.int64() else ids.cast(pa.int64())
    except pa.ArrowException as error:
        raise InvalidArgument(f"a row id does not fit a signed 64-bit integer: {error}") from error


def _single_batch(data: ArrowData | None, rows: int) -> pa.RecordBatch:
    """The returned rows as a single batch, which the client waits for."""
    batches = [] if data is None else list(record_batches(data))
    returned = sum(batch.num_rows for batch in batches)
    if returned != rows:
        raise Internal(f"RETURNING must return one row per written row: {rows} rows were written, {returned} returned")
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_struct_array(pa.array([], pa.struct([])))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


# -- functions --------------------------------------------------------------------------------------------------------


def _scalar(function: ScalarFunction, reader: BatchReader, call: ServedCall) -> Frames:
    result = pa.field("result", without_dictionaries(function.returns))
    writer = FrameWriter(pa.schema([result]))
    yield writer.begin()
    for batch in reader:
        call.rows_out += batch.num_rows
        values = _values(function, function.execute(_arguments(function, batch)), batch.num_rows)
        yield from writer.batch(pa.RecordBatch.from_arrays([cast_column(values, result)], schema=writer.schema))


def _arguments(function: ScalarFunction, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch with its columns cast to the declared types, if they differ."""
    expected = [parameter.type for parameter in function.parameters]
    if len(expected) != batch.num_columns:
        raise InvalidArgument(f"{function.name} takes {len(expected)} arguments, not {batch.num_columns}")
    if all(
        not isinstance(kind, pa.DataType) or kind == actual.type
        for kind, actual in zip(expected, batch.schema, strict=True)
    ):
        return batch
    columns = [
        _argument(function, parameter, column) if isinstance(parameter.type, pa.DataType) else column
        for parameter, column in zip(function.parameters, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _argument(function: ScalarFunction, parameter: Parameter, column: pa.Array) -> pa.Array:
    try:
        return cast_array(column, parameter.type)
    except pa.ArrowException as error:
        raise InvalidArgument(
            f"{function.name} takes {parameter.type} for {parameter.name!r}, not {column.type}: {error}"
        ) from error


def _values(function: ScalarFunction, result: Any, rows: int) -> pa.Array:
    if result is None or isinstance(result, str | bytes):
        raise Internal(
            f"function {function.name!r} returned {instead_of(result)}: return an array or a list with one value per row"
        )
    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    elif isinstance(result, pa.Scalar):
        result = pa.repeat(result, rows)
    elif not isinstance(result, pa.Array):
        result = pa.array(result, function.returns)
    if len(result) != rows:
        raise Internal(f"{function.name} must return one value per row: it got {rows} rows and returned {len(result)}")
    return result


def _in_out(
    host: Host, request: Request, catalog: Catalog, path: ObjectPath, reader: BatchReader, served: ServedCall
) -> Frames:
    function = open_table_function(catalog, path)
    if not isinstance(function, TableInOutFunction):
        raise InvalidArgument(f"{path} does not take rows as input: call it with its parameters only")
    rows = reader.schema
    opening = reader.opening[0] if reader.opening else encode(InOutParameters())
    parameters = binary(decode(opening, InOutParameters, f"the parameters of {path}").parameters)
    arguments = read_arguments(function, parameters)
    writer = FrameWriter(as_plain(function.schema_for(arguments, rows)))
    if host.announcements.contradict(in_out_key(request, path, parameters, rows), writer.schema):
        raise function_changed(path)
    adapt = BatchAdapter(writer.schema, what=f"function {path}")
    call = function.open(arguments, rows)
    try:
        yield writer.begin()
        for batch in reader:
            yield from _chunk(writer, adapt, _output(function, "process", call.process(batch)), served)
        yield from _chunk(writer, adapt, _output(function, "finish", call.finish()), served)
    finally:
        call.close()


def in_out_key(request: Request, path: ObjectPath, parameters: bytes, rows: pa.Schema) -> Hashable:
    """What the plan of a function over rows and its exchange have in common. They have different ids."""
    digest = hashlib.blake2b(parameters, digest_size=16).digest()  # arguments may be large, and keys are kept for long
    return request.session_id, request.identity, path, digest, fingerprint(rows)


def _output(function: TableInOutFunction, method: str, result: Any) -> Any:
    if result is None:
        raise Internal(
            f"{method}() of function {function.name!r} returned None: return a list of batches, which may be empty"
        )
    return result


def _chunk(writer: FrameWriter, adapt: BatchAdapter, batches: Any, served: ServedCall) -> Frames:
    """The output for one input batch. An empty batch marks its end: after rows, the client would wait for more."""
    for batch in (batches,) if isinstance(batches, pa.RecordBatch) else batches:
        output = adapt(batch)
        served.rows_out += output.num_rows
        for start in range(0, output.num_rows, VECTOR_SIZE):
            yield from writer.batch(output.slice(start, VECTOR_SIZE), app_metadata=CONTINUES)
    yield from writer.batch(adapt.empty, app_metadata=FINISHED)
