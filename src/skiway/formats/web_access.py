"""Protection against server-side request forgery: which addresses sources may be at.

The addresses of sources come from users, and from the responses of upstream catalogs. The server must not connect to what
a user could not reach, above all not to the metadata services of clouds, which hand out credentials at link-local
addresses. The check applies to the address of the actual connection, so neither a host name, nor a redirect, nor a DNS
record that changes between check and use can circumvent it.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from enum import StrEnum
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from skiway.errors import PermissionDenied, Unavailable

if TYPE_CHECKING:
    from requests import Session

__all__ = ["Addresses", "check_endpoint", "check_named", "guard_session", "permit"]

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0

_METADATA: Final = frozenset(map(ip_address, ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")))
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
_PORTS: Final = {"http": 80, "https": 443}


class Addresses(StrEnum):
    """The addresses that sources may be at; each level includes the one before."""

    PUBLIC = "public"
    PRIVATE = "private"
    ANY = "any"


# Process-wide on purpose: this is a security boundary. A caller that forgets to pass it on must not thereby lift it.
_permitted: Final = [Addresses.PRIVATE]


def permit(addresses: Addresses) -> None:
    """Set which addresses all sources of this process may be at. To be called once, when the process starts."""
    _permitted[:] = [addresses]


def check_endpoint(url: str) -> str:
    """Return `url` if its host resolves to permitted addresses; raises PermissionDenied or Unavailable otherwise."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    for found in _resolved(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)):
        _check(found, url)
    return url


def check_named(url: str) -> str:
    """Return `url` unless its host is a forbidden IP address or localhost; host names are not resolved."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    named = "127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host
    try:
        found = ip_address(named)
    except ValueError:
        return url
    _check(found, url)
    return url


def guard_session(session: Session) -> None:
    """Make a session of `requests` connect to permitted addresses only, also on redirects, and time out."""
    from requests.adapters import HTTPAdapter
    from requests.utils import select_proxy
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Plain(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            return _checked(super()._new_conn(), self.host)

    class Secure(HTTPSConnection):
        def _new_conn(self) -> socket.socket:
            return _checked(super()._new_conn(), self.host)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = Secure

    class Guard(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **named: Any) -> None:
            super().init_poolmanager(*arguments, **named)
            self.poolmanager.pool_classes_by_scheme = {"http": PlainPool, "https": SecurePool}

        def send(self, request: Any, **named: Any) -> Any:  # type: ignore[override]
            # A proxy resolves names itself, possibly in another network.
            check = check_named if select_proxy(request.url, named.get("proxies")) else check_endpoint
            check(request.url)
            return super().send(request, **{**named, "timeout": named.get("timeout") or (CONNECT_S, ANSWER_S)})

    for scheme in ("http://", "https://"):
        session.mount(scheme, Guard())


def _checked(connected: socket.socket, host: str) -> socket.socket:
    """Check the peer of a connection: the name may have resolved to another address before."""
    try:
        _check(ip_address(connected.getpeername()[0].partition("%")[0]), host)
    except PermissionDenied:
        connected.close()
        raise
    return connected


def _resolved(host: str, port: int) -> Iterator[IPv4Address | IPv6Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unavailable(
            f"host {host!r} cannot be resolved; check the address of the source, then try again",
            key="source.unavailable",
            detail=str(error),
        ) from error
    for *_, address in found:
        yield ip_address(str(address[0]).partition("%")[0])


def _check(found: IPv4Address | IPv6Address, url: str) -> None:
    (permitted,) = _permitted
    inner = _embedded(found)
    if _level(inner) <= list(Addresses).index(permitted):
        return
    raise PermissionDenied(
        f"{url!r} is at {inner}, where sources may not be (reconciler.source_addresses is {permitted}); use another "
        "address, or ask the operator to permit it",
        key="address.refused",
        address=str(inner),
    )


def _embedded(found: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address that is embedded in an IPv6 address; the address itself if there is none."""
    if isinstance(found, IPv4Address):
        return found
    translated = IPv4Address(int(found) & 0xFFFFFFFF) if found in _TRANSLATED else None
    return found.ipv4_mapped or found.sixtofour or translated or found


def _level(found: IPv4Address | IPv6Address) -> int:
    """The index of the lowest level of `Addresses` that permits the address."""
    if found.is_loopback:
        return 1
    if found in _METADATA or found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved:
        return 2
    return 0 if found.is_global else 1
