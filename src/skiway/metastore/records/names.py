"""Names are stored exactly as they are given, and must be in normal form: trimmed, in Unicode normalization form NFKC, with
single spaces.

A name that is not is rejected, and the error suggests its normal form: otherwise two names that look alike could be
different, or a client could not find what it has created. A name that is looked up may have any form.

Case is preserved. A name may contain any other character, including dots and slashes: in keys each name is
percent-encoded, so a namespace `a.b` and a namespace `b` in `a` are different.

Properties are visible to everyone who can see a resource, so names of secrets are rejected as property keys.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from skiway.errors import InvalidArgument, LimitExceeded
from skiway.metastore.records.errors import failure

BRANCH_MARK: Final = "@"
"""Separates the name of a catalog from that of a branch of it."""
STATISTICS_OFFER: Final = "statistics.offer"
"""The property that says whether clients are told to ask for statistics of columns."""
STATISTICS_OFFERS: Final = ("auto", "always", "never")

MAX_NAME = 255
MAX_DEPTH = 16
MAX_PROPERTIES = 10_000
_IS_PLAIN = re.compile(r"[A-Za-z0-9_.~-]*", re.ASCII).fullmatch
INVISIBLE = {"Cc", "Cf", "Zs", "Zl", "Zp"}
"""The Unicode categories of control and format characters, and of white space."""


def normal_text(text: str) -> str:
    r"""`text` in the normal form of names; empty if it has no visible character.

    >>> normal_text("  Ｓales  \t 2025 ")
    'Sales 2025'
    """
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    return name if any(unicodedata.category(character) not in INVISIBLE for character in name) else ""


def exact_name(text: str, *, resource: str) -> str:
    """The name of a new resource, which is stored as it is. Raise if it is blank, too long, or not in normal form."""
    if not normal_text(text):
        raise failure(InvalidArgument, "display.name.required", resource=resource, field="display_name")
    return exact_text(text, field="display_name")


def exact_text(text: str, *, field: str) -> str:
    """A name as it is; empty if it is blank. Raise if it is too long or not in normal form."""
    normal = normal_text(text)
    if normal and normal != text:
        raise failure(InvalidArgument, "name.not.normal", field=field, found=repr(text), wanted=repr(normal))
    return _short_enough(normal, field=field)


def exact_path(segments: Iterable[str], *, field: str) -> tuple[str, ...]:
    """The path of a new namespace. Raise if a segment is blank, too long or not in normal form, or the path too deep."""
    path = tuple(segments)
    for segment, normal in zip(path, normal_path(path, field=field), strict=True):
        if normal != segment:
            raise failure(InvalidArgument, "name.not.normal", field=field, found=repr(segment), wanted=repr(normal))
    return path


def normal_path(segments: Iterable[str], *, field: str) -> tuple[str, ...]:
    """The normal forms of the segments of a path to look up. Raise if one is blank or too long, or the path too deep."""
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
    # Most segments are ids, and quoting takes ten times as long as this check.
    return segment if _IS_PLAIN(segment) else quote(segment, safe="")


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


def check_properties(properties: Mapping[str, str]) -> None:
    """Raise if a property of an object is the name of a secret, has a wrong value, or if there are too many."""
    refuse_secrets(properties, field="properties")
    check_choice(properties, STATISTICS_OFFER, STATISTICS_OFFERS)


def check_choice(properties: Mapping[str, str], name: str, choices: Sequence[str]) -> None:
    """Raise if a property has a value that is not one of the choices."""
    text = properties.get(name, choices[0])
    if text not in choices:
        raise InvalidArgument(
            f"property {name} is {text!r}, but must be {', '.join(choices[:-1])} or {choices[-1]}",
            key="property.invalid",
            field="properties",
        )


def refuse_secrets(properties: Iterable[str], *, field: str) -> None:
    """Raise if a key is the name of a secret, in any spelling, or if there are too many."""
    names = list(properties)
    if len(names) > MAX_PROPERTIES:
        raise failure(LimitExceeded, "property.too_many", field=field, found=str(len(names)), limit=str(MAX_PROPERTIES))
    for key in names:
        if PUNCTUATION.sub("_", HUMPS.sub("_", key)).strip("_").lower() in SECRETS:
            raise failure(InvalidArgument, "property.secret", field=field, property=key)
