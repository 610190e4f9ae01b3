"""Credentials that clients receive, and the interface of what issues them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from threading import Lock
from typing import ClassVar, Final, Generic, Protocol, TypeVar

from cachetools import LRUCache

from skiway.clock import Clock
from skiway.errors import Unavailable
from skiway.vending.access import TableAccess

__all__ = ["Credentials", "CredentialsProvider", "S3Keys", "Sessions", "TemporaryCredentials", "not_issued"]

MAX_SESSIONS: Final = 1000


class Credentials(Protocol):
    """Credentials of any object store."""

    @property
    def properties(self) -> Mapping[str, str]:
        """The credentials, in the properties of Iceberg clients."""

    @property
    def expires_at(self) -> datetime | None:
        """When they expire; None if they do not."""

    @property
    def renewal_property(self) -> str:
        """The property that tells Iceberg clients where to renew them."""


@dataclass(frozen=True, slots=True)
class S3Keys:
    """Keys of S3. Temporary ones have a session token and expire."""

    renewal_property: ClassVar[str] = "client.refresh-credentials-endpoint"

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)
    expires_at: datetime | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        """The credentials, in the properties of Iceberg clients."""
        found = {"s3.access-key-id": self.access_key_id, "s3.secret-access-key": self.secret_access_key}
        if self.session_token:
            found["s3.session-token"] = self.session_token
        if self.expires_at is not None:
            found["s3.session-token-expires-at-ms"] = str(int(self.expires_at.timestamp() * 1000))
        return found


@dataclass(frozen=True, slots=True)
class TemporaryCredentials:
    """Credentials of another store: the properties that clients expect."""

    properties: Mapping[str, str] = field(repr=False)
    expires_at: datetime
    renewal_property: str


class CredentialsProvider(Protocol):
    """Issues credentials for tables in one object store."""

    @property
    def lifetime_s(self) -> float | None:
        """How long new credentials are valid at least; None if they do not expire."""

    def issue(self, access: TableAccess) -> Credentials | None:
        """Credentials with this access and no more than the provider documents; None if there are none for it."""


class _Expiring(Protocol):
    @property
    def expires_at(self) -> datetime | None: ...


C = TypeVar("C", bound=_Expiring)


class Sessions(Generic[C]):
    """The credentials that were issued last, by access: the same access gets them again until half of their life is over."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._issued: LRUCache[TableAccess, tuple[C, datetime]] = LRUCache(MAX_SESSIONS)
        self._lock = Lock()

    def get(self, access: TableAccess, issue: Callable[[TableAccess], C]) -> C:
        """The credentials for this access. `issue` returns new ones."""
        now = self._clock()
        with self._lock:
            found = self._issued.get(access)
        if found is not None and now <= found[1]:
            return found[0]
        issued = issue(access)
        if issued.expires_at is not None:
            with self._lock:
                self._issued[access] = issued, now + (issued.expires_at - now) / 2
        return issued


def not_issued(service: str, error: Exception) -> Unavailable:
    """The error for a failure of the service that issues credentials. Only the log names the reason."""
    return Unavailable(
        "credentials for the table cannot be issued now: try again later, or ask the operator, who finds the reason "
        "in the log of the server",
        key="vending.unavailable",
        detail=f"{service}: {error}",
    )
