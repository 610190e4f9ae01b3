"""Running a write: batches in, for RETURNING batches out, then the count.

Whatever form of writing a table has, it runs here as one generator: it takes batches from an iterator, yields the rows
to return for each, and ends with the number of rows affected. The lock-step is guarded in this place: a table that
returns too few or too many rows is an error, never a client that waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Final

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
)
from skiway.errors import Cancelled, Internal, InvalidArgument, NullRowId, PreconditionFailed

__all__ = ["run", "visible_columns"]


Batches = Iterator[pa.RecordBatch]
Run = Generator[pa.RecordBatch, None, int]

ROWID_TYPES: Final = (pa.int64(), pa.int32(), pa.uint64())


def run(table: Table, operation: Operation, schema: pa.Schema, batches: Batches, *, returning: bool) -> Run:
    """Run one statement over batches of `schema`; closing the generator early aborts it."""
    write = Write(operation, schema, DmlOptions(returning, visible_columns(table.schema) if returning else ()))
    runner = _runner(table, operation)
    if operation != "insert":
        batches = _with_rowids(operation, schema, batches)
    return runner(write, batches)


def visible_columns(schema: pa.Schema) -> tuple[str, ...]:
    """All columns but the row id."""
    rowid = find_rowid_column(schema)
    return tuple(name for index, name in enumerate(schema.names) if index != rowid)


def _runner(table: Table, operation: Operation) -> Callable[[Write, Batches], Run]:
    """How this table does that; the forms with the row id inside are preferred."""
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
                yield one_batch(returned, batch.num_rows)
        if not current_request().is_active():
            raise Cancelled("the client went away before its statement was complete; nothing was changed")
    except BaseException:  # closing the generator, too, is an end without commit
        statement.abort()
        raise
    return statement.commit()


def _with_reader(call: Callable[[pa.RecordBatchReader, DmlOptions], DmlResult], write: Write, batches: Batches) -> Run:
    """One call with all batches; with RETURNING, whose answers cannot wait, one call for each."""
    options = write.options
    if options.returning:
        return (yield from _per_batch(lambda batch: call(_reader(write.schema, [batch]), options), batches, options))
    result = call(_reader(write.schema, batches), options)
    for _ in batches:  # a table may have seen enough; the client still sends
        pass
    return result.affected_rows


def _per_batch(call: Callable[[pa.RecordBatch], DmlResult], batches: Batches, options: DmlOptions) -> Run:
    affected = 0
    for batch in batches:
        result = call(batch)
        affected += result.affected_rows
        if options.returning:
            yield one_batch(result.returning_data, batch.num_rows)
    return affected


def _update(table: Updatable, write: Write) -> Callable[[pa.RecordBatch], DmlResult]:
    index = rowid_index("UPDATE", write.schema)
    names = [name for position, name in enumerate(write.schema.names) if position != index]

    def call(batch: pa.RecordBatch) -> DmlResult:
        values = batch.select(names)
        return table.update(_as_int64(batch.column(index)), _reader(values.schema, [values]), write.options)

    return call


def _delete(table: Deletable, write: Write) -> Callable[[pa.RecordBatch], DmlResult]:
    index = rowid_index("DELETE", write.schema)
    return lambda batch: table.delete(_as_int64(batch.column(index)), write.options)


def _reader(schema: pa.Schema, batches: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> pa.RecordBatchReader:
    return pa.RecordBatchReader.from_batches(schema, batches)


# -- row ids ----------------------------------------------------------------------------------------------------------


def rowid_index(operation: str, schema: pa.Schema) -> int:
    """Where the row id is in the rows of an UPDATE or DELETE."""
    index = find_rowid_column(schema)
    if index is None:
        raise InvalidArgument(f"{operation.upper()} requires rowid column")
    if schema.field(index).type not in ROWID_TYPES:
        raise InvalidArgument(f"rowid must be integer type (int64, int32 or uint64), not {schema.field(index).type}")
    return index


def _with_rowids(operation: Operation, schema: pa.Schema, batches: Batches) -> Batches:
    """The same batches, each checked to name all of its rows."""
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
        raise InvalidArgument(f"a row id does not fit 64 bits with sign: {error}") from error


def one_batch(data: ArrowData | None, rows: int) -> pa.RecordBatch:
    """The returned rows as the one batch that the client waits for."""
    batches = [] if data is None else list(record_batches(data))
    found = sum(batch.num_rows for batch in batches)
    if found != rows:
        raise Internal(f"RETURNING needs one row for each row written: {rows} were written, {found} came back")
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_struct_array(pa.array([], pa.struct([])))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
