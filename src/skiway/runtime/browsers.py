"""Protection of a server without authentication from web pages that its user visits.

A page can send requests to servers on the visitor's machine. Two checks stop it:

- A page can point its own host name at 127.0.0.1 (DNS rebinding) and is then of the same origin as the server. Its requests
  have that name in `Host`, so only IP addresses, `localhost` and names that the operator allows are accepted there.
- A page of another origin cannot read responses, but can make changes. Browsers put its address into `Origin`, which must
  be the server itself.

gRPC needs neither: browsers cannot speak it without TLS, and with TLS the certificate does not match a rebound name.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["LocalOnly"]

OPEN_PATHS: Final = ("/healthz", "/readyz")
"""Probes address a server by any name, and learn nothing else."""


class LocalOnly:
    """An ASGI app that passes on requests to `app` unless they come from a web page of another site."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = {"localhost", *(name.lower().rstrip(".") for name in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            reason = self._reason(Headers(scope=scope))
            if reason:
                error = {"message": reason, "type": "ForbiddenException", "code": 403}
                await JSONResponse({"error": error}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _reason(self, headers: Headers) -> str:
        """Why the request is rejected; empty if it is not."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._is_allowed(hosts[0]):
            found = hosts[0][:100] if hosts else "missing"
            return (
                f"the header Host is {found!r}: without authentication (auth.mode dev), address the server by its IP address or "
                "as localhost, or add the name to server.http.allowed_hosts"
            )
        if any(urlsplit(origin).netloc.lower() != hosts[0].lower() for origin in origins):
            return (
                f"the request comes from the web page {origins[0][:100]!r}: without authentication (auth.mode dev), pages of "
                "other sites cannot use the server; set auth.mode to token or oidc"
            )
        return ""

    def _is_allowed(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in self._allowed:
            return True
        try:
            return bool(ip_address(name))
        except ValueError:
            return False
