"""Properties are shown to everybody who may see the resource, so they must not hold secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable

from skiway.errors import InvalidArgument
from skiway.metastore.failures import failure

__all__ = ["refuse_secrets"]

# What secrets are called, words joined by underscores.
SECRETS = frozenset(
    (
        "authorization",
        "bearer",
        "token",
        "access_token",
        "refresh_token",
        "session_token",
        "id_token",
        "client_secret",
        "secret",
        "password",
        "access_key",
        "access_key_id",
        "secret_key",
        "secret_access_key",
        "private_key",
        "private_key_pem",
        "api_key",
        "assertion",
        "credentials",
        "jwt",
    )
)
HUMPS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
PUNCTUATION = re.compile(r"[^A-Za-z0-9]+")


def refuse_secrets(properties: Iterable[str], *, field: str) -> None:
    """Raise if a key, in whatever spelling, is what secrets are called."""
    for key in properties:
        if PUNCTUATION.sub("_", HUMPS.sub("_", key)).strip("_").lower() in SECRETS:
            raise failure(InvalidArgument, "property.secret", field=field, property=key)
