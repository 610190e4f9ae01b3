"""Runs INSERT, UPDATE and DELETE on tables, also with the JSON contract.

Every write runs as a generator, whichever capability the table has: it takes batches from an iterator, yields the rows to
return for each batch (with RETURNING), and returns the number of affected rows. A table that returns the wrong number of
rows is an error; otherwise the client, which waits in lock-step, would hang.

In the JSON contract there is no lock-step: DoPut is for INSERT and UPDATE, the action `delete` for DELETE. The descriptor of a
DoPut is a JSON command that names the table. An UPDATE also lists the ids of the rows to update, one for each row of the
stream in the same order. The response has the number of affected rows and, with `returning`, the rows as an Arrow stream in
base64.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, ParamSpec

import msgspec
import pyarrow as pa

from skiway.airport.catalog import Catalog, Table
from skiway.airport.checks import instead_of
from skiway.airport.request import Request, call_of, current_request
from skiway.airport.results import record_batches
from skiway.airport.server.host import Host
from skiway.airport.server.scans import NullColumns, SchemaAdapter
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
    rowid_index,
)
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.protocol import arrow_stream, encode
from skiway.errors import (
    Cancelled,
    ConstraintViolation,
    Internal,
    InvalidArgument,
    NotFound,
    NullRowId,
    PreconditionFailed,
    Unsupported,
)
from skiway.model.flight_pb2 import FlightDescriptor, PutResult

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
    found = sum(batch.num_rows for batch in batches)
    if found != rows:
        raise Internal(f"RETURNING must return one row per written row: {rows} rows were written, {found} returned")
    if len(batches) == 1:
        return batches[0]
    if not batches:
        return pa.RecordBatch.from_struct_array(pa.array([], pa.struct([])))
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


class Command(msgspec.Struct, frozen=True):
    """A command from a client."""

    schema_name: str
    table_name: str
    operation: Literal["insert", "update", "delete"] = "delete"
    row_ids: list[int] = []
    returning: bool = False
    catalog_name: str = ""


class Result(msgspec.Struct, frozen=True):
    """The response to a command."""

    status: str
    affected_rows: int
    returning_data: str | None = None


def do_put(
    host: Host, request: Request, descriptor: FlightDescriptor, reader: BatchReader
) -> Generator[bytes, None, bytes]:
    """Run an INSERT or UPDATE. The only PutResult is sent after the end of the stream."""
    command = _command(descriptor)
    call = call_of(request)
    call.operation = command.operation
    request, catalog = _open(host, request, command)
    with host.unit_of_work(request, catalog):
        opened = _table_of(catalog, command)
        batches: Iterable[pa.RecordBatch]
        if command.operation == "update":
            _check_row_ids(opened, command)
            batches = _with_row_ids(reader, opened.schema, command.row_ids)
        else:
            batches = _in_table_order(reader, opened.schema)
        result = _run_command(opened, command.operation, batches, returning=command.returning)
    call.rows_in = reader.rows
    yield from ()  # a generator, so that the stream is read within the call
    response: bytes = PutResult(app_metadata=encode(result)).SerializeToString()
    return response


def delete_by_ids(host: Host, request: Request, body: bytes) -> bytes:
    """Delete rows by their ids. The body and the response are JSON."""
    command = _decoded(body, "delete")
    call_of(request).rows_in = len(command.row_ids)
    request, catalog = _open(host, request, command)
    with host.unit_of_work(request, catalog):
        opened = _table_of(catalog, command)
        _check_row_ids(opened, command)
        ids = pa.record_batch([_row_ids(command.row_ids)], names=["rowid"])
        result = _run_command(opened, "delete", [ids], returning=command.returning)
    response = {"status": result.status, "affected_rows": result.affected_rows}
    returned = {"returning_data": result.returning_data} if command.returning else {}
    return msgspec.json.encode(response | returned)


def _open(host: Host, request: Request, command: Command) -> tuple[Request, Catalog]:
    return host.open_catalog(request, command.catalog_name, schema=command.schema_name, name=command.table_name)


def _command(descriptor: FlightDescriptor) -> Command:
    if descriptor.type != FlightDescriptor.CMD or descriptor.cmd.lstrip()[:1] != b"{":
        raise Unsupported('DoPut requires a JSON command: {"operation": "insert", "schema_name": …, "table_name": …}')
    command = _decoded(descriptor.cmd, "DoPut")
    if command.operation == "delete":
        raise InvalidArgument("DoPut does not support DELETE: use the action 'delete'")
    return command


def _decoded(data: bytes, what: str) -> Command:
    try:
        fields: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        if "action" in fields:  # an older name of the field
            fields.setdefault("operation", fields["action"])
        if what == "DoPut" and "operation" not in fields:
            raise InvalidArgument('the DoPut command has no operation: use "insert" or "update"')
        return msgspec.convert(fields, Command)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"malformed command of {what}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Opened:
    """A table, and its schema when the statement began."""

    table: Table
    schema: pa.Schema


def _table_of(catalog: Catalog, command: Command) -> _Opened:
    schema = catalog.schema(command.schema_name)
    if schema is None:
        raise NotFound(f"schema '{command.schema_name}' not found")
    table = schema.table(command.table_name)
    if table is not None:
        return _Opened(table, table.schema)
    name = f"'{command.schema_name}.{command.table_name}'"
    if schema.table_ref(command.table_name) is not None:
        raise PreconditionFailed(
            f"table {name} does not support {command.operation.upper()}: it is a table reference, which is read-only"
        )
    raise NotFound(f"table {name} not found")


def _check_row_ids(opened: _Opened, command: Command) -> None:
    operation = command.operation.upper()
    if find_rowid_column(opened.schema) is None:
        raise PreconditionFailed(f"table '{opened.table.name}' does not support {operation} (no rowid)")
    if not command.row_ids:
        raise InvalidArgument(f"row_ids cannot be empty for {operation}")


def _row_ids(ids: list[int]) -> pa.Array:
    try:
        return pa.array(ids, pa.int64())
    except OverflowError as error:
        raise InvalidArgument("a row id does not fit a signed 64-bit integer") from error


def _in_table_order(reader: BatchReader, known: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The batches of the stream, with the columns in the order of the table."""
    columns = visible_columns(known)
    schema = reader.schema
    if len(schema) != len(columns):
        raise InvalidArgument(f"column mismatch: table has {len(columns)} columns, input has {len(schema)}")
    for name in columns:
        if name not in schema.names:
            raise InvalidArgument(
                f"column mismatch: table has column {name!r}, input has {', '.join(map(repr, schema.names))}"
            )
        expected = known.field(name)
        if schema.field(name).type != expected.type:
            raise InvalidArgument(
                f"column mismatch: column {name!r} is {expected.type}, input has {schema.field(name).type}"
            )
    return (batch.select(list(columns)) for batch in reader)


