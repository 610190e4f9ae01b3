"""Descriptors, which name the object of a call, bindings, and tickets, which DoGet redeems for a stream.

The descriptor of a table is the PATH `[catalog, schema, table]`, so that users can write
`airport_take_flight(location, ['demo', 'sales', 'people'])`. Listings add `table` and a binding, which says which schema
of the table the client knows. A function adds its kind and its signature, which distinguishes overloads. The path contains
the catalog because clients before DuckDB 1.5 do not send it in a header.

DuckDB repeats the path in a header. If the path is too long for a header, or has characters that a header cannot carry,
the same parts are sent as a command instead, a JSON list, which DuckDB does not repeat. Any other command is for catalogs that
answer commands.

A ticket is opaque to clients: a version byte, the payload, and a MAC of both under the server's key. It says what to
scan but grants no access: the caller is authorized again when the ticket is redeemed.

A client learns the columns of a table when it attaches, and those of a function when it plans a query. It reads batches by
position and does not check them: other columns than it expects are wrong values, or crash it. Whatever a client sends
therefore says which schema it knows:

- The address of a table ends with its binding: a fingerprint of its schema, or the table's own (`Bindable`).
- A ticket has the fingerprint of the schema that its columns were chosen from.
- The address of a function has no room for it, nor has one that a user wrote, because the client compares them. The
  server remembers what it announced under such an address, by the id of the scan that the client sends with every call.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Final, Generic, Literal, TypeVar

import msgspec
import pyarrow as pa
from google.protobuf.message import DecodeError

from skiway.airport.tables import IS_ROWID, ROWID, find_rowid_column
from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import type_metadata, with_plain_values, without_dictionaries
from skiway.airport.wire.frames import per_schema
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

# DuckDB plans UPDATE and DELETE only for tables with row ids; without, it fails with an internal error and must be
# restarted. Tables that have none announce one that is always NULL, in the smallest type, and the server rejects the
# statement.
_NO_ROW_IDS: Final = pa.field(ROWID, pa.bool_(), metadata={IS_ROWID: b"1"})


@per_schema
def as_listed(schema: pa.Schema) -> pa.Schema:
    """The schema under which a listing announces a table: with a row id, and without dictionaries inside of columns."""
    listed = pa.schema([field.with_type(with_plain_values(field.type)) for field in schema], metadata=schema.metadata)
    if find_rowid_column(schema) is None and all(name.lower() != ROWID for name in schema.names):
        listed = listed.append(_NO_ROW_IDS)
    return schema if listed.equals(schema, check_metadata=True) else listed


@per_schema
def as_plain(schema: pa.Schema) -> pa.Schema:
    """The schema without dictionaries, which DuckDB's client resolves only in columns of the tables of a listing."""
    plain = pa.schema([field.with_type(without_dictionaries(field.type)) for field in schema], metadata=schema.metadata)
    return schema if plain.equals(schema) else plain


@per_schema
def fingerprint(schema: pa.Schema) -> str:
    """A short text that is equal for schemas that look the same to clients: names, types, order and NOT NULL.

    Comments, defaults and constraints may change without it.
    """
    kept = pa.schema([field.with_metadata(dict(sorted(type_metadata(field).items())) or None) for field in schema])
    rowid = find_rowid_column(schema)
    data = kept.serialize().to_pybytes() + repr(rowid).encode()
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def table_changed(path: object, how: str) -> PreconditionFailed:
    """The error for a client that knows another schema of a table."""
    return PreconditionFailed(
        f"table {str(path)!r}: the table changed ({how}): DETACH and ATTACH again", key="table.changed", table=str(path)
    )


def function_changed(path: object) -> PreconditionFailed:
    """The error for a client that planned a query with another schema of a function."""
    return PreconditionFailed(
        f"function {path}: its columns changed since the query was planned: run the query again", key="function.changed"
    )


class Announcements:
    """The fingerprints that were announced for addresses without a binding; the oldest are forgotten first.

    It does not use `skiway.foundation.cache`, whose library a plain install does not have.
    """

    def __init__(self, size: int = 50_000) -> None:
        self._lock = threading.Lock()
        self._size = size
        self._known: OrderedDict[Hashable, str] = OrderedDict()

    def remember(self, key: Hashable, schema: pa.Schema) -> None:
        """Remember that `schema` was announced under `key`."""
        announced = fingerprint(schema)
        with self._lock:
            self._known[key] = announced
            self._known.move_to_end(key)
            while len(self._known) > self._size:
                self._known.popitem(last=False)

    def contradict(self, key: Hashable, schema: pa.Schema) -> bool:
        """Whether another schema than `schema` was announced under `key`; False if it is not known."""
        with self._lock:
            known = self._known.get(key)
        return known is not None and known != fingerprint(schema)


Kind = Literal["table", "scalar_function", "table_function", "command"]

DATABASES: Final = "__databases"  # the path that DuckDB's airport_databases() reads
VERSION: Final = b"\x01"
MAC_SIZE: Final = 16


