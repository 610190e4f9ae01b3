"""Descriptors, which name the object of a call, and tickets, which DoGet redeems for a stream.

The descriptor of a table is the PATH `[catalog, schema, table]`, so that users can write
`airport_take_flight(location, ['demo', 'sales', 'people'])`. Listings add `table` and a binding, which says which schema
of the table the client knows. A function adds its kind and its signature, which distinguishes overloads. The path contains
the catalog because clients before DuckDB 1.5 do not send it in a header.

DuckDB repeats the path in a header. If the path is too long for a header, or has characters that a header cannot carry,
the same parts are sent as a command instead, a JSON list, which DuckDB does not repeat. Any other command is for catalogs that
answer commands.

A ticket is opaque to clients: a version byte, the payload, and a MAC of both under the server's key. It says what to
scan but grants no access: the caller is authorized again when the ticket is redeemed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from skiway.airport.wire import headers
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.model.flight_pb2 import FlightDescriptor

__all__ = ["DATABASES", "ObjectPath", "Seal", "Ticket", "TicketOffice", "not_a_path", "object_path", "parse_descriptor"]

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
        if headers.can_repeat("/".join(parts)):
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
