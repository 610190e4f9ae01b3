"""Clients of one server that act for several callers, each with its own token."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

from cachetools import LRUCache

from skiway.client import AirportClient, Metastore

__all__ = ["TIMEOUT_S", "OpenClients"]

MAX_CLIENTS: Final = 200
TIMEOUT_S: Final = 60.0


class OpenClients:
    """Opens clients of the server at a location, and keeps them for the next call of the same caller."""

    def __init__(self, location: str) -> None:
        self._metastores = _Opened[str, Metastore](
            lambda token: Metastore(location, token=token or None, timeout_s=TIMEOUT_S)
        )
        self._catalogs = _Opened[tuple[str, str], AirportClient](
            lambda named: AirportClient(location, named[1], token=named[0] or None, timeout_s=TIMEOUT_S)
        )
        self._versions: WeakKeyDictionary[AirportClient, int] = WeakKeyDictionary()

    def metastore(self, token: str) -> Metastore:
        """The metastore, as the caller with the token may see it. Without authentication, the token is empty."""
        return self._metastores.of(token)

    def airport(self, token: str, catalog: str) -> AirportClient:
        """A catalog as it is now: clients keep what they know about tables."""
        client = self._catalogs.of((token, catalog))
        now = client.version().version
        if self._versions.get(client) != now:
            client.reload()
            self._versions[client] = now
        return client


class _Closes(Protocol):
    def close(self) -> None: ...


K = TypeVar("K")
C = TypeVar("C", bound=_Closes)


class _Opened(Generic[K, C]):
    """Clients that are kept open for the next call. The ones that were not used for longest are closed."""

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
