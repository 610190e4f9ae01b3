"""What a scan returns: endpoints to read from, a stream of rows, and the statistics of columns.

An endpoint is a ticket to redeem, or files that the client reads itself.

Instead of a stream, a server may return calls of DuckDB's table functions. Running such a call requires the `duckdb` package,
and only functions that read files are allowed.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import msgspec
import pyarrow as pa

from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import FILE_READERS, identifier
from skiway.airport.wire.protocol import Binary, binary, decode
from skiway.errors import Internal, InvalidArgument, PermissionDenied, Unsupported
from skiway.foundation import extras
from skiway.model.flight_pb2 import FlightEndpoint

FUNCTION_CALL: Final = "application/x-msgpack-duckdb-function-call"
FILE: Final = "application/msgpack"
BATCH_ROWS: Final = 65_536


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of one of DuckDB's table functions, with its arguments as Python values."""

    name: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def run(self, columns: Sequence[str]) -> Generator[pa.RecordBatch]:
        """Run the function in DuckDB and yield the given columns of its rows."""
        if self.name not in FILE_READERS:  # a server must not make its clients run arbitrary functions
            raise PermissionDenied(
                f"the server asks the client to run {self.name}(), which is not one of the file readers "
                f"{', '.join(sorted(FILE_READERS))}"
            )
        with extras.needed("memory", f"a table whose files the client reads by itself ({self.name})"):
            import duckdb
        with duckdb.connect(":memory:") as database:
            try:
                rows = database.sql(self._sql(columns), params=[*self.arguments, *self.named.values()])
                yield from arrow_reader(rows, BATCH_ROWS)
            except duckdb.Error as error:
                raise Internal(f"DuckDB could not run {self.name}: {error}") from error

    def _sql(self, columns: Sequence[str]) -> str:
        arguments = ["?"] * len(self.arguments) + [f"{identifier(name)} = ?" for name in self.named]
        return f"SELECT {', '.join(map(identifier, columns)) or '1'} FROM {self.name}({', '.join(arguments)})"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A part of a scan: a `ticket` to redeem, on this connection or at `location`, or a function `call` to run."""

    ticket: bytes
    location: str | None = None
    call: FunctionCall | None = None


class _FunctionCallUri(msgspec.Struct, frozen=True):
    function_name: str
    data: Binary


class _FileUri(msgspec.Struct, frozen=True):
    format: str
    uri: str


def read_endpoint(message: FlightEndpoint) -> Endpoint:
    """Parse an endpoint. Like DuckDB, this uses its first location only."""
    if not message.location:
        raise InvalidArgument("an endpoint has no location")
    uri = message.location[0].uri
    if uri == protocol.REUSE_CONNECTION:
        return Endpoint(message.ticket.ticket)
    if uri.startswith("data:"):
        return Endpoint(message.ticket.ticket, call=_function_call(uri))
    return Endpoint(message.ticket.ticket, location=uri)


def _function_call(uri: str) -> FunctionCall:
    media_type, comma, text = uri.removeprefix("data:").partition(",")
    if not comma or not media_type.endswith(";base64"):
        raise InvalidArgument("a data: location must have the form 'data:<type>;base64,<text>'")
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidArgument("the content of a data: location is not base64") from error
    match media_type.removesuffix(";base64"):
        case t if t == FUNCTION_CALL:
            return _packed_call(decode(content, _FunctionCallUri, "a function call"))
        case t if t == FILE:
            return _file(decode(content, _FileUri, "a file location"))
        case other:
            raise InvalidArgument(f"a data: location has the type {other!r}; supported are {FUNCTION_CALL} and {FILE}")


def _packed_call(packed: _FunctionCallUri) -> FunctionCall:
    try:
        with pa.ipc.open_stream(binary(packed.data)) as reader:
            batch = reader.read_next_batch()
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
        raise InvalidArgument(f"the arguments of {packed.function_name} are not an Arrow stream") from error
    if batch.num_rows != 1:
        raise InvalidArgument(f"the arguments of {packed.function_name} are {batch.num_rows} rows; expected one")
    values = {name: batch.column(i)[0].as_py() for i, name in enumerate(batch.schema.names)}
    by_position = sorted((name for name in values if name.startswith("arg_")), key=lambda name: (len(name), name))
    return FunctionCall(
        packed.function_name,
        tuple(values[name] for name in by_position),
        {name: value for name, value in values.items() if not name.startswith("arg_")},
    )


def _file(packed: _FileUri) -> FunctionCall:
    if packed.format != "parquet":
        raise Unsupported(f"the server refers to a file in the format {packed.format!r}; only parquet is supported")
    return FunctionCall("parquet_scan", (packed.uri,))


class Rows:
    """A stream of record batches from the server. Use it once, from one thread at a time.

    It has the interface of a `pyarrow.RecordBatchReader` and works wherever Arrow streams are accepted:
    `pyarrow.table(rows)`, Polars, DuckDB. Unlike pyarrow's reader, `close()` cancels the call on the server.
    """

    def __init__(self, schema: pa.Schema, batches: Generator[pa.RecordBatch]) -> None:
        self.schema = schema
        self._batches = batches

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self._batches

    def read_next_batch(self) -> pa.RecordBatch:
        """Return the next batch; raise `StopIteration` after the last."""
        return next(self._batches)

    def read_all(self) -> pa.Table:
        """Return all remaining rows."""
        return pa.Table.from_batches(self._batches, self.schema)

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the stream as pyarrow's own reader, which cancels the call when it is garbage collected."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Export the stream through Arrow's C stream interface."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def close(self) -> None:
        """Stop reading and cancel the call on the server."""
        self._batches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def first_rows(batches: Iterator[pa.RecordBatch], limit: int) -> Generator[pa.RecordBatch]:
    """Yield the first rows, and close the stream as soon as they are complete."""
    left = limit
    with contextlib.ExitStack() as stack:
        if isinstance(batches, Generator):
            stack.enter_context(contextlib.closing(batches))
        for batch in batches:
            yield batch.slice(0, left)
            left -= min(left, batch.num_rows)
            if not left:
                return


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column, as the server reports them; None means unknown.

    `min` and `max` are bounds: no value lies outside of them, but they need not occur themselves. A bound that Python
    cannot represent, such as a date of the year 10000, is an Arrow scalar.
    """

    min: Any
    max: Any
    has_null: bool
    has_not_null: bool
    distinct_count: int | None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


