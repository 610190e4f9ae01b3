"""Connections to hosts whose addresses were checked, so that a name that resolves to another address later does not matter."""

from __future__ import annotations

import socket

from skiway.security.source_access.policy import SourceAccess
from skiway.security.source_access.web_sessions import CONNECT_S

__all__ = ["connected_socket"]


def connected_socket(access: SourceAccess, scheme: str, host: str, port: int) -> socket.socket:
    """A connection to one of the addresses of a host, if `access` permits all of them."""
    failure = OSError("no address")
    for address in access.checked_addresses(scheme, host, port):
        try:
            return socket.create_connection((str(address), port), timeout=CONNECT_S)
        except OSError as error:
            failure = error
    raise failure
