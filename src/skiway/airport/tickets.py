"""Tickets: what `endpoints` hands out and DoGet takes back.

A ticket is opaque to clients: one version byte, the payload, and a MAC over both under the server's key. It says what
to scan, never who may: the caller is authorized again when the ticket is redeemed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from typing import Final

import msgspec

from skiway.airport.paths import ObjectPath
from skiway.errors import InvalidArgument, PreconditionFailed

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
