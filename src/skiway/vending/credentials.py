"""Credentials that clients receive, and the interface of what issues them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from skiway.vending.access import TableAccess

__all__ = ["Credentials", "CredentialsProvider"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Keys of S3. Temporary ones have a session token and expire."""

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


class CredentialsProvider(Protocol):
    """Issues credentials."""

    @property
    def lifetime_s(self) -> float | None:
        """How long new credentials are valid; None if they do not expire."""

    def issue(self, access: TableAccess) -> Credentials | None:
        """Credentials with this access and no more than the provider documents; None if there are none for it."""
