"""Names as they are stored: trimmed, in Unicode normalization form NFKC, with runs of white space replaced by one
space.

Case is preserved. A name may contain any other character, including dots and slashes: in keys each name is
percent-encoded, so a namespace `a.b` and a namespace `b` in `a` are different.

Properties are visible to everyone who can see a resource, so names of secrets are rejected as property keys.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from urllib.parse import quote

from skiway.errors import InvalidArgument, LimitExceeded
from skiway.metastore.records.errors import failure

__all__ = [
    "HUMPS",
    "MAX_DEPTH",
    "MAX_NAME",
    "PUNCTUATION",
    "SECRETS",
    "dotted",
    "encoded",
    "folded",
    "normal_name",
    "normal_path",
    "normal_text",
    "refuse_secrets",
]

MAX_NAME = 255
MAX_DEPTH = 16
INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}
"""The Unicode categories of control and format characters, and of white space."""


def normal_text(text: str) -> str:
    r"""`text` as names are stored; empty if it has no visible character.

    >>> normal_text("  Ｓales  \t 2025 ")
    'Sales 2025'
    """
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    return name if any(unicodedata.category(character) not in INVISIBLE for character in name) else ""


def normal_name(text: str, *, resource: str) -> str:
    """The name of a resource as it is stored. Raise if it is blank or too long."""
    name = normal_text(text)
    if not name:
        raise failure(InvalidArgument, "display.name.required", resource=resource, field="display_name")
    return _short_enough(name, field="display_name")


def normal_path(segments: Iterable[str], *, field: str) -> tuple[str, ...]:
    """The segments of a namespace path as they are stored. Raise if one is blank or too long, or the path too deep."""
    path = tuple(map(normal_text, segments))
    if not all(path):
        raise failure(InvalidArgument, "path.segment.blank", field=field)
    if len(path) > MAX_DEPTH:
        raise failure(LimitExceeded, "path.too_deep", found=str(len(path)), limit=str(MAX_DEPTH))
    return tuple(_short_enough(segment, field=field) for segment in path)


def folded(name: str) -> str:
    """The same text for all names that differ only in case.

    >>> folded("Straße") == folded("STRASSE")
    True
    """
    return unicodedata.normalize("NFKC", name.casefold())


def dotted(path: Iterable[str]) -> str:
    """A path for messages; different paths may look the same."""
    return ".".join(path)


def encoded(segment: str) -> str:
    """`segment` as one part of a key: everything but ASCII letters, digits and `-._~` becomes `%XX`."""
    return quote(segment, safe="")


def _short_enough(name: str, *, field: str) -> str:
    if len(name) > MAX_NAME:
        raise failure(LimitExceeded, "name.too_long", field=field, found=str(len(name)), limit=str(MAX_NAME))
    return name


# Names of secrets, words joined by underscores.
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
    """Raise if a key is the name of a secret, in any spelling."""
    for key in properties:
        if PUNCTUATION.sub("_", HUMPS.sub("_", key)).strip("_").lower() in SECRETS:
            raise failure(InvalidArgument, "property.secret", field=field, property=key)
