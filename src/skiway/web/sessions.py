"""Sessions of visitors and logins in progress: encrypted cookies that expire, and tokens against forged requests.

A session contains the token that its visitor logged in with, encrypted with a key that all servers share. It is valid for
some hours, and ends when the visitor logs out. Each form contains a token that only pages of this server can know.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Protocol

import msgspec
from cryptography.fernet import Fernet, InvalidToken

from skiway.clock import Clock, utc_now
from skiway.web.visits import Visitor

__all__ = ["ATTEMPT_COOKIE", "ATTEMPT_LIFETIME", "COOKIE", "LIFETIME", "Attempt", "Ended", "Sessions"]

COOKIE: Final = "skiway_session"
LIFETIME: Final = timedelta(hours=8)
ATTEMPT_COOKIE: Final = "skiway_login"
ATTEMPT_LIFETIME: Final = timedelta(minutes=10)


class _Content(msgspec.Struct, array_like=True, frozen=True):
    session_id: str
    token: str
    valid_until: float


class Attempt(msgspec.Struct, array_like=True, frozen=True):
    """A login at an identity provider in progress: what proves that it began here, and where it leads."""

    state: str
    verifier: str
    target: str
    nonce: str

    @classmethod
    def new(cls, target: str) -> Attempt:
        """A login that leads to the path `target`."""
        return cls(secrets.token_urlsafe(32), secrets.token_urlsafe(32), target, secrets.token_urlsafe(32))


class Ended(Protocol):
    """The sessions that have ended before they expired."""

    def add(self, session_id: str, expires_at: datetime, /) -> None:
        """Record that a session has ended. The record is needed until then."""

    def __contains__(self, session_id: object, /) -> bool: ...


class Sessions:
    """Makes and reads cookies. `key` and `ended` are the same for all servers that visitors may reach."""

    def __init__(self, key: bytes, ended: Ended, *, clock: Clock = utc_now) -> None:
        self._key, self._ended, self._clock = key, ended, clock
        self._cipher = Fernet(urlsafe_b64encode(sha256(b"explorer session\0" + key).digest()))
        self._attempts = Fernet(urlsafe_b64encode(sha256(b"explorer login\0" + key).digest()))

    def start(self, token: str) -> str:
        """The cookie of a new session."""
        until = (self._clock() + LIFETIME).timestamp()
        content = _Content(secrets.token_urlsafe(16), token, until)
        return self._cipher.encrypt(msgspec.json.encode(content)).decode()

    def visitor(self, cookie: str) -> Visitor | None:
        """The visitor that a cookie belongs to; None if it is invalid, has expired, or its session has ended."""
        try:
            content = msgspec.json.decode(self._cipher.decrypt(cookie.encode()), type=_Content)
        except (InvalidToken, msgspec.MsgspecError, UnicodeError):
            return None
        if self._clock().timestamp() >= content.valid_until or content.session_id in self._ended:
            return None
        return Visitor(content.token, content.session_id)

    def sealed(self, attempt: Attempt) -> str:
        """The cookie of a login in progress."""
        now = int(self._clock().timestamp())
        return self._attempts.encrypt_at_time(msgspec.json.encode(attempt), now).decode()

    def attempt(self, cookie: str) -> Attempt | None:
        """The login that a cookie belongs to; None if it is invalid or has expired."""
        now, most = int(self._clock().timestamp()), int(ATTEMPT_LIFETIME.total_seconds())
        try:
            return msgspec.json.decode(self._attempts.decrypt_at_time(cookie.encode(), most, now), type=Attempt)
        except (InvalidToken, msgspec.MsgspecError, UnicodeError):
            return None

    def end(self, session_id: str) -> None:
        """End a session before it expires."""
        self._ended.add(session_id, self._clock() + LIFETIME)

    def form_token(self, session_id: str) -> str:
        """The token in the forms of a session."""
        return hmac.new(self._key, b"explorer form\0" + session_id.encode(), sha256).hexdigest()

    def is_form_token(self, session_id: str, given: str) -> bool:
        """Whether a form comes from a page of this session."""
        return hmac.compare_digest(self.form_token(session_id).encode(), given.encode(errors="replace"))