class ObjectPath(msgspec.Struct, frozen=True, array_like=True):
    """The address of a table or function. `catalog` is None if only the headers name it.

    `signature` has the parameter types of a function, or the binding of a table.
    """

    catalog: str | None
    schema: str
    name: str
    kind: Kind = "table"
    signature: str = ""

    def descriptor(self) -> FlightDescriptor:
        """The path as a Flight descriptor that every client can send back."""
        if self.kind == "command":
            return FlightDescriptor(type=FlightDescriptor.CMD, cmd=self.name.encode())
        parts = [self.catalog or "", self.schema, self.name]
        if self.kind != "table" or self.signature:
            parts += [self.kind, self.signature]
        if protocol.can_repeat("/".join(parts)):
            return FlightDescriptor(type=FlightDescriptor.PATH, path=parts)
        return FlightDescriptor(type=FlightDescriptor.CMD, cmd=json.dumps(parts, ensure_ascii=False).encode())

    @property
    def label(self) -> str:
        """The name of the object for logs. The text of a command may be long."""
        return "command" if self.kind == "command" else self.name

    def __str__(self) -> str:
        return "the command" if self.kind == "command" else f"{self.schema}.{self.name}"


def parse_descriptor(data: bytes) -> FlightDescriptor:
    """Parse a serialized descriptor."""
    try:
        return FlightDescriptor.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(
            "malformed FlightDescriptor: not a valid protobuf message, or a name is not UTF-8"
        ) from error


def flight_info_of(
    descriptor: FlightDescriptor, schema: pa.Schema, *, rows: int | None = None, metadata: bytes = b""
) -> FlightInfo:
    """The FlightInfo of an object, with the expected number of rows, if known, and metadata for Airport clients."""
    return FlightInfo(
        schema=schema.serialize().to_pybytes(),
        flight_descriptor=descriptor,
        total_records=-1 if rows is None else rows,
        total_bytes=-1,
        app_metadata=metadata,
    )


def object_path(descriptor: FlightDescriptor) -> ObjectPath:
    """The object that a descriptor names."""
    parts = _parts(descriptor)
    if not parts:
        return _command_path(descriptor)
    match parts:
        case [schema, name]:
            return ObjectPath(None, schema, name)
        case [catalog, schema, name]:
            return ObjectPath(catalog, schema, name)
        case [catalog, schema, name, ("table" | "scalar_function" | "table_function") as kind, signature]:
            return ObjectPath(catalog, schema, name, kind, signature)
        case _:
            raise InvalidArgument(f"invalid descriptor path {parts!r}: name a table as [catalog, schema, table]")


def _command_path(descriptor: FlightDescriptor) -> ObjectPath:
    """The path of a command: its name is the text."""
    try:
        text = descriptor.cmd.decode() if descriptor.type == FlightDescriptor.CMD else ""
    except UnicodeDecodeError:
        text = ""
    if not text.strip():
        raise not_a_path()
    return ObjectPath(None, "", text, "command")


def not_a_path() -> InvalidArgument:
    """The error for a descriptor that names no object."""
    return InvalidArgument("the descriptor is not a path: name a table as [catalog, schema, table]")


def _parts(descriptor: FlightDescriptor) -> list[str]:
    if descriptor.type == FlightDescriptor.PATH:
        return list(descriptor.path)
    try:
        return msgspec.json.decode(descriptor.cmd, type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """A scan of a table, of a table function with `parameters`, or of the list of catalogs if `path` is None.

    `fingerprint` identifies the schema that the client is going to read.
    """

    path: ObjectPath | None
    columns: list[str] | None = None
    json_filters: str = ""
    at_unit: str = ""
    at_value: str = ""
    parameters: bytes = b""
    part: bytes | None = None
    fingerprint: str = ""


T = TypeVar("T")


class Seal(Generic[T]):
    """Signs values of a `kind` for clients, who send them back, and verifies them. A signed value expires after `ttl_s`.

    Servers that share a port, or replace each other, need the same `key`. Values of different purposes need different keys.
    Errors call a signed value `name`, and tell the client to do `remedy`.
    """

    def __init__(
        self,
        kind: type[T],
        key: bytes | None = None,
        *,
        name: str,
        remedy: str,
        ttl_s: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._key = key or secrets.token_bytes(32)
        self._name, self._remedy = name, remedy
        self._ttl_s, self._clock = ttl_s, clock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(tuple[int, kind])  # type: ignore[valid-type]

    def issue(self, value: T) -> bytes:
        """The signed value for the client."""
        payload = VERSION + self._encoder.encode((int(self._clock() + self._ttl_s), value))
        return payload + self._mac(payload)

    def redeem(self, data: bytes) -> T:
        """Verify and decode a signed value."""
        payload, mac = data[:-MAC_SIZE], data[-MAC_SIZE:]
        if payload[:1] != VERSION or not hmac.compare_digest(mac, self._mac(payload)):
            raise InvalidArgument(
                f"the {self._name} was not issued by this server, or was modified: {self._remedy} and send it unchanged"
            )
        try:
            expires_at, value = self._decoder.decode(payload[1:])
        except msgspec.DecodeError as error:  # the key is that of the server, which may have been upgraded since
            raise PreconditionFailed(
                f"the {self._name} was issued by another version of this server: {self._remedy}"
            ) from error
        if expires_at < self._clock():
            raise PreconditionFailed(f"the {self._name} has expired: {self._remedy}")
        return value

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, hashlib.sha256)[:MAC_SIZE]


class TicketOffice(Seal[Ticket]):
    """Issues and verifies tickets."""

    def __init__(
        self, key: bytes | None = None, *, ttl_s: float = 3600, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(Ticket, key, name="ticket", remedy="request endpoints again", ttl_s=ttl_s, clock=clock)
