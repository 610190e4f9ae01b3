"""Which machines a source may be at: addresses of others come from users, and from answers of the others themselves.

What a user could not reach, the server must not reach for them: above all not the services at link-local addresses, at
which clouds tell their machines' secrets. The address that counts is the one connected to, so neither a name that leads
there, nor a redirect, nor a name that changes its mind between the look and the call comes through.
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

__all__ = ["Addresses", "check_endpoint", "check_named", "guarded", "permit"]

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0

_METADATA: Final = frozenset(map(ip_address, ("169.254.169.254", "fd00:ec2::254", "100.100.100.200")))
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")
_PORTS: Final = {"http": 80, "https": 443}


class Addresses(StrEnum):
    """Which addresses are permitted; each permits what the one before does."""

    PUBLIC = "public"
    PRIVATE = "private"
    ANY = "any"


_permitted: Final = [Addresses.PRIVATE]  # of a process, whoever opens a source in it


def permit(addresses: Addresses) -> None:
    """From now on sources may be at these. For those who start a process."""
    _permitted[:] = [addresses]


def check_endpoint(url: str) -> str:
    """`url`, whose host may be connected to now; PermissionDenied if it may not, Unavailable if its name is unknown."""
    parts = urlsplit(url if "://" in url else f"https://{url}")
    for found in _resolved(parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)):
        _check(found, url)
    return url


def check_named(url: str) -> str:
    """The same as far as that can be told without asking anybody: of an address that is a number, or this machine's."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    named = "127.0.0.1" if host == "localhost" or host.endswith(".localhost") else host
    try:
        found = ip_address(named)
    except ValueError:
        return url
    _check(found, url)
    return url


def guarded(session: Session) -> None:
    """Let a session of requests connect to permitted addresses only, wherever it is redirected, and wait no longer than bearable."""
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
            # A proxy looks for names itself, perhaps where we cannot.
            check = check_named if select_proxy(request.url, named.get("proxies")) else check_endpoint
            check(request.url)
            return super().send(request, **{**named, "timeout": named.get("timeout") or (CONNECT_S, ANSWER_S)})

    for scheme in ("http://", "https://"):
        session.mount(scheme, Guard())


def _checked(connected: socket.socket, host: str) -> socket.socket:
    """What was connected to may be another than what the name stood for a moment before."""
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
            f"there is no machine called {host!r} ({error}); check the address of the source, then try again",
            key="source.unavailable",
        ) from error
    for *_, address in found:
        yield ip_address(str(address[0]).partition("%")[0])


def _check(found: IPv4Address | IPv6Address, asked: str) -> None:
    (permitted,) = _permitted
    inner = _embedded(found)
    if _needed(inner) <= list(Addresses).index(permitted):
        return
    raise PermissionDenied(
        f"{asked!r} is at {inner}, where sources may not be (reconciler.source_addresses is {permitted}); give another"
        " address, or have the operator permit it",
        key="address.refused",
        address=str(inner),
    )


def _embedded(found: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address of version 4 that one of version 6 stands for; itself, where it stands for none."""
    if isinstance(found, IPv4Address):
        return found
    translated = IPv4Address(int(found) & 0xFFFFFFFF) if found in _TRANSLATED else None
    return found.ipv4_mapped or found.sixtofour or translated or found


def _needed(found: IPv4Address | IPv6Address) -> int:
    """The least of `Addresses` that permits it, by its number."""
    if found.is_loopback:
        return 1
    if found in _METADATA or found.is_link_local or found.is_multicast or found.is_unspecified or found.is_reserved:
        return 2
    return 0 if found.is_global else 1