def read_statistics(data: bytes, column: str) -> ColumnStatistics:
    """Parse the response to `column_statistics`, an Arrow stream of one row."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
            batch.validate(full=True)
            row = {
                name: _python_value(column[0]) for name, column in zip(batch.schema.names, batch.columns, strict=True)
            }
    except (pa.ArrowException, OSError, ValueError, StopIteration, IndexError) as error:
        raise InvalidArgument(f"the statistics of {column!r} are not an Arrow stream of one row") from error
    missing = {"min", "max", "has_null", "has_not_null", "distinct_count"} - row.keys()
    if missing:
        raise InvalidArgument(f"the statistics of {column!r} lack {min(missing)!r}")
    return ColumnStatistics(
        min=row["min"],
        max=row["max"],
        has_null=bool(row["has_null"]),
        has_not_null=bool(row["has_not_null"]),
        distinct_count=row["distinct_count"] or None,  # the protocol uses zero for "unknown"
        max_string_length=row.get("max_string_length"),
        contains_unicode=row.get("contains_unicode"),
    )


def _python_value(value: pa.Scalar) -> Any:
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        return value


def arrow_reader(relation: Any, rows: int) -> pa.RecordBatchReader:
    """Return the rows of a relation in batches of this size."""
    read = relation.to_arrow_reader if hasattr(relation, "to_arrow_reader") else relation.fetch_arrow_reader
    return read(rows)
