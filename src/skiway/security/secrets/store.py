"""Secrets kept out of band: credentials of connectors are stored here, and never in the records that use them."""

from __future__ import annotations

from threading import Lock
from typing import Protocol
from urllib.parse import quote

from skiway.errors import InvalidArgument, LimitExceeded, NotFound

__all__ = ["MAX_SECRET_BYTES", "MemorySecrets", "SecretsStore", "check_size", "no_such_secret", "secret_key"]

MAX_SECRET_BYTES = 65_536  # what AWS Secrets Manager takes; the same everywhere, so that stores can be exchanged


class SecretsStore(Protocol):
    """Secrets by account, kind (such as `connectors`) and id. Safe to be used by many threads."""

    def put(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """Keep `data`, whether or not there was a secret before."""

    def get(self, account_id: str, kind: str, resource_id: str) -> bytes:
        """The secret; raises `NotFound`."""

    def update(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """Replace the secret that is there; raises `NotFound`."""

    def delete(self, account_id: str, kind: str, resource_id: str) -> None:
        """Forget the secret for good; one that is not there is forgotten already."""


def secret_key(account_id: str, kind: str, resource_id: str) -> str:
    """The name of a secret, `accounts/{account}/{kind}/{id}`; no two secrets share one, whatever their ids hold."""
    return "/".join(("accounts", *(_segment(part) for part in (account_id, kind, resource_id))))


def check_size(key: str, data: bytes) -> None:
    """Refuse what not every store would take."""
    if len(data) > MAX_SECRET_BYTES:
        raise LimitExceeded(
            f"secret {key} has {len(data)} bytes, and {MAX_SECRET_BYTES} are the most: keep less in it",
            key="secret.too_large",
        )


def no_such_secret(key: str) -> NotFound:
    """The error for a secret that is not there."""
    return NotFound(f"there is no secret {key}: it was never stored, or was deleted; store it anew", key="secret")


class MemorySecrets:
    """Secrets that end with the process: for tests and trials."""

    def __init__(self) -> None:
        self._secrets: dict[str, bytes] = {}
        self._lock = Lock()

    def put(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        key = secret_key(account_id, kind, resource_id)
        check_size(key, data)
        with self._lock:
            self._secrets[key] = bytes(data)

    def get(self, account_id: str, kind: str, resource_id: str) -> bytes:
        """See `SecretsStore`."""
        key = secret_key(account_id, kind, resource_id)
        with self._lock:
            return self._existing(key)

    def update(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """See `SecretsStore`."""
        key = secret_key(account_id, kind, resource_id)
        check_size(key, data)
        with self._lock:
            self._existing(key)
            self._secrets[key] = bytes(data)

    def delete(self, account_id: str, kind: str, resource_id: str) -> None:
        """See `SecretsStore`."""
        with self._lock:
            self._secrets.pop(secret_key(account_id, kind, resource_id), None)

    def __repr__(self) -> str:
        return f"MemorySecrets({len(self._secrets)} secrets)"

    def _existing(self, key: str) -> bytes:
        if key not in self._secrets:
            raise no_such_secret(key)
        return self._secrets[key]


def _segment(part: str) -> str:
    if not part:
        raise InvalidArgument("a secret needs an account, a kind and an id: one of them is empty", key="secret.key")
    # What quote() leaves alone and not every store does: `~` is in no name of AWS, `.` and `..` are directories.
    encoded = quote(part, safe="").replace("~", "%7E")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded
