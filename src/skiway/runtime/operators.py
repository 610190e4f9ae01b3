"""Who may see what concerns the whole server rather than one account: its metrics, and the list of its services."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final
from urllib.parse import unquote

from skiway.requests import Access

__all__ = ["Operators"]

FORWARDED: Final = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers of proxies. A request with one of them comes from somebody else than the address that is connected."""

GRPC_PEER: Final = re.compile(r"ipv[46]:\[?(?P<host>[^\]]*?)\]?:\d+")


@dataclass(frozen=True, slots=True)
class Operators:
    """Admits callers from the operator's own networks, and callers with credentials."""

    access: Access
    networks: tuple[IPv4Network | IPv6Network, ...] = ()

    @classmethod
    def of(cls, access: Access, networks: Iterable[str]) -> Operators:
        """`networks` are IP addresses and networks such as `10.0.0.0/8`."""
        return cls(access, tuple(ip_network(each) for each in networks))

    def admit(self, headers: Mapping[str, str], peer: str, *any_of: str) -> None:
        """Return if the caller is in one of the networks, or authenticates and has one of the permissions, if any are given.

        `peer` is the IP address of the connection. Raises `Unauthorized` or `PermissionDenied`.
        """
        if self._is_operator(headers, peer):
            return
        principal = self.access.authenticator.authenticate(headers)
        if any_of:
            self.access.authorizer.require(principal, *any_of)

    def admit_grpc(self, headers: Mapping[str, str], peer: str, *any_of: str) -> None:
        """The same for the peer of a gRPC call, such as `ipv4:127.0.0.1:5000`."""
        found = GRPC_PEER.fullmatch(unquote(peer))
        self.admit(headers, found["host"] if found else "", *any_of)

    def _is_operator(self, headers: Mapping[str, str], peer: str) -> bool:
        if not self.networks or any(name in headers for name in FORWARDED):
            return False
        try:
            address = ip_address(peer.partition("%")[0])
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in network for network in self.networks)
