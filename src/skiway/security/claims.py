"""What the claims of a verified token say of its bearer. Providers write the same thing in many ways."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from skiway.errors import Unauthorized
from skiway.security.authentication import Identity

__all__ = ["ClaimNames", "identity_of", "moment_of"]

KEYCLOAK_ROLES = "realm_access.roles"


@dataclass(frozen=True, slots=True)
class ClaimNames:
    """Which claim holds what. `a.b` is the claim of that name, or else `b` inside of `a`."""

    account: str = "account_id"
    roles: str = "roles"
    locale: str = "locale"


def identity_of(claims: Mapping[str, Any], names: ClaimNames) -> Identity:
    """The bearer."""
    subject, locale = claims.get("sub"), claims.get(names.locale)
    if not isinstance(subject, str) or not subject.strip():
        raise _wrong("sub", "no name of the caller")
    return Identity(
        subject,
        _account(_claim(claims, names.account), names.account),
        _roles(claims, names.roles),
        locale=locale if isinstance(locale, str) else "",
        expires_at=moment_of(claims, "exp"),
    )


def moment_of(claims: Mapping[str, Any], name: str) -> datetime | None:
    """A claim that is a time, in seconds since 1970."""
    seconds = claims.get(name)
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise _wrong(name, "no time in seconds since 1970")
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        raise _wrong(name, "a time out of range") from None


def _account(found: Any, name: str) -> str:
    """An id as text, as a number, or as the first of a list; empty when there is none."""
    first = found[0] if isinstance(found, list) and found else found
    match first:
        case None | []:
            return ""
        case str():
            return first.strip()
        case int() if not isinstance(first, bool):
            return str(first)
        case _:
            raise _wrong(name, "neither text nor a whole number")


def _roles(claims: Mapping[str, Any], name: str) -> frozenset[str]:
    """Names as one text, as a list, or as a list in JSON in a text; where the claim is absent, Keycloak's."""
    found = _claim(claims, name)
    if found is None:
        found = _claim(claims, KEYCLOAK_ROLES)
    if isinstance(found, str) and found.lstrip().startswith("["):
        found = _from_json(found, name)
    if isinstance(found, str):
        found = [found]
    if found is None:
        return frozenset()
    if not isinstance(found, list) or not all(isinstance(role, str) for role in found):
        raise _wrong(name, "neither text nor a list of texts")
    return frozenset(found)


def _from_json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _wrong(name, "a list in JSON that is broken") from None


def _claim(claims: Mapping[str, Any], path: str) -> Any:
    if path in claims:
        return claims[path]
    found: Any = claims
    for step in path.split("."):
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _wrong(claim: str, found: str) -> Unauthorized:
    return Unauthorized(
        f"the token's claim {claim} is {found}: have the issuer put it right, or name another claim in the settings",
        key="token.claim",
        claim=claim,
    )
