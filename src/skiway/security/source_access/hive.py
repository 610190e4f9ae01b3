"""The addresses of Hive Metastores. The connection is made to an address that was checked."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from skiway.errors import InvalidArgument
from skiway.security.source_access.connections import connected_socket
from skiway.security.source_access.policy import SourceAccess

__all__ = ["MetastoreAddress", "metastore_addresses"]

_SCHEME: Final = "thrift"
_PORT: Final = 9083


@dataclass(frozen=True, slots=True)
class MetastoreAddress:
    """The host and port of one server."""

    host: str
    port: int

    @property
    def url(self) -> str:
        return f"{_SCHEME}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def connect(self, access: SourceAccess) -> socket.socket:
        """A connection, if `access` permits it."""
        return connected_socket(access, _SCHEME, self.host, self.port)


def metastore_addresses(uri: str) -> tuple[MetastoreAddress, ...]:
    """Parse `thrift://host:port`, or several of them with commas between them; raises InvalidArgument for others."""
    return tuple(map(_address, uri.split(",")))


def _address(uri: str) -> MetastoreAddress:
    try:
        parts = urlsplit(uri.strip())
        port = parts.port
    except ValueError:
        raise _invalid("it cannot be parsed") from None
    if parts.scheme != _SCHEME:
        raise _invalid(f"it does not begin with {_SCHEME}://")
    if parts.username is not None or parts.query or parts.fragment or parts.path.strip("/"):
        raise _invalid("it has more than a host and a port")
    if not parts.hostname:
        raise _invalid("it has no host")
    return MetastoreAddress(parts.hostname, port or _PORT)


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the address of the Hive Metastore cannot be used: {reason}; write thrift://host:{_PORT}, and a comma between the "
        "addresses of several servers",
        key="location.refused",
    )
