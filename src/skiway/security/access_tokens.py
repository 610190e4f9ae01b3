"""Access tokens: short-lived tokens that stand for a static token, for clients that use OAuth 2.

An access token names the hash of the static token that it was issued for, and is signed with a key that the servers share and
that is in the secrets store. So whoever reads the file with the hashes cannot make one, and it is worthless as soon as the
static token is revoked or expires. It can be exchanged for a new one until the session ends; then the client must send its
static token again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from skiway.clock import Clock, utc_now
from skiway.errors import Unauthorized
from skiway.security.signed_text import SignedText

__all__ = ["ACCESS_PREFIX", "AccessToken", "AccessTokens"]

ACCESS_PREFIX: Final = "skiway_access_"


class AccessToken(msgspec.Struct, array_like=True, frozen=True):
    """The content of an access token: the hash of its static token, when the session began, and when the token expires."""

    sha256: str
    since: int
    until: int

    @property
    def expires_at(self) -> datetime:
        """When it expires."""
        return datetime.fromtimestamp(self.until, UTC)


class AccessTokens:
    """Makes and reads access tokens. One is valid for `lifetime_s` seconds, all of a session together for `session_s`."""

    def __init__(
        self, key: bytes, *, lifetime_s: float = 3600, session_s: float = 43200, clock: Clock = utc_now
    ) -> None:
        self._signed = SignedText(key, "access tokens")
        self._lifetime, self._session = timedelta(seconds=lifetime_s), timedelta(seconds=session_s)
        self._clock = clock

    def issue(self, digest: str, *, since: datetime | None = None, until: datetime | None = None) -> tuple[str, float]:
        """A token for the static token with this hash, and for how many seconds it is valid.

        `since` is when the session began, now if it begins; `until` is when the static token expires. Raises `Unauthorized`
        if the session is over.
        """
        now = self._clock()
        start = since or now
        ends = min(filter(None, (now + self._lifetime, start + self._session, until)))
        if ends <= now:
            raise Unauthorized(
                "the session of the access token is over: request a new one with the client's credentials",
                key="token.session",
            )
        content = msgspec.json.encode(AccessToken(digest, int(start.timestamp()), int(ends.timestamp())))
        return f"{ACCESS_PREFIX}{self._signed.seal(content)}", int((ends - now).total_seconds())

    def read(self, token: str, *, expired: bool = False) -> AccessToken:
        """The content of a token; raises `Unauthorized` if it was not issued here or, unless `expired`, has expired."""
        found = self._signed.open(token.removeprefix(ACCESS_PREFIX))
        if found is None:
            raise Unauthorized("the access token is unknown: request a new one", key="token.unknown")
        read = msgspec.json.decode(found, type=AccessToken)
        if not expired and self._clock() >= read.expires_at:
            raise Unauthorized(
                f"the access token was valid until {read.expires_at.isoformat()}: request a new one",
                key="token.expired",
            )
        return read
