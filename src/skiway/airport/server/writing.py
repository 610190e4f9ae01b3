"""Runs INSERT, UPDATE and DELETE on tables.

Every write runs as a generator, whichever capability the table has: it takes batches from an iterator, yields the rows to
return for each batch (with RETURNING), and returns the number of affected rows. A table that returns the wrong number of
rows is an error; otherwise the client, which waits in lock-step, would hang.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator

import pyarrow as pa

from skiway.airport.catalog import Table
from skiway.airport.request import current_request
from skiway.airport.scan import ArrowData, find_rowid_column
from skiway.airport.server.streams import record_batches
from skiway.airport.writing import (
    Deletable,
    DeletableBatch,
    DmlOptions,
    DmlResult,
    Insertable,
    Operation,
    Updatable,
    UpdatableBatch,
    Writable,
    Write,
    rowid_index,
)
from skiway.errors import Cancelled, Internal, InvalidArgument, NullRowId, PreconditionFailed

__all__ = ["run", "visible_columns"]

Batches = Iterator[pa.RecordBatch]
Run = Generator[pa.RecordBatch, None, int]


def run(table: Table, operation: Operation, schema: pa.Schema, batches: Batches, *, returning: bool) -> Run:
    """Run a statement over batches of `schema`. Closing the generator early aborts it."""
    write = Write(operation, schema, DmlOptions(returning, visible_columns(table.schema) if returning else ()))
    runner = _runner(table, operation)
    if operation != "insert":
        batches = _check_rowids(operation, schema, batches)
    return runner(write, batches)


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
            return lambda write, batches: _with_reader(table.insert, write, batches)
        case "update" if isinstance(table, UpdatableBatch):
            return lambda write, batches: _with_reader(table.update_batch, write, batches)
        case "update" if isinstance(table, Updatable):
            return lambda write, batches: _per_batch(_update(table, write), batches, write.options)
        case "delete" if isinstance(table, DeletableBatch):
            return lambda write, batches: _with_reader(table.delete_batch, write, batches)
        case "delete" if isinstance(table, Deletable):
            return lambda write, batches: _per_batch(_delete(table, write), batches, write.options)
    raise PreconditionFailed(f"table {table.name!r} does not support {operation.upper()} operations")


def _statement(table: Writable, write: Write, batches: Batches) -> Run:
    statement = table.write(write)
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
    return statement.commit()


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


def _update(table: Updatable, write: Write) -> Callable[[pa.RecordBatch], DmlResult]:
    index = rowid_index("update", write.schema)
    names = [name for position, name in enumerate(write.schema.names) if position != index]

    def call(batch: pa.RecordBatch) -> DmlResult:
        values = batch.select(names)
        return table.update(_as_int64(batch.column(index)), _reader(values.schema, [values]), write.options)

    return call


def _delete(table: Deletable, write: Write) -> Callable[[pa.RecordBatch], DmlResult]:
    index = rowid_index("delete", write.schema)
    return lambda batch: table.delete(_as_int64(batch.column(index)), write.options)


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
    found = sum(batch.num_rows for batch in batches)
    if found != rows:
        raise Internal(f"RETURNING must return one row per written row: {rows} rows were written, {found} returned")
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_struct_array(pa.array([], pa.struct([])))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
