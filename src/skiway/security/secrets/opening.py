"""Open a secrets store by URL. The scheme selects the store; packages can add stores as entry points.

An entry point of the group `skiway.secrets_stores` is named after its URL scheme and refers to a function with the
signature of `OpenSecrets`. A store's module is imported when the store is opened.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from skiway.errors import InvalidArgument
from skiway.foundation import extras
from skiway.foundation.clock import Clock, utc_now
from skiway.foundation.extras import opener_for_url, url_scheme
from skiway.security.secrets.store import MemorySecrets, SecretsStore

SECRETS_STORES = "skiway.secrets_stores"

BUILT_IN = {
    "memory": "skiway.security.secrets.opening:open_memory",
    "file": "skiway.security.secrets.opening:open_directory",
    "aws": "skiway.security.secrets.opening:open_aws",
}

AWS_CREDENTIALS = {"aws_access_key_id", "aws_secret_access_key", "aws_session_token"}


class OpenSecrets(Protocol):
    """Opens a secrets store. `options` holds what does not belong in a URL, such as keys and credentials."""

    def __call__(self, url: str, *, options: Mapping[str, str], clock: Clock) -> SecretsStore:
        """The store that `url` names."""


def open_secrets(url: str, *, options: Mapping[str, str] | None = None, clock: Clock = utc_now) -> SecretsStore:
    """The secrets store that `url` names, such as `file:///srv/skiway/secrets`."""
    opener = cast(OpenSecrets, opener_for_url(SECRETS_STORES, url, BUILT_IN))
    scheme = url_scheme(url)
    with extras.needed("lake", f"a secrets store at {scheme}:", when=scheme in BUILT_IN):
        return opener(url, options=options or {}, clock=clock)


def open_memory(url: str, *, options: Mapping[str, str], clock: Clock) -> SecretsStore:  # noqa: ARG001
    """An empty store in memory, for `memory://`."""
    if url.removeprefix("memory:").strip("/") or options:
        raise InvalidArgument("the secrets store in memory takes neither a path nor options: use memory://")
    return MemorySecrets()


def open_directory(url: str, *, options: Mapping[str, str], clock: Clock) -> SecretsStore:  # noqa: ARG001
    """Encrypted files, for `file:///directory?key_file=...`. The option `keys` gives the keys themselves."""
    from skiway.security.secrets.files import KEY_FILE, FileSecrets, KeyRing, key_ring_in

    parsed = urlsplit(url)
    given = _parameters(parsed.query, options, known={"key_file", "keys"})
    if parsed.netloc not in ("", "localhost") or not parsed.path.startswith("/"):
        raise InvalidArgument(
            f"{parsed.scheme}://{parsed.netloc}{parsed.path} is not a directory of this machine: use file:///path"
        )
    directory = Path(unquote(parsed.path))
    if keys := given.get("keys"):
        return FileSecrets(directory, KeyRing.parsed(keys))
    key_file = Path(given.get("key_file") or directory / KEY_FILE)
    return FileSecrets(directory, key_ring_in(key_file, secrets=directory))


def open_aws(url: str, *, options: Mapping[str, str], clock: Clock) -> SecretsStore:
    """AWS Secrets Manager, for `aws://prefix?region=...&role_arn=...`. Credentials are options."""
    from skiway.security.secrets.aws import AssumedRole, AwsAccess, AwsSecrets, OneClient

    parsed = urlsplit(url)
    given = _parameters(parsed.query, options, known={"region", "endpoint", "role_arn", *AWS_CREDENTIALS})
    credentials = {name: value for name, value in given.items() if name in AWS_CREDENTIALS}
    access = AwsAccess(region=given.get("region"), endpoint=given.get("endpoint"), credentials=credentials)
    role = given.get("role_arn")
    clients = AssumedRole(access, role, clock=clock) if role else OneClient(access)
    return AwsSecrets(clients, prefix=f"{parsed.netloc}{unquote(parsed.path)}" or "skiway")


def _parameters(query: str, options: Mapping[str, str], *, known: set[str]) -> dict[str, str]:
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
