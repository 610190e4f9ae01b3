"""Query tokens: with one, the process of a query reads tables on behalf of its caller, for as long as the query may take.

A token contains the principal of the caller and is signed with a key that the servers share. Its holder can read what the caller
can read and change nothing, over Airport only.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from skiway.clock import Clock, utc_now
from skiway.errors import PermissionDenied, Unauthorized
from skiway.security.principals import READ, Authorizer, Claim, Principal
from skiway.security.signed_text import SignedText

__all__ = ["QUERY_PREFIX", "QueryTokens", "ReadOnlyAuthorizer"]

QUERY_PREFIX: Final = "skiway_query_"


class _Content(msgspec.Struct, frozen=True):
    subject: str
    account: str
    roles: list[str]
    permissions: list[str]
    groups: list[str]
    claims: dict[str, Claim]
    until: int


class QueryTokens:
    """Makes and reads query tokens."""

    prefix: Final = QUERY_PREFIX

    def __init__(self, key: bytes, *, clock: Clock = utc_now) -> None:
        self._signed = SignedText(key, "query tokens")
        self._clock = clock

    def issue(self, principal: Principal, lifetime_s: float) -> str:
        """A token of the principal, valid for some seconds, and not longer than the caller's own credentials."""
        until = self._clock() + timedelta(seconds=lifetime_s)
        if principal.expires_at is not None:
            until = min(until, principal.expires_at)
        content = _Content(
            principal.subject,
            principal.account_id,
            sorted(principal.roles),
            sorted(principal.permissions & READ),
            sorted(principal.groups),
            dict(principal.claims),
            int(until.timestamp()),
        )
        return f"{QUERY_PREFIX}{self._signed.seal(msgspec.json.encode(content))}"

    def principal(self, token: str) -> Principal:
        """The principal of a token; raises `Unauthorized` if it was not issued here, or has expired."""
        found = self._signed.open(token.removeprefix(QUERY_PREFIX))
        if found is None:
            raise Unauthorized("the token of the query is unknown", key="token.unknown")
        content = msgspec.json.decode(found, type=_Content)
        until = datetime.fromtimestamp(content.until, UTC)
        if self._clock() >= until:
            raise Unauthorized(f"the token of the query was valid until {until.isoformat()}", key="token.expired")
        return Principal(
            content.subject,
            content.account,
            frozenset(content.roles),
            frozenset(content.permissions) & READ,
            expires_at=until,
            groups=frozenset(content.groups),
            claims=content.claims,
            read_only=True,
        )


class ReadOnlyAuthorizer:
    """Refuses callers with query tokens everything but reading, and asks the usual authorizer otherwise."""

    def __init__(self, usual: Authorizer) -> None:
        self._usual = usual

    def require(self, principal: Principal, *any_of: str) -> None:
        """Return if the caller has one of the permissions."""
        if principal.read_only:
            any_of = tuple(each for each in any_of if each in READ)
            if not any_of:
                raise PermissionDenied("the token of a query can only read", key="token.read_only")
        self._usual.require(principal, *any_of)