def _with_row_ids(reader: BatchReader, known: pa.Schema, ids: list[int]) -> list[pa.RecordBatch]:
    """The new rows with their row ids. All rows are read and counted before anything changes."""
    batches, seen = [], 0
    row_ids = _row_ids(ids)
    for batch in _in_table_order(reader, known):
        part = row_ids.slice(seen, batch.num_rows)
        seen += batch.num_rows
        if seen <= len(ids):  # surplus rows are only counted
            batches.append(batch.append_column("rowid", part))
    if seen != len(ids):
        raise InvalidArgument(f"row_ids count ({len(ids)}) does not match input rows ({seen})")
    return batches


def _run_command(
    opened: _Opened, operation: Operation, batches: Iterable[pa.RecordBatch], *, returning: bool
) -> Result:
    """Run a statement. Only an INSERT without `returning` is streamed.

    Everything else is one batch: tables get several batches in several calls, and a failure would leave the changes of
    the earlier ones behind.
    """
    if returning or operation != "insert":
        collected = list(batches)
        batches = [pa.concat_batches(collected)] if collected else []
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        return Result("success", 0, _encoded([], opened.schema) if returning else None)
    statement = run_statement(
        opened.table, opened.schema, operation, first.schema, _chained(first, rest), returning=returning
    )
    text = None
    with contextlib.closing(statement):
        while True:
            try:
                text = _encoded([next(statement)], opened.schema)  # before the commit: it may fail
            except StopIteration as end:
                return Result("success", end.value, text)


def _chained(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


def _encoded(batches: list[pa.RecordBatch], known: pa.Schema) -> str:
    schema = pa.schema([known.field(name) for name in visible_columns(known)])
    nulls = NullColumns()
    converted = [
        SchemaAdapter.plan(schema, batch.schema, None, what="RETURNING").apply(batch, nulls) for batch in batches
    ]
    return base64.b64encode(arrow_stream(schema, converted)).decode()


JSON_ACTIONS: Final[dict[str, Any]] = {"delete": delete_by_ids}
