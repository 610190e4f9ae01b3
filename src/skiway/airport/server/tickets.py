"""Descriptors: how a call names the object it is about.

A table is PATH `[catalog, schema, table]`, so that `airport_take_flight(location, ['demo', 'sales', 'people'])` can be
typed by hand. A function adds its kind and its signature, which keeps overloads apart; a `Bindable` table may add
`table` and its binding in the same way. The catalog is in the path because clients before DuckDB 1.5 do not send it
otherwise.

DuckDB repeats a path in a header. Where it is too long for one, or has letters that none can carry, the same parts are
a command instead, a JSON list, which it does not repeat.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Callable
from typing import Final, Literal

import msgspec
from google.protobuf.message import DecodeError

from skiway.airport.wire import headers
from skiway.errors import InvalidArgument, PreconditionFailed
from skiway.model.flight_pb2 import FlightDescriptor

__all__ = ["DATABASES", "ObjectPath", "Ticket", "TicketOffice", "object_path", "parse_descriptor"]


Kind = Literal["table", "scalar_function", "table_function"]

DATABASES: Final = "__databases"  # what DuckDB's airport_databases() asks for


class ObjectPath(msgspec.Struct, frozen=True, array_like=True):
    """The address of a table or function. `catalog` is None where the caller left it to the headers.

    `signature` is the binding, where it is a table's.
    """

    catalog: str | None
    schema: str
    name: str
    kind: Kind = "table"
    signature: str = ""

    def descriptor(self) -> FlightDescriptor:
        """The path as Flight carries it, so that every client can."""
        parts = [self.catalog or "", self.schema, self.name]
        if self.kind != "table" or self.signature:
            parts += [self.kind, self.signature]
        if headers.can_repeat("/".join(parts)):
            return FlightDescriptor(type=FlightDescriptor.PATH, path=parts)
        return FlightDescriptor(type=FlightDescriptor.CMD, cmd=json.dumps(parts, ensure_ascii=False).encode())

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def parse_descriptor(data: bytes) -> FlightDescriptor:
    """The message in `data`."""
    try:
        return FlightDescriptor.FromString(data)
    except DecodeError as error:
        raise InvalidArgument(
            "malformed FlightDescriptor: it is not the protobuf message that Flight defines, or a name is not UTF-8"
        ) from error


def object_path(descriptor: FlightDescriptor) -> ObjectPath:
    """The object that a descriptor names."""
    parts = _parts(descriptor)
    if not parts:
        raise InvalidArgument("this descriptor is not a path: name a table as [catalog, schema, table]")
    match parts:
        case [schema, name]:
            return ObjectPath(None, schema, name)
        case [catalog, schema, name]:
            return ObjectPath(catalog, schema, name)
        case [catalog, schema, name, ("table" | "scalar_function" | "table_function") as kind, signature]:
            return ObjectPath(catalog, schema, name, kind, signature)
        case _:
            raise InvalidArgument(
                f"descriptor path {parts!r} is not of this server: name a table as [catalog, schema, table]"
            )


def _parts(descriptor: FlightDescriptor) -> list[str]:
    if descriptor.type == FlightDescriptor.PATH:
        return list(descriptor.path)
    try:
        return msgspec.json.decode(descriptor.cmd, type=list[str])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return []


# --------------------
# Tickets: what `endpoints` hands out and DoGet takes back.
#
# A ticket is opaque to clients: one version byte, the payload, and a MAC over both under the server's key. It says what
# to scan, never who may: the caller is authorized again when the ticket is redeemed.


VERSION: Final = b"\x01"
MAC_SIZE: Final = 16


class Ticket(msgspec.Struct, frozen=True, array_like=True):
    """A scan to be made: of a table, of a table function with `parameters`, or (no path) of the list of catalogs."""

    path: ObjectPath | None
    columns: list[str] | None = None
    json_filters: str = ""
    at_unit: str = ""
    at_value: str = ""
    parameters: bytes = b""
    part: bytes | None = None


class _Dated(msgspec.Struct, frozen=True, array_like=True):
    expires_at: int
    ticket: Ticket


class TicketOffice:
    """Issues and checks tickets. Servers that share a port, or follow each other, need the same `key`."""

    def __init__(
        self, key: bytes | None = None, *, ttl_s: float = 3600, clock: Callable[[], float] = time.time
    ) -> None:
        self._key = key or secrets.token_bytes(32)
        self._ttl_s = ttl_s
        self._clock = clock
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(_Dated)

    def issue(self, ticket: Ticket) -> bytes:
        """The bytes for the client."""
        payload = VERSION + self._encoder.encode(_Dated(int(self._clock() + self._ttl_s), ticket))
        return payload + self._mac(payload)

    def redeem(self, data: bytes) -> Ticket:
        """The ticket in `data`, if it is ours and still good."""
        payload, mac = data[:-MAC_SIZE], data[-MAC_SIZE:]
        if payload[:1] != VERSION or not hmac.compare_digest(mac, self._mac(payload)):
            raise InvalidArgument(
                "the ticket is not one of this server, or was changed on its way: ask for endpoints again and use the ticket as it is"
            )
        dated = self._decoder.decode(payload[1:])
        if dated.expires_at < self._clock():
            raise PreconditionFailed("the ticket has expired: ask for endpoints again")
        return dated.ticket

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, hashlib.sha256)[:MAC_SIZE]
