"""Writing with JSON commands and without lock-step: DoPut for INSERT and UPDATE, the action `delete` for DELETE.

The descriptor of a DoPut is a JSON command that names the table. An UPDATE also lists the ids of the rows to update, one
for each row of the stream in the same order. The response has the number of affected rows and, with `returning`, the rows
as an Arrow stream in base64.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from skiway.airport.catalog import Catalog, Table
from skiway.airport.request import Request, call_of
from skiway.airport.scan import find_rowid_column
from skiway.airport.server.host import Host
from skiway.airport.server.streams import NullColumns, SchemaAdapter
from skiway.airport.server.writing import run, visible_columns
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.payloads import arrow_stream, encode
from skiway.airport.writing import Operation
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, Unsupported
from skiway.model.flight_pb2 import FlightDescriptor, PutResult

__all__ = ["JSON_ACTIONS", "do_put"]


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
        opened = _table(catalog, command)
        batches: Iterable[pa.RecordBatch]
        if command.operation == "update":
            _check_row_ids(opened, command)
            batches = _with_row_ids(reader, opened.schema, command.row_ids)
        else:
            batches = _in_table_order(reader, opened.schema)
        result = _run(opened, command.operation, batches, returning=command.returning)
    call.rows_in = reader.rows
    yield from ()  # a generator, so that the stream is read within the call
    response: bytes = PutResult(app_metadata=encode(result)).SerializeToString()
    return response


def delete(host: Host, request: Request, body: bytes) -> bytes:
    """Delete rows by their ids. The body and the response are JSON."""
    command = _decoded(body, "delete")
    call_of(request).rows_in = len(command.row_ids)
    request, catalog = _open(host, request, command)
    with host.unit_of_work(request, catalog):
        opened = _table(catalog, command)
        _check_row_ids(opened, command)
        ids = pa.record_batch([_row_ids(command.row_ids)], names=["rowid"])
        result = _run(opened, "delete", [ids], returning=command.returning)
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


def _table(catalog: Catalog, command: Command) -> _Opened:
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


def _run(opened: _Opened, operation: Operation, batches: Iterable[pa.RecordBatch], *, returning: bool) -> Result:
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
    statement = run(opened.table, opened.schema, operation, first.schema, _chained(first, rest), returning=returning)
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


JSON_ACTIONS: Final[dict[str, Any]] = {"delete": delete}
