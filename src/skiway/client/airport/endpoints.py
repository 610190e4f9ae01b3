"""Endpoints of a scan: tickets to redeem, or files that the client reads itself.

Instead of a stream, a server may return calls of DuckDB's table functions. Running such a call requires the `duckdb` package,
and only functions that read files are allowed.
"""

from __future__ import annotations

import base64
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import pyarrow as pa

from skiway import extras
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import Binary, binary, decode
from skiway.errors import Internal, InvalidArgument, PermissionDenied, Unsupported
from skiway.model.flight_pb2 import FlightEndpoint

__all__ = ["Endpoint", "FunctionCall", "read_endpoint"]

FUNCTION_CALL: Final = "application/x-msgpack-duckdb-function-call"
FILE: Final = "application/msgpack"

# A server must not be able to make its clients run arbitrary functions.
READERS: Final = frozenset(
    {
        "read_parquet",
        "parquet_scan",
        "read_csv",
        "read_csv_auto",
        "read_json",
        "read_json_auto",
        "read_ndjson",
        "read_text",
        "read_blob",
        "iceberg_scan",
        "delta_scan",
    }
)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of one of DuckDB's table functions, with its arguments as Python values."""

    name: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def run(self, columns: Sequence[str]) -> Generator[pa.RecordBatch]:
        """Run the function in DuckDB and yield the given columns of its rows."""
        if self.name not in READERS:
            raise PermissionDenied(
                f"the server asks the client to run {self.name}(), which is not one of the file readers "
                f"{', '.join(sorted(READERS))}"
            )
        with extras.needed("memory", f"a table whose files the client reads by itself ({self.name})"):
            import duckdb
        with duckdb.connect(":memory:") as database:
            try:
                reader = database.execute(self._sql(columns), [*self.arguments, *self.named.values()])
                yield from reader.to_arrow_reader()
            except duckdb.Error as error:
                raise Internal(f"DuckDB could not run {self.name}: {error}") from error

    def _sql(self, columns: Sequence[str]) -> str:
        given = ["?"] * len(self.arguments) + [f"{_quoted(name)} = ?" for name in self.named]
        return f"SELECT {', '.join(map(_quoted, columns)) or '1'} FROM {self.name}({', '.join(given)})"  # noqa: S608


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


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
    if uri == headers.REUSE_CONNECTION:
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
