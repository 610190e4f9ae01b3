"""The Airport protocol: the names of the headers and trailers of calls, and the bodies of actions.

Values of headers are strings unless the name ends in -bin.

Bodies are MessagePack, encoded with msgspec. DuckDB's client encodes every C++ string as a MessagePack `str`, even if it contains
protobuf or Arrow bytes. Such members have the type `Binary`: they are not decoded with the message, but by `binary()`, and
encoded by `packed()`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from skiway.errors import InvalidArgument

SERVICE: Final = "arrow.flight.protocol.FlightService"

# every call
USER_AGENT: Final = "airport-user-agent"
LOCATION: Final = "authority"  # the location as the user wrote it; ordinary metadata, not HTTP/2's :authority
SESSION_ID: Final = "airport-client-session-id"
AUTHORIZATION: Final = "authorization"

# calls that concern a catalog, scan, action or exchange
CATALOG: Final = "airport-catalog"
CORRELATION_ID: Final = "x-correlation-id"
ENGINE_KIND: Final = "x-engine-kind"
TRACE_ID: Final = "airport-trace-id"
FLIGHT_PATH: Final = "airport-flight-path"
ACTION_NAME: Final = "airport-action-name"
TRANSACTION_ID: Final = "airport-transaction-id"
JSON_TRANSACTION_ID: Final = "x-transaction-id"  # for clients of the JSON contract
AUTO_COMMIT: Final = "airport-auto-commit"  # Skiway's: "0" if the client ends its transaction itself
ROWS_FOLLOW: Final = "airport-rows-follow"  # Skiway's: "1" for a create_table that is followed by an INSERT
OPERATION: Final = "airport-operation"
RETURN_CHUNKS: Final = "return-chunks"
SKIP_RESULTS: Final = "airport-skip-producing-results"
JSON_FILTERS: Final = "airport-duckdb-json-filters"
LIST_CATALOG: Final = "airport-list-flights-filter-catalog"
LIST_SCHEMA: Final = "airport-list-flights-filter-schema"

# trailers from which Arrow clients learn more than the gRPC code
ARROW_STATUS: Final = "x-arrow-status"
ARROW_MESSAGE: Final = "x-arrow-status-message-bin"
ERROR_DETAILS: Final = "grpc-status-details-bin"
ERROR_CLASS: Final = "skiway-error"  # Skiway's: the class of the error in `skiway.errors`
ERROR_FACTS: Final = "skiway-error-bin"  # Skiway's: its key and parameters as JSON, where DuckDB reads no JSON

REUSE_CONNECTION: Final = "arrow-flight-reuse-connection://?"
DUCKDB_USER_AGENT: Final = "airport/20250723"


def can_carry(text: str) -> bool:
    """Whether a header can carry `text`, which must be printable ASCII. Other characters crash gRPC clients in C++."""
    return text.isascii() and text.isprintable()


def can_repeat(path: str) -> bool:
    """Whether a header can carry the path of a descriptor. Servers accept only a few kilobytes of headers."""
    return can_carry(path) and len(path) <= 4096


Binary = msgspec.Raw
T = TypeVar("T")

ROWID_COLUMN: Final = 0xFFFF_FFFF_FFFF_FFFF
MAX_UNPACKED: Final = 512 * 1024 * 1024

_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


def decode(data: bytes, kind: type[T], what: str) -> T:
    """Decode `data` as `kind`; `InvalidArgument` with the location of the error if it is malformed."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidArgument(f"malformed body of {what}: {error or type(error).__name__}") from error


def binary(raw: msgspec.Raw | None) -> bytes:
    """The bytes of a MessagePack `str`, `bin` or `nil`."""
    data = bytes(raw) if raw is not None else b""
    if not data or data == b"\xc0":
        return b""
    first = data[0]
    if 0xA0 <= first <= 0xBF:
        return data[1:]
    size = {0xD9: 1, 0xDA: 2, 0xDB: 4, 0xC4: 1, 0xC5: 2, 0xC6: 4}.get(first)
    if size is None:
        raise InvalidArgument(f"expected a MessagePack str or bin, found type byte 0x{first:02x}")
    return data[1 + size :]


