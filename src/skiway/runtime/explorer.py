"""The explorer as part of a server: its clients reach the gRPC server of the same process over a socket file.

The socket is in a folder that only the user of the server can open. It has no TLS, whatever the other addresses have, and its
callers are never operators.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from skiway.client import AirportClient, Metastore
from skiway.config import Settings
from skiway.errors import PermissionDenied
from skiway.web import Explorer
from skiway.web.logins import Login, Provider
from skiway.web.sessions import Ended
from skiway.web.visits import Clients, Visitor

__all__ = ["explorer_of", "socket_file"]

MAX_CLIENTS: Final = 200
TIMEOUT_S: Final = 60.0


@contextmanager
def socket_file() -> Iterator[Path]:
    """The path of a socket in a new private folder."""
    with tempfile.TemporaryDirectory(prefix="skiway-") as folder:  # only its owner can open it
        yield Path(folder) / "calls"


def explorer_of(
    settings: Settings, socket: Path, *, location: Callable[[], str], key: Callable[[], bytes], ended: Ended
) -> Explorer:
    """The explorer. `location` is where DuckDB finds the server, and `key` and `ended` are those of sessions."""
    target = f"grpc+unix://{socket}"
    metastores = _Opened[str, Metastore](lambda token: Metastore(target, token=token or None, timeout_s=TIMEOUT_S))
    catalogs = _Opened[tuple[str, str], AirportClient](
        lambda named: AirportClient(target, named[1], token=named[0] or None, timeout_s=TIMEOUT_S)
    )

    def check(token: str) -> None:
        """Accept the token if the server does, whatever its owner may see."""
        with Metastore(target, token=token, timeout_s=TIMEOUT_S) as lake, suppress(PermissionDenied):
            next(iter(lake.catalogs(page_size=1)), None)

    def airport(visitor: Visitor, catalog: str) -> AirportClient:
        """A catalog as it is now: clients keep what they know about tables."""
        client = catalogs.of((visitor.token, catalog))
        now = client.version().version
        if versions.get(client) != now:
            client.reload()
            versions[client] = now
        return client

    versions: WeakKeyDictionary[AirportClient, int] = WeakKeyDictionary()
    clients = Clients(metastore=lambda visitor: metastores.of(visitor.token), airport=airport, location=location)
    login = Login(settings.auth.mode != "dev", check, _provider(settings))
    return Explorer(clients, key=key, ended=ended, login=login, public_url=settings.server.http.public_url or "")


def _provider(settings: Settings) -> Provider | None:
    oidc = settings.auth.oidc
    if settings.auth.mode != "oidc" or not oidc.issuer or not oidc.client_id:
        return None
    from skiway.security.code_login import CodeLogin

    secret = oidc.client_secret.reveal() if oidc.client_secret else ""
    return CodeLogin(oidc.issuer, oidc.client_id, client_secret=secret, scopes=oidc.scopes, allow_http=oidc.allow_http)


class _Closes(Protocol):
    def close(self) -> None: ...


K = TypeVar("K")
C = TypeVar("C", bound=_Closes)


class _Opened(Generic[K, C]):
    """Clients that are kept open for the next page of a visitor. The ones that were not used for longest are closed."""

    def __init__(self, connect: Callable[[K], C]) -> None:
        self._connect = connect
        self._lock = Lock()
        self._known: _Closing[K, C] = _Closing(MAX_CLIENTS)

    def of(self, key: K) -> C:
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._connect(key)
            return found


class _Closing(LRUCache[K, C]):
    def popitem(self) -> tuple[K, C]:
        key, client = super().popitem()
        client.close()
        return key, client
