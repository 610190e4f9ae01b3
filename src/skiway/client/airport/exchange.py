"""Rows sent to the server: over DoExchange in lock-step, as DuckDB does, or over DoPut with the JSON contract.

The JSON contract is a simpler protocol for programs that are not Airport clients. Each statement is described by a JSON command.
Columns must have exactly the table's types, row ids are a list, and the rows of RETURNING arrive in one message.
"""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import msgspec
import pyarrow as pa

from skiway.airport.conversion import cast_array
from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import type_metadata
from skiway.airport.wire.frames import BatchReader, FrameWriter, metadata_frame
from skiway.airport.wire.protocol import TotalChanged, WriteOutcome, decode
from skiway.airport.wire.sizes import TRUSTED_DECODED_BYTES
from skiway.client.airport.calls import ROWID, Calls, Table, TableName, Trace, TransactionContext, name_splits
from skiway.client.connection import parse_message
from skiway.client.errors import blame_server
from skiway.errors import ConstraintViolation, Internal, InvalidArgument, NullRowId
from skiway.model.flight_pb2 import FlightDescriptor, PutResult

Batches = Iterator[pa.RecordBatch]

VECTOR: Final = 2048  # the largest batch that DuckDB sends
FINISHED: Final = b"chunk_finished"
MARKS: Final = (b"chunk_continues", FINISHED)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of a statement that writes: the number of affected rows and, with `returning`, the rows themselves."""

    count: int
    rows: pa.Table | None = None


class Exchange:
    """One DoExchange call. The constructor opens it and waits for the server's schema; always close it.

    Closing an exchange before its end cancels it, and the server rolls the statement back.
    """

    def __init__(
        self, calls: Calls, trace: Trace, operation: str, *, schema: pa.Schema, returning: bool, opening: bytes = b""
    ) -> None:
        self._location = calls.connection.location.text
        self._operation = f"DoExchange ({operation})"
        self._stream = calls.exchange(trace, operation, returning=returning)
        self._writer = FrameWriter(schema)
        self._reader = BatchReader(iter(self._stream), max_decoded_bytes=TRUSTED_DECODED_BYTES)
        self._responses = self._reader.with_metadata()
        try:
            self._begin(trace.descriptor.SerializeToString(), opening)
        except BaseException:
            self.close()
            raise

    def _begin(self, descriptor: bytes, opening: bytes) -> None:
        self._stream.send(metadata_frame(descriptor=descriptor))
        if opening:
            self._stream.send(metadata_frame(opening))
        self._stream.send(self._writer.begin(descriptor=descriptor))
        with blame_server(self._location, self._operation):
            self.schema = self._reader.schema

    def send(self, batch: pa.RecordBatch) -> None:
        """Send a batch."""
        for frame in self._writer.batch(batch):
            self._stream.send(frame)

    def send_and_receive(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Send a batch and return the response, which must have the same number of rows."""
        self.send(batch)
        response, _ = self._next()
        if response is None or response.num_rows != batch.num_rows:
            count = "no" if response is None else str(response.num_rows)
            raise Internal(
                f"{self._location} returned {count} rows for a batch of {batch.num_rows}; it must return as many"
            )
        return response

    def receive_chunk(self) -> Iterator[pa.RecordBatch]:
        """Yield the output of a table function for the last batch that was sent."""
        mark = b""
        while mark != FINISHED:
            response, mark = self._next()
            if response is None or mark not in MARKS:
                raise Internal(f"{self._location} sent a batch marked {mark!r}; expected one of {MARKS}")
            yield response

    def half_close(self) -> None:
        """Tell the server that no more rows follow."""
        self._stream.half_close()

    def finish(self) -> None:
        """Wait for the end of the call, ignoring further responses."""
        self._stream.half_close()
        for _ in self._stream:
            pass

    def commit(self) -> int:
        """End the statement; return the number of affected rows once the server has committed it."""
        self._stream.half_close()
        response, metadata = self._next()
        if response is not None:
            raise Internal(f"{self._location} sent rows instead of the number of changed rows")
        with blame_server(self._location, self._operation):
            changed = decode(metadata, TotalChanged, "the end of an exchange").total_changed
        self.finish()
        return changed

    def close(self) -> None:
        """Cancel the exchange, unless it has ended."""
        self._stream.close()

    def _next(self) -> tuple[pa.RecordBatch | None, bytes]:
        with blame_server(self._location, self._operation):
            response = next(self._responses, None)
        if response is None:
            raise Internal(
                f"{self._location} ended {self._operation} before its response was complete", key="answer.missing"
            )
        return response