def packed(data: bytes) -> msgspec.Raw:
    """Encode `data` as a MessagePack `str`, even if it is not UTF-8, as DuckDB's client does."""
    size = len(data)
    if size < 32:
        head = bytes([0xA0 | size])
    elif size < 1 << 8:
        head = b"\xd9" + size.to_bytes(1, "big")
    elif size < 1 << 16:
        head = b"\xda" + size.to_bytes(2, "big")
    else:
        head = b"\xdb" + size.to_bytes(4, "big")
    return msgspec.Raw(head + data)


def arrow_stream(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> bytes:
    """Encode batches as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


class Message(msgspec.Struct, frozen=True):
    """A MessagePack map. Unknown keys are ignored."""


# -- discovery --------------------------------------------------------------------------------------------------------


class CatalogRequest(Message, frozen=True):
    """The body of `list_schemas`, `catalog_version` and `create_transaction`."""

    catalog_name: str = ""


class VersionInfo(Message, frozen=True):
    """The response to `catalog_version`. Both members are always sent, otherwise DuckDB reads garbage."""

    catalog_version: int
    is_fixed: bool


class TransactionInfo(Message, frozen=True):
    """The response to `create_transaction`. Without an identifier, the client sends no transaction id."""

    identifier: str | None


class Contents(Message, frozen=True):
    """The location of the objects of a schema: inline, at a URL, or in ListFlights if nothing is set."""

    sha256: str = ""
    url: str | None = None
    serialized: bytes | None = None

    @classmethod
    def inline(cls, data: bytes) -> Contents:
        """Contents that are part of the response."""
        return cls(sha256=hashlib.sha256(data).hexdigest(), serialized=data)


class SchemaEntry(Message, frozen=True, kw_only=True):
    """A schema in the response to `list_schemas`."""

    name: str
    description: str = ""
    tags: dict[str, str] = {}
    contents: Contents
    is_default: bool | None = None


class CatalogRoot(Message, frozen=True, kw_only=True):
    """The response to `list_schemas`, in a compressed envelope."""

    contents: Contents = Contents()
    schemas: list[SchemaEntry]
    version_info: VersionInfo


class ObjectMetadata(Message, frozen=True):
    """The `app_metadata` of a FlightInfo, which describes a table or function."""

    type: str
    catalog: str
    schema: str
    name: str
    comment: str | None = None
    input_schema: bytes | None = None
    action_name: str | None = None
    description: str | None = None
    extra_data: bytes | None = None


class Stability(Message, frozen=True):
    """The `extra_data` of a scalar function."""

    stability: str


class CheckConstraints(Message, frozen=True):
    """The value of the schema metadata `check_constraints`."""

    constraints: list[str]


def seal(value: Any) -> bytes:
    """Encode a value in a compressed envelope: `[length, zstd(value)]`. The client allocates `length` bytes."""
    data = encode(value)
    return encode([len(data), pa.compress(data, codec="zstd", asbytes=True)])


def unseal(data: bytes, kind: type[T], what: str) -> T:
    """Decode the value in a compressed envelope."""
    length, compressed = decode(data, tuple[int, Binary], f"the envelope of {what}")
    if not 0 <= length <= MAX_UNPACKED:
        raise InvalidArgument(f"the envelope of {what} announces {length} bytes; at most {MAX_UNPACKED} are accepted")
    try:
        plain = pa.decompress(binary(compressed), decompressed_size=length, codec="zstd", asbytes=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InvalidArgument(f"the envelope of {what} announces {length} bytes, but has other contents") from error
    return decode(plain, kind, what)


# -- reading ----------------------------------------------------------------------------------------------------------


class ScanParameters(Message, frozen=True):
    """The scan in a request for `endpoints`."""

    json_filters: str = ""
    column_ids: list[int] = []
    table_function_parameters: Binary = Binary(b"\xa0")
    table_function_input_schema: Binary = Binary(b"\xa0")
    at_unit: str = ""
    at_value: str = ""


class EndpointsRequest(Message, frozen=True):
    """The body of `endpoints`."""

    descriptor: Binary
    parameters: ScanParameters


class FlightInfoRequest(Message, frozen=True):
    """The body of `flight_info`: a table at a point in time."""

    descriptor: Binary
    at_unit: str = ""
    at_value: str = ""


class TableFunctionRequest(Message, frozen=True):
    """The body of `table_function_flight_info`."""

    descriptor: Binary
    parameters: Binary = Binary(b"\xa0")
    table_input_schema: Binary = Binary(b"\xa0")
    at_unit: str = ""
    at_value: str = ""


class StatisticsRequest(Message, frozen=True):
    """The body of `column_statistics`."""

    flight_descriptor: Binary
    column_name: str
    type: str = ""


class FunctionCallUri(Message, frozen=True):
    """The content of a `data:` location: a table function for the client to run."""

    function_name: str
    data: bytes


class Progress(Message, frozen=True):
    """The `app_metadata` of a scanned batch."""

    progress: float


class TypedError(Message, frozen=True):
    """The details of an error that DuckDB shows as one of its own error types."""

    exception_type: str
    message: str


# -- writing and functions --------------------------------------------------------------------------------------------


class TotalChanged(Message, frozen=True):
    """The last message of an exchange that writes."""

    total_changed: int


class WriteOutcome(Message, frozen=True):
    """The response to a command of the JSON contract. `returning_data` is an Arrow stream in base64."""

    status: str
    affected_rows: int
    returning_data: str | None = None


class InOutParameters(Message, frozen=True):
    """The parameters of a table function over rows, which precede the schema of the rows."""

    json_filters: str = ""
    column_ids: list[int] = []
    parameters: Binary = Binary(b"\xa0")
    at_unit: str = ""
    at_value: str = ""


class TransactionRequest(Message, frozen=True):
    """The body of `get_transaction_status`, `commit_transaction` and `rollback_transaction`."""

    transaction_id: str = ""
    catalog_name: str = ""


class TransactionState(Message, frozen=True):
    """The response to `get_transaction_status`, `commit_transaction` and `rollback_transaction`."""

    status: str
    exists: bool


# -- DDL --------------------------------------------------------------------------------------------------------------


class CreateSchemaRequest(Message, frozen=True):
    """The body of `create_schema`."""

    catalog_name: str
    schema: str
    comment: str | None = None
    tags: dict[str, str] | None = None


class DropRequest(Message, frozen=True):
    """The body of `drop_schema` and `drop_table`."""

    catalog_name: str
    name: str
    schema_name: str = ""
    type: str = ""
    ignore_not_found: bool = False


class CreateTableRequest(Message, frozen=True):
    """The body of `create_table`. DuckDB does not send the order of the columns of a composite key."""

    catalog_name: str
    schema_name: str
    table_name: str
    arrow_schema: Binary
    on_conflict: str = "error"
    not_null_constraints: list[int] = []
    unique_constraints: list[int] = []
    check_constraints: list[str] = []
    primary_key_columns: list[str] = []
    unique_columns: list[str] = []
    multi_key_primary_keys: list[str] = []
    extra_constraints: list[str] = []


class AlterRequest(Message, frozen=True):
    """The body of the actions for ALTER TABLE. Each action uses some of the members."""

    catalog: str
    schema: str
    name: str
    ignore_not_found: bool = False
    new_table_name: str = ""
    column_schema: Binary = Binary(b"\xa0")
    if_column_not_exists: bool = False
    removed_column: str = ""
    if_column_exists: bool = False
    cascade: bool = False
    old_name: str = ""
    new_name: str = ""
    expression: str = ""
    column_name: str = ""
    constraint: str = ""
    column_path: list[str] = []
    field_name: str = ""  # Skiway's: DuckDB does not send the name of a new field
    if_field_not_exists: bool = False
