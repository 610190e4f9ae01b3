"""Connections to sources, made to addresses that were checked: HTTP, Hive Metastores, Airport servers and object stores.

This protects against server-side request forgery. The addresses of sources come from users, and from the responses of
upstream catalogs. The server must not connect to what a user could not reach. The check applies to the address of the actual
connection, so neither a host name, nor a redirect, nor a DNS record that changes between check and use can circumvent it.

The relay is an HTTP proxy on this machine for clients of object stores. Clients of S3 in native code resolve names
themselves and follow redirects to any address. They are told to use this proxy, which checks the address of every
connection. Encrypted connections are tunnelled. For others, the relay forwards one request per connection, because the next
one may be for another host.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from dataclasses import dataclass
from functools import cache
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from skiway.config.source_access import AddressRule
from skiway.errors import InvalidArgument, PermissionDenied, SkiwayError
from skiway.security.source_access.access import SourceAccess

if TYPE_CHECKING:
    from requests import Session

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0


def guard_session(session: Session, access: SourceAccess, *, signer: Any = None, signed: str = "") -> None:
    """Make a session connect to permitted addresses only, also on redirects, and time out.

    Proxies and certificates of the environment are used, but no credentials in a `.netrc` file. `signer` is an adapter
    that adds a signature to the headers of requests to the address `signed`, and below it.
    """
    from requests.adapters import HTTPAdapter
    from requests.utils import get_environ_proxies, select_proxy
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _checked(super()._new_conn(), access, "http", self.host, self.port or 80)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _checked(super()._new_conn(), access, "https", self.host, self.port or 443)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    class Guard(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
            super().init_poolmanager(*arguments, **named)
            self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

        def add_headers(self, request: Any, **named: Any) -> None:
            if signer is not None and f"{request.url}/".startswith(f"{signed.rstrip('/')}/"):
                signer.add_headers(request, **named)

        def send(self, request: Any, **named: Any) -> Any:  # type: ignore[override]
            named["proxies"] = named.get("proxies") or get_environ_proxies(request.url)
            if named.get("verify") is True:
                named["verify"] = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("CURL_CA_BUNDLE") or True
            # A proxy resolves names itself, possibly in another network.
            check = access.check_named if select_proxy(request.url, named["proxies"]) else access.check_url
            check(request.url)
            return super().send(request, **{**named, "timeout": named.get("timeout") or (CONNECT_S, ANSWER_S)})

    session.trust_env = False
    for scheme in ("http://", "https://"):
        session.mount(scheme, Guard())


def _checked(connected: socket.socket, access: SourceAccess, scheme: str, host: str, port: int) -> socket.socket:
    """Check the peer of a connection: the name may have resolved to another address before."""
    try:
        access.check_address(scheme, host, port, ip_address(connected.getpeername()[0].partition("%")[0]))
    except PermissionDenied:
        connected.close()
        raise
    return connected


def connected_socket(access: SourceAccess, scheme: str, host: str, port: int) -> socket.socket:
    """A connection to one of the addresses of a host, if `access` permits all of them."""
    failure = OSError("no address")
    for address in access.checked_addresses(scheme, host, port):
        try:
            return socket.create_connection((str(address), port), timeout=CONNECT_S)
        except OSError as error:
            failure = error
    raise failure


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
        raise _invalid_hive("it cannot be parsed") from None
    if parts.scheme != _SCHEME:
        raise _invalid_hive(f"it does not begin with {_SCHEME}://")
    if parts.username is not None or parts.query or parts.fragment or parts.path.strip("/"):
        raise _invalid_hive("it has more than a host and a port")
    if not parts.hostname:
        raise _invalid_hive("it has no host")
    return MetastoreAddress(parts.hostname, port or _PORT)


def _invalid_hive(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the address of the Hive Metastore cannot be used: {reason}; write thrift://host:{_PORT}, and a comma between the "
        "addresses of several servers",
        key="location.refused",
    )


_SCHEMES = ("grpc", "grpc+tls")


@dataclass(frozen=True, slots=True)
class AirportAddress:
    """A catalog of a server."""

    scheme: str
    host: str
    port: int
    catalog: str

    @property
    def url(self) -> str:
        """The server, without the catalog."""
        return f"{self.scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def checked(self, access: SourceAccess) -> AirportAddress:
        """The same catalog at an IP address of the host, if `access` permits it."""
        address = access.checked_addresses(self.scheme, self.host, self.port)[0]
        return AirportAddress(self.scheme, str(address), self.port, self.catalog)


def airport_address(uri: str) -> AirportAddress:
    """Parse `grpc://host:port/catalog` or `grpc+tls://host:port/catalog`; raises InvalidArgument for others."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise _invalid_airport("it cannot be parsed") from None
    if parts.scheme not in _SCHEMES:
        raise _invalid_airport(f"its scheme is not one of {' and '.join(_SCHEMES)}")
    if parts.username is not None or parts.query or parts.fragment:
        raise _invalid_airport("it contains a token or a user; store a token in the credentials of the connector")
    if not parts.hostname or not port:
        raise _invalid_airport("it has no host or no port")
    catalog = unquote(parts.path.strip("/"))
    if not catalog:
        raise _invalid_airport("it does not name a catalog")
    return AirportAddress(parts.scheme, parts.hostname, port, catalog)


def _invalid_airport(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the address of the Airport server cannot be used: {reason}; write grpc://host:port/catalog or "
        "grpc+tls://host:port/catalog",
        key="location.refused",
    )


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
    kept = [header for header in headers if not header.lower().startswith(dropped)]
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
