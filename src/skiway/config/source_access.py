"""Settings of what connectors may access, and the rules for addresses in them.

A rule is `[scheme://]where[:port]`. `where` is a host name, `*.` and a domain, an IP address, a network such as
`10.0.0.0/8`, or one of the words `public`, `private` and `loopback`. `unix:/folder` permits sockets in a folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final, TypeAlias

from skiway.config.fields import FLAG, listed, section, setting

IpAddress: TypeAlias = IPv4Address | IPv6Address

ADDRESS_RULES: Final = "addresses, such as https://*.example.com; 10.0.0.0/8; postgresql://db:5432; public"

_SCHEMES: Final = ("grpc", "grpc+tls", "http", "https", "mysql", "postgresql", "thrift")
_WORDS: Final = ("public", "private", "loopback")
_RULE: Final = re.compile(
    r"(?:(?P<scheme>[a-z0-9+.-]+)://)?(?P<where>\[[^\]]+\]|[^\[\]:\s]+|[0-9a-f:]+(?:/\d+)?)(?::(?P<port>\d+))?"
)
_NAME: Final = re.compile(r"(?:\*\.)?[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?")

# Services of clouds that give credentials to their machines, and addresses that lead to unexpected places.
_METADATA: Final = tuple(
    map(
        ip_network,
        (
            *("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
            *("fd00:ec2::/32", "fd20:ce::254", "fd00:42::42"),
        ),
    )
)
_TRANSLATED: Final = IPv6Network("64:ff9b::/96")


@dataclass(frozen=True, slots=True)
class AddressRule:
    """A permitted part of the network. An empty scheme and port 0 stand for all."""

    text: str
    scheme: str = ""
    name: str = ""
    network: IPv4Network | IPv6Network | None = None
    word: str = ""
    port: int = 0
    folder: str = ""

    @classmethod
    def parsed(cls, text: str) -> AddressRule:
        """The rule; raises ValueError if it is invalid."""
        text = text.strip().lower() if not text.strip().startswith("unix:") else text.strip()
        if text.startswith("unix:"):
            folder = text.removeprefix("unix:").rstrip("/")
            if not folder.startswith("/") or ".." in folder.split("/"):
                raise ValueError("not the path of a folder")
            return cls(text, folder=folder)
        found = _RULE.fullmatch(text)
        if found is None or (found["scheme"] and found["scheme"] not in _SCHEMES):
            raise ValueError("not an address")
        scheme, where, port = found["scheme"] or "", found["where"], int(found["port"] or 0)
        if port > 65535:
            raise ValueError("not a port")
        if where in _WORDS:
            return cls(text, scheme, word=where, port=port)
        network = _network(where.strip("[]"))
        if network is None and not _NAME.fullmatch(where):
            raise ValueError("not a host")
        if network is not None and network.num_addresses == 1 and is_never_permitted(network[0]):
            raise ValueError("an address that is never permitted")
        return cls(text, scheme, "" if network else where.rstrip("."), network, port=port)

    def matches_name(self, scheme: str, host: str, port: int) -> bool:
        """Whether it names this host."""
        if not self.name or not self._matches(scheme, port):
            return False
        host = host.lower().rstrip(".")
        return host.endswith(self.name[1:]) if self.name.startswith("*.") else host == self.name

    def matches_address(self, scheme: str, address: IpAddress, port: int) -> bool:
        """Whether it contains this address, whatever the name of the host."""
        if not self._matches(scheme, port):
            return False
        plain = plain_address(address)
        if self.network is not None:
            return plain in self.network or address in self.network
        if self.word == "loopback":
            return plain.is_loopback
        return not plain.is_loopback and bool(self.word) and _is_public(plain) == (self.word == "public")

    def _matches(self, scheme: str, port: int) -> bool:
        return self.scheme in ("", scheme) and self.port in (0, port)


def is_never_permitted(address: IpAddress) -> bool:
    """Whether no setting permits the address: it is link-local, a metadata service, or no address of one machine."""
    plain = plain_address(address)
    if plain.is_loopback:
        return False
    odd = plain.is_link_local or plain.is_multicast or plain.is_unspecified or plain.is_reserved
    return odd or any(plain in each for each in _METADATA)


def _is_public(plain: IpAddress) -> bool:
    """Whether it is in the internet. Python does not know that the old site-local addresses are not."""
    return plain.is_global and not (isinstance(plain, IPv6Address) and plain.is_site_local)


def plain_address(address: IpAddress) -> IpAddress:
    """The IPv4 address that is embedded in an IPv6 address; the address itself if there is none."""
    if isinstance(address, IPv4Address):
        return address
    translated = IPv4Address(int(address) & 0xFFFFFFFF) if address in _TRANSLATED else None
    return address.ipv4_mapped or address.sixtofour or translated or address


def _network(text: str) -> IPv4Network | IPv6Network | None:
    try:
        return ip_network(text)
    except ValueError:
        if re.search(r"/|^[\d.]+$|:", text):
            raise
        return None


def _check_root(path: str) -> None:
    """Raise ValueError unless it is an absolute path without `..`."""
    if not path.startswith("/") or ".." in path.split("/"):
        raise ValueError("not an absolute path")


@section
class Sources:
    """What connectors may access. See docs/security.md."""

    local_roots: tuple[str, ...] | None = setting(
        None,
        listed("absolute paths, such as /srv/data; /mnt/{account}", _check_root),
        "Folders on this machine that connectors may read; `{account}` stands for the id of the account. The files of the "
        "server and of the system stay closed. Unless set, none, or in `auth.mode` dev all.",
    )
    writable: tuple[str, ...] = setting(
        (),
        listed("absolute paths, such as /srv/delta; /mnt/{account}", _check_root),
        "Folders on this machine with Delta tables that `skiway tables optimize` and `clean` may change, for callers who may write to the "
        "mirrored tables; `{account}` stands for the id of the account. By default none.",
    )
    addresses: tuple[str, ...] | None = setting(
        None,
        listed(ADDRESS_RULES, AddressRule.parsed),
        "Addresses that connectors may connect to: `[scheme://]where[:port]` with a host, `*.domain`, an IP address, a "
        "network, or `public`, `private` or `loopback`; or `unix:/folder` for sockets. Link-local addresses stay closed. "
        "Unless set, public ones, or in `auth.mode` dev all.",
    )
    ambient_credentials: bool = setting(
        False,
        FLAG,
        "Lend the credentials of the server's machine (AWS, Kerberos, password files) to connectors that ask for them.",
    )
