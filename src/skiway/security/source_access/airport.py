"""The addresses of Airport servers that are sources. The connection is made to an address that was checked."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from skiway.errors import InvalidArgument
from skiway.security.source_access.policy import SourceAccess

__all__ = ["AirportAddress", "airport_address"]

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
        found = access.checked_addresses(self.scheme, self.host, self.port)[0]
        return AirportAddress(self.scheme, str(found), self.port, self.catalog)


def airport_address(uri: str) -> AirportAddress:
    """Parse `grpc://host:port/catalog` or `grpc+tls://host:port/catalog`; raises InvalidArgument for others."""
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError:
        raise _invalid("it cannot be parsed") from None
    if parts.scheme not in _SCHEMES:
        raise _invalid(f"its scheme is not one of {' and '.join(_SCHEMES)}")
    if parts.username is not None or parts.query or parts.fragment:
        raise _invalid("it contains a token or a user; store a token in the credentials of the connector")
    if not parts.hostname or not port:
        raise _invalid("it has no host or no port")
    catalog = unquote(parts.path.strip("/"))
    if not catalog:
        raise _invalid("it does not name a catalog")
    return AirportAddress(parts.scheme, parts.hostname, port, catalog)


def _invalid(reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"the address of the Airport server cannot be used: {reason}; write grpc://host:port/catalog or "
        "grpc+tls://host:port/catalog",
        key="location.refused",
    )
