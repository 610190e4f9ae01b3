"""Runs INSERT, UPDATE and DELETE on tables.

Every write runs as a generator, whichever capability the table has: it takes batches from an iterator, yields the rows to
return for each batch (with RETURNING), and returns the number of affected rows. A table that returns the wrong number of
rows is an error; otherwise the client, which waits in lock-step, would hang.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import ParamSpec

import pyarrow as pa

from skiway.airport.catalog import Table
from skiway.airport.checks import instead_of
from skiway.airport.request import current_request
from skiway.airport.results import record_batches
from skiway.airport.scan import ArrowData, find_rowid_column
from skiway.airport.writing import (
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
    rowid_index,
)
from skiway.errors import Cancelled, ConstraintViolation, Internal, InvalidArgument, NullRowId, PreconditionFailed

__all__ = ["run", "visible_columns"]

Batches = Iterator[pa.RecordBatch]
P = ParamSpec("P")
Run = Generator[pa.RecordBatch, None, int]


def run(
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
    found = sum(batch.num_rows for batch in batches)
    if found != rows:
        raise Internal(f"RETURNING must return one row per written row: {rows} rows were written, {found} returned")
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_struct_array(pa.array([], pa.struct([])))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]
