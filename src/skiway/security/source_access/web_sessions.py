"""Sessions of `requests` that connect only to permitted addresses: protection against server-side request forgery.

The addresses of sources come from users, and from the responses of upstream catalogs. The server must not connect to what
a user could not reach. The check applies to the address of the actual connection, so neither a host name, nor a redirect,
nor a DNS record that changes between check and use can circumvent it.
"""

from __future__ import annotations

import os
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final

from skiway.errors import PermissionDenied
from skiway.security.source_access.policy import SourceAccess

if TYPE_CHECKING:
    from requests import Session

__all__ = ["ANSWER_S", "CONNECT_S", "guard_session"]

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
