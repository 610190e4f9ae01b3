"""The interface of secret stores, the store in memory, and how a store is opened by its URL.

The scheme of the URL selects the store; packages can add stores as entry points. An entry point of the group
`skiway.secrets_stores` is named after its URL scheme and refers to a function with the signature of `OpenSecrets`. A store's
module is imported when the store is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Protocol, cast
from urllib.parse import parse_qsl, quote

from skiway.errors import InvalidArgument, LimitExceeded, NotFound
from skiway.foundation.clock import Clock, utc_now
from skiway.foundation.extras import opener_for_url

MAX_SECRET_BYTES = 65_536  # the limit of AWS Secrets Manager; the same for all stores, so that they are interchangeable


class SecretsStore(Protocol):
    """Secrets by account, kind (such as `connectors`) and id. Thread-safe."""

    def put(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """Store `data`, replacing an existing secret."""

    def get(self, account_id: str, kind: str, resource_id: str) -> bytes:
        """The secret. Raises `NotFound`."""

    def update(self, account_id: str, kind: str, resource_id: str, data: bytes) -> None:
        """Replace an existing secret. Raises `NotFound`."""

    def delete(self, account_id: str, kind: str, resource_id: str) -> None:
        """Delete the secret permanently, if it exists."""


def secret_key(account_id: str, kind: str, resource_id: str) -> str:
    """The name of a secret, `accounts/{account}/{kind}/{id}`. It is unique, whatever characters the ids contain."""
    return "/".join(("accounts", *(_segment(part) for part in (account_id, kind, resource_id))))


def check_size(key: str, data: bytes) -> None:
    """Reject a secret that is too large for some store."""
    if len(data) > MAX_SECRET_BYTES:
        raise LimitExceeded(
            f"secret {key} has {len(data)} bytes, the maximum is {MAX_SECRET_BYTES}: store less in it",
            key="secret.too_large",
        )


def no_such_secret(key: str) -> NotFound:
    """The error for a missing secret."""
    return NotFound(f"secret {key} does not exist: store it again", key="secret")


class MemorySecrets:
    """Secrets in memory, lost when the process ends. For tests and experiments."""

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
    # Encode what quote() leaves as it is: AWS does not allow `~` in names, and `.` and `..` are directories.
    encoded = quote(part, safe="").replace("~", "%7E")
    return encoded.replace(".", "%2E") if encoded in (".", "..") else encoded


SECRETS_STORES = "skiway.secrets_stores"

BUILT_IN = {
    "memory": "skiway.security.secrets.store:open_memory",
    "file": "skiway.security.secrets.files:open_directory",
    "aws": "skiway.security.secrets.aws:open_aws",
}

AWS_CREDENTIALS = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}


class OpenSecrets(Protocol):
    """Opens a secrets store. `options` holds what does not belong in a URL, such as keys and credentials."""

    def __call__(self, url: str, *, options: Mapping[str, str], clock: Clock) -> SecretsStore:
        """The store that `url` names."""


def open_secrets(url: str, *, options: Mapping[str, str] | None = None, clock: Clock = utc_now) -> SecretsStore:
    """The secrets store that `url` names, such as `file:///srv/skiway/secrets`."""
    opener = cast(OpenSecrets, opener_for_url(SECRETS_STORES, url, BUILT_IN))
    return opener(url, options=options or {}, clock=clock)


def open_memory(url: str, *, options: Mapping[str, str], clock: Clock) -> SecretsStore:  # noqa: ARG001
    """An empty store in memory, for `memory://`."""
    if url.removeprefix("memory:").strip("/") or options:
        raise InvalidArgument("the secrets store in memory takes neither a path nor options: use memory://")
    return MemorySecrets()


def parameters_of(query: str, options: Mapping[str, str], *, known: set[str]) -> dict[str, str]:
    """The parameters of the URL and the options. Errors contain no values, which may be secret."""
    in_url = dict(parse_qsl(query))
    given = {**in_url, **options}
    if unknown := sorted(given.keys() - known):
        raise InvalidArgument(
            f"the secrets store has no parameter {', '.join(unknown)}: use any of {', '.join(sorted(known))}"
        )
    if secret := sorted(in_url.keys() & {"keys", *AWS_CREDENTIALS}):
        raise InvalidArgument(
            f"the URL of the secrets store contains {', '.join(secret)}, and URLs are logged: pass it as an option"
        )
    return given