def to_batches(rows: Any) -> tuple[pa.Schema | None, Batches]:
    """Return schema and batches of the caller's rows; the schema of an empty iterable is None.

    `rows` is an object with `__arrow_c_stream__`, a batch, or an iterable of batches.
    """
    if isinstance(rows, pa.RecordBatch):
        return rows.schema, iter([rows])
    if hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
        return reader.schema, iter(reader)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InvalidArgument(f"rows must be Arrow data or batches of it, not {_kind(rows)}: try pyarrow.table(…)")
    batches = _checked(iter(rows))
    first = next(batches, None)
    return (None, iter(())) if first is None else (first.schema, chain([first], batches))


def _checked(batches: Iterator[Any]) -> Batches:
    schema = None
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidArgument(f"rows must be Arrow data or batches of it, but the iterable yields a {_kind(batch)}")
        schema = schema or batch.schema
        if not batch.schema.equals(schema):
            raise InvalidArgument(
                f"all batches must have the same schema: the first has {', '.join(schema.names)}, "
                f"a later one {', '.join(batch.schema.names)}, or other types"
            )
        yield batch


def _kind(value: Any) -> str:
    return type(value).__name__


def in_vectors(batches: Iterable[pa.RecordBatch]) -> Batches:
    """Split batches to the size of DuckDB's vectors."""
    for batch in batches:
        for start in range(0, batch.num_rows, VECTOR):
            yield batch.slice(start, VECTOR)


@dataclass(frozen=True)
class OutgoingColumns:
    """The columns of a table that a statement sends: `fields` as in the table, `schema` as on the wire.

    On the wire all fields are nullable, and their metadata is reduced to the extension type.
    """

    table: Table
    fields: tuple[pa.Field, ...]

    @classmethod
    def of(cls, table: Table, names: Iterable[str]) -> OutgoingColumns:
        """Return the columns called `names`, in this order; `rowid` is the row id."""
        positions = [table.position(name) for name in names]
        return cls(
            table,
            tuple(
                table.schema.field(position).with_name(ROWID)
                if position == table.rowid
                else table.schema.field(position)
                for position in positions
            ),
        )

    @property
    def schema(self) -> pa.Schema:
        """The schema that is sent to the server."""
        return pa.schema([pa.field(f.name, f.type, metadata=type_metadata(f) or None) for f in self.fields])

    def conform(self, schema: pa.Schema | None, batches: Iterable[pa.RecordBatch]) -> Batches:
        """Convert the caller's batches to these columns, matched by name; missing columns are NULL."""
        # Not in the generator, so that wrong names surface before anything is sent.
        sources = self._sources(self.schema if schema is None else schema)
        return (
            self._conform_batch({name: batch.column(i) for name, i in sources.items()}, batch.num_rows)
            for batch in batches
        )

    def _conform_batch(self, arrays: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        columns = [
            self.cast(arrays[field.name], field) if field.name in arrays else pa.nulls(rows, field.type)
            for field in self.fields
        ]
        return self.batch(columns)

    def batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """Return one batch of these columns; reject NULL row ids and NULLs in NOT NULL columns, as DuckDB does."""
        for field, column in zip(self.fields, columns, strict=True):
            if field.name == ROWID and column.null_count:
                raise NullRowId
            if not field.nullable and column.null_count:
                raise ConstraintViolation(
                    f"NOT NULL constraint failed: {self.table.name}.{field.name}",
                    key="not_null",
                    table=self.table.name,
                    column=field.name,
                )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """Cast an array to the type of `field`; raise `InvalidArgument` if a value does not fit."""
        try:
            return cast_array(column, field.type)
        except pa.ArrowException as error:
            raise InvalidArgument(
                f"cannot cast {column.type} to {field.type} for column {field.name!r} of {self.table}: {error}"
            ) from error

    def _sources(self, schema: pa.Schema) -> dict[str, int]:
        """The position of each column in the input."""
        sources: dict[str, int] = {}
        for index, name in enumerate(schema.names):
            position = self.table.position(name)
            spelled = ROWID if position == self.table.rowid else self.table.schema.field(position).name
            if spelled in sources:
                raise InvalidArgument(f"column {name!r} of {self.table} occurs twice in the input")
            if all(field.name != spelled for field in self.fields):
                raise InvalidArgument(f"column {name!r} of {self.table} cannot be set: the server assigns row ids")
            sources[spelled] = index
        return sources


class JsonWriter:
    """Statements of the JSON contract. Inside a `transaction()` they carry its id."""

    def __init__(self, calls: Calls, transaction: Callable[[], TransactionContext]) -> None:
        self._calls = calls
        self._transaction = transaction

    def insert(self, table: TableName, rows: Any, *, returning: bool = False) -> Written:
        """Insert rows, which must have all columns of the table in its types."""
        return self._put(_command(table, returning=returning, operation="insert"), rows)

    def update(self, table: TableName, row_ids: Sequence[int], rows: Any, *, returning: bool = False) -> Written:
        """Replace the rows with these ids by `rows`, one for each id, which must have all columns of the table."""
        return self._put(_command(table, returning=returning, operation="update", row_ids=_id_list(row_ids)), rows)

    def delete(self, table: TableName, row_ids: Sequence[int], *, returning: bool = False) -> Written:
        """Delete the rows with these ids."""
        body = self._text(_command(table, returning=returning, row_ids=_id_list(row_ids)))
        response = self._calls.plain_action("delete", body, self._headers())
        try:
            return self._written(msgspec.json.decode(response, type=WriteOutcome))
        except msgspec.DecodeError as error:
            raise Internal(f"{self._location} sent a malformed response to delete") from error

    @property
    def _location(self) -> str:
        return self._calls.connection.location.text

    def _headers(self) -> list[tuple[str, str]]:
        return self._transaction().headers(protocol.JSON_TRANSACTION_ID)

    def _text(self, command: dict[str, Any]) -> bytes:
        named = {**command, "catalog_name": self._calls.catalog} if self._calls.catalog else command
        return json.dumps(named).encode()

    def _put(self, command: dict[str, Any], rows: Any) -> Written:
        schema, batches = to_batches(rows)
        if schema is None:
            raise InvalidArgument("rows contain no batch: give at least an empty one, which defines the columns")
        descriptor = FlightDescriptor(type=FlightDescriptor.CMD, cmd=self._text(command)).SerializeToString()
        writer = FrameWriter(schema)
        with contextlib.closing(self._calls.put(self._headers())) as stream:
            stream.send(writer.begin(descriptor=descriptor))
            for batch in in_vectors(batches):
                for frame in writer.batch(batch):
                    stream.send(frame)
            stream.half_close()
            responses = list(stream)
        if not responses:
            raise Internal(f"{self._location} sent no result for DoPut", key="answer.missing")
        with blame_server(self._location, "DoPut"):
            return self._written(
                decode(parse_message(PutResult, responses[0], self._location).app_metadata, WriteOutcome, "DoPut")
            )

    def _written(self, outcome: WriteOutcome) -> Written:
        if outcome.returning_data is None:
            return Written(outcome.affected_rows)
        try:
            with pa.ipc.open_stream(base64.b64decode(outcome.returning_data)) as reader:
                return Written(outcome.affected_rows, reader.read_all())
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Internal(f"{self._location} returned rows that are not a base64-encoded Arrow stream") from error


def _command(table: TableName, *, returning: bool, **more: Any) -> dict[str, Any]:
    schema, name = name_splits(table)[0]
    return {"schema_name": schema, "table_name": name, "returning": returning, **more}


def _id_list(row_ids: Iterable[Any]) -> list[int]:
    """Return the ids as a list of integers."""
    ids = row_ids.to_pylist() if isinstance(row_ids, pa.Array | pa.ChunkedArray) else list(row_ids)
    if None in ids:
        raise NullRowId
    if any(not isinstance(row_id, int) or isinstance(row_id, bool) for row_id in ids):
        raise InvalidArgument("row ids must be integers")
    return ids
