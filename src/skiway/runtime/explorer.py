"""The explorer as part of a server: its clients reach the gRPC server of the same process over a socket file.

The socket is in a folder that only the user of the server can open. It has no TLS, whatever the other addresses have, and its
callers are never operators.

The explorer and its clients are imported after the server is ready, because no other part needs them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from skiway.config import Settings
from skiway.errors import PermissionDenied
from skiway.runtime.late_app import LateApp

if TYPE_CHECKING:
    from skiway.web import Explorer
    from skiway.web.logins import Provider
    from skiway.web.sessions import Ended

__all__ = ["explorer_of", "socket_file"]


@contextmanager
def socket_file() -> Iterator[Path]:
    """The path of a socket in a new private folder."""
    with tempfile.TemporaryDirectory(prefix="skiway-") as folder:  # only its owner can open it
        yield Path(folder) / "calls"


def explorer_of(
    settings: Settings, socket: Path, *, location: Callable[[], str], key: Callable[[], bytes], ended: Ended
) -> LateApp:
    """The explorer. `location` is where DuckDB finds the server, and `key` and `ended` are those of sessions."""
    provider = _provider(settings)  # wrong settings are an error before the server is ready
    return LateApp(partial(_made, settings, socket, provider, location=location, key=key, ended=ended))


def _made(
    settings: Settings,
    socket: Path,
    provider: Provider | None,
    *,
    location: Callable[[], str],
    key: Callable[[], bytes],
    ended: Ended,
) -> Explorer:
    from skiway.client import Metastore
    from skiway.presentation.open_clients import TIMEOUT_S, OpenClients
    from skiway.web import Explorer
    from skiway.web.logins import Login
    from skiway.web.visits import Clients

    target = f"grpc+unix://{socket}"
    opened = OpenClients(target)

    def check(token: str) -> None:
        """Accept the token if the server does, whatever its owner may see."""
        with Metastore(target, token=token, timeout_s=TIMEOUT_S) as lake, suppress(PermissionDenied):
            next(iter(lake.catalogs(page_size=1)), None)

    clients = Clients(
        metastore=lambda visitor: opened.metastore(visitor.token),
        airport=lambda visitor, catalog: opened.airport(visitor.token, catalog),
        location=location,
    )
    login = Login(settings.auth.mode != "dev", check, provider)
    return Explorer(clients, key=key, ended=ended, login=login, public_url=settings.server.http.public_url or "")


def _provider(settings: Settings) -> Provider | None:
    oidc = settings.auth.oidc
    if settings.auth.mode != "oidc" or not oidc.issuer or not oidc.client_id:
        return None
    from skiway.security.code_login import CodeLogin

    secret = oidc.client_secret.reveal() if oidc.client_secret else ""
    return CodeLogin(oidc.issuer, oidc.client_id, client_secret=secret, scopes=oidc.scopes, allow_http=oidc.allow_http)
