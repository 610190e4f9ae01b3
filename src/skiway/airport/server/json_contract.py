"""INSERT, UPDATE and DELETE with the JSON contract, in which there is no lock-step.

DoPut is for INSERT and UPDATE, the action `delete` for DELETE. The descriptor of a DoPut is a JSON command that names the table. An
UPDATE also lists the ids of the rows to update, one for each row of the stream in the same order. The response has the number of
affected rows and, with `returning`, the rows as an Arrow stream in base64.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import chain
from typing import Any, Literal

import msgspec
import pyarrow as pa
from msgspec import structs

from skiway.airport.catalog import Catalog, Table
from skiway.airport.request import Request, call_of
from skiway.airport.server.exchange import run_statement, visible_columns
from skiway.airport.server.host import Host
from skiway.airport.server.scans import NullColumns, SchemaAdapter
from skiway.airport.tables import (
    find_rowid_column,
)
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.protocol import WriteOutcome, arrow_stream, encode
from skiway.errors import (
    InvalidArgument,
    NotFound,
    PreconditionFailed,
    Unsupported,
)
from skiway.model.flight_pb2 import FlightDescriptor, PutResult


class Command(msgspec.Struct, frozen=True):
    """A command from a client."""

    schema_name: str
    table_name: str
    operation: Literal["insert", "update", "delete"] = "delete"
    row_ids: list[int] = []
    returning: bool = False
    catalog_name: str = ""


def do_put(
    host: Host, request: Request, descriptor: FlightDescriptor, reader: BatchReader
) -> Generator[bytes, None, bytes]:
    """Run an INSERT or UPDATE. The only PutResult is sent after the end of the stream."""
    command = _command(descriptor)
    call = call_of(request)
    call.operation = command.operation

    def rows(known: pa.Schema) -> Iterable[pa.RecordBatch]:
        if command.operation == "update":
            return _with_row_ids(reader, known, command.row_ids)
        return _in_table_order(reader, known)

    outcome = _run_command(host, request, command, rows)
    call.rows_in = reader.rows
    yield from ()  # a generator, so that the stream is read within the call
    response: bytes = PutResult(app_metadata=encode(outcome)).SerializeToString()
    return response


def delete_by_ids(host: Host, request: Request, body: bytes) -> bytes:
    """Delete rows by their ids. The body and the response are JSON."""
    command = structs.replace(_decoded(body, "delete"), operation="delete")
    call_of(request).rows_in = len(command.row_ids)

    def ids(_: pa.Schema) -> Iterable[pa.RecordBatch]:
        return [pa.record_batch([_row_ids(command.row_ids)], names=["rowid"])]

    response = structs.asdict(_run_command(host, request, command, ids))
    if not command.returning:
        del response["returning_data"]
    return msgspec.json.encode(response)


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


def _table_of(catalog: Catalog, command: Command) -> Table:
    schema = catalog.schema(command.schema_name)
    if schema is None:
        raise NotFound(f"schema '{command.schema_name}' not found")
    table = schema.table(command.table_name)
    if table is not None:
        return table
    name = f"'{command.schema_name}.{command.table_name}'"
    if schema.table_ref(command.table_name) is not None:
        raise PreconditionFailed(
            f"table {name} does not support {command.operation.upper()}: it is a table reference, which is read-only"
        )
    raise NotFound(f"table {name} not found")


def _check_row_ids(table: Table, known: pa.Schema, command: Command) -> None:
    operation = command.operation.upper()
    if find_rowid_column(known) is None:
        raise PreconditionFailed(f"table '{table.name}' does not support {operation} (no rowid)")
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
    host: Host, request: Request, command: Command, rows: Callable[[pa.Schema], Iterable[pa.RecordBatch]]
) -> WriteOutcome:
    """Run a command on `rows`, which get the schema of the table as it was when the statement began."""
    request, catalog = host.open_catalog(
        request, command.catalog_name, schema=command.schema_name, name=command.table_name
    )
    with host.unit_of_work(request, catalog):
        table = _table_of(catalog, command)
        known = table.schema
        if command.operation != "insert":
            _check_row_ids(table, known, command)
        return _run_on(table, known, command, rows(known))


def _run_on(table: Table, known: pa.Schema, command: Command, batches: Iterable[pa.RecordBatch]) -> WriteOutcome:
    """Run a statement. Only an INSERT without `returning` is streamed.

    Everything else is one batch: tables get several batches in several calls, and a failure would leave the changes of
    the earlier ones behind.
    """
    if command.returning or command.operation != "insert":
        collected = list(batches)
        batches = [pa.concat_batches(collected)] if collected else []
    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        return WriteOutcome("success", 0, _encoded([], known) if command.returning else None)
    rows = chain([first], rest)
    statement = run_statement(table, known, command.operation, first.schema, rows, returning=command.returning)
    text = None
    with contextlib.closing(statement):
        while True:
            try:
                text = _encoded([next(statement)], known)  # before the commit: it may fail
            except StopIteration as end:
                return WriteOutcome("success", end.value, text)


def _encoded(batches: list[pa.RecordBatch], known: pa.Schema) -> str:
    schema = pa.schema([known.field(name) for name in visible_columns(known)])
    nulls = NullColumns()
    converted = [
        SchemaAdapter.plan(schema, batch.schema, None, what="RETURNING").apply(batch, nulls) for batch in batches
    ]
    return base64.b64encode(arrow_stream(schema, converted)).decode()
