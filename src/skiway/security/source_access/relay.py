"""A relay for clients of object stores: an HTTP proxy on this machine that connects only to permitted addresses.

Clients of S3 in native code resolve names themselves and follow redirects to any address. They are told to use this proxy,
which checks the address of every connection. Encrypted connections are tunnelled. For others, the relay forwards one
request per connection, because the next one may be for another host.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from functools import cache
from typing import Final
from urllib.parse import urlsplit

from skiway.config.addresses import AddressRule
from skiway.errors import SkiwayError
from skiway.security.source_access.connections import connected_socket
from skiway.security.source_access.policy import SourceAccess

__all__ = ["Relay", "relay_of"]

_HEAD_BYTES: Final = 64 * 1024
_BLOCK_BYTES: Final = 256 * 1024
_IDLE_S: Final = 300.0


class Relay:
    """The proxy; it listens from its construction until the process ends."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, name="relay", daemon=True).start()

    def _accept(self) -> None:
        while True:
            client, _ = self._listening.accept()
            threading.Thread(target=self._serve, args=(client,), name="relayed", daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.settimeout(_IDLE_S)
            head, rest = _read_head(client)
            method, _, target = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
            target = target.rpartition(" ")[0]
            try:
                if method == "CONNECT":
                    host, _, port = target.rpartition(":")
                    upstream = connected_socket(self._access, "https", host.strip("[]"), int(port))
                else:
                    parts = urlsplit(target)
                    upstream = connected_socket(self._access, "http", parts.hostname or "", parts.port or 80)
            except (SkiwayError, OSError, ValueError):
                client.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            with upstream:
                upstream.settimeout(_IDLE_S)
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    upstream.sendall(rest)
                    threading.Thread(target=_copy, args=(client, upstream), name="relayed", daemon=True).start()
                else:
                    upstream.sendall(_as_origin(head, target) + rest)
                    _copy_exactly(client, upstream, _body_bytes(head) - len(rest))
                _copy(upstream, client)


@cache
def _relay(addresses: tuple[AddressRule, ...]) -> Relay:
    return Relay(SourceAccess(addresses=addresses))


def relay_of(access: SourceAccess) -> Relay:
    """The relay that connects to the addresses that `access` permits; it is started when it is first needed."""
    return _relay(access.addresses)


def _read_head(client: socket.socket) -> tuple[bytes, bytes]:
    """The request line and headers, and what was received after them."""
    received = b""
    while b"\r\n\r\n" not in received:
        block = client.recv(_BLOCK_BYTES)
        if not block or len(received) > _HEAD_BYTES:
            raise OSError("no request")
        received += block
    head, _, rest = received.partition(b"\r\n\r\n")
    return head, rest


def _as_origin(head: bytes, target: str) -> bytes:
    """The request as the server expects it: with a path instead of a URL, and for one response only."""
    parts = urlsplit(target)
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    first, *headers = head.split(b"\r\n")
    method, _, version = first.partition(b" ")[0], "", first.rpartition(b" ")[2]
    dropped = (b"connection:", b"proxy-connection:", b"proxy-authorization:", b"keep-alive:", b"upgrade:")
    kept = [each for each in headers if not each.lower().startswith(dropped)]
    return b"\r\n".join([b" ".join([method, path.encode("latin-1"), version]), *kept, b"connection: close", b"", b""])


def _body_bytes(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            return int(value)
    return 0


def _copy_exactly(source: socket.socket, target: socket.socket, size: int) -> None:
    while size > 0 and (block := source.recv(min(size, _BLOCK_BYTES))):
        target.sendall(block)
        size -= len(block)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until one side ends, and tell the other."""
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    with contextlib.suppress(OSError):
        while received := source.recv_into(buffer):
            target.sendall(buffer[:received])
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
