"""Logging in and out: with a token, or at an identity provider; and the sessions that logins start.

A session is an encrypted cookie with the token that its visitor logged in with; all servers share the key. It is valid for some
hours, and ends when the visitor logs out. Each form contains a token that only pages of this server can know.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.foundation.clock import Clock, utc_now
from skiway.foundation.doors import WrongSecrets
from skiway.web.visits import Page, Visitor

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


CALLBACK: Final = "/login/callback"
MAX_COOKIE_BYTES: Final = 4000
"""Browsers ignore cookies of more than 4096 bytes, name and attributes included."""


class Provider(Protocol):
    """An identity provider; see `skiway.security.oidc.CodeLogin`."""

    @property
    def name(self) -> str: ...

    def address(self, redirect_uri: str, *, state: str, verifier: str, nonce: str) -> str: ...

    def tokens(self, code: str, *, verifier: str, redirect_uri: str, nonce: str) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class Login:
    """How visitors log in: not at all, or with a token. `check` raises if the token is not valid.

    Visitors enter their token, or log in at the `provider`, which issues one.
    """

    required: bool = False
    check: Callable[[str], None] = lambda _: None
    provider: Provider | None = None
    wrong: WrongSecrets = field(default_factory=WrongSecrets)


def log_in(
    login: Login, sessions: Sessions, request: Request, form: Mapping[str, str], *, is_https: bool
) -> Response | Page:
    """The login page, or the start of a session with the token in its form."""
    target = form.get("next") or request.query_params.get("next", "/")
    if request.method != "POST":
        return login_page(login, target, request.query_params.get("reason", ""), 200)
    token = form.get("token", "").strip()
    try:
        login.check(token)
    except Unauthorized:
        login.wrong.count(request.client.host if request.client else "")
        raise
    return _started(sessions, token, _local_path(target), is_https=is_https)


def login_page(login: Login, target: str, reason: str, status: int) -> Page:
    """The page on which visitors log in; `reason` says why they have to."""
    data = {"next": _local_path(target), "reason": reason, "provider": login.provider.name if login.provider else ""}
    return Page("login.html", "Log in", data, status)


def send_to_provider(provider: Provider, sessions: Sessions, request: Request, origin: str) -> Response:
    """Send the browser to the identity provider. What is needed when it returns is in an encrypted cookie."""
    attempt = Attempt.new(_local_path(request.query_params.get("next", "/")))
    redirect_uri = f"{origin}{CALLBACK}"
    address = provider.address(redirect_uri, state=attempt.state, verifier=attempt.verifier, nonce=attempt.nonce)
    response = RedirectResponse(address, 303)
    response.set_cookie(
        ATTEMPT_COOKIE,
        sessions.sealed(attempt),
        max_age=int(ATTEMPT_LIFETIME.total_seconds()),
        path=CALLBACK,
        httponly=True,
        samesite="lax",
        secure=origin.startswith("https:"),
    )
    return response


def call_back(login: Login, sessions: Sessions, request: Request, origin: str) -> Response:
    """Start a session when the browser returns from the identity provider with a code."""
    assert login.provider is not None
    attempt = sessions.attempt(request.cookies.get(ATTEMPT_COOKIE, ""))
    given = request.query_params
    state = given.get("state", "").encode(errors="replace")
    if attempt is None or not hmac.compare_digest(attempt.state.encode(), state):
        raise InvalidArgument(
            "this login was begun in another browser, or too long ago: log in again", key="login.unknown"
        )
    if "code" not in given:
        reason = "".join(each for each in given.get("error", "it gave no reason")[:100] if each.isprintable())
        raise Unauthorized(f"the identity provider refused the login: {reason}", key="login.refused")
    tokens = login.provider.tokens(
        given["code"], verifier=attempt.verifier, redirect_uri=f"{origin}{CALLBACK}", nonce=attempt.nonce
    )
    response = _started(sessions, _accepted(login, tokens), attempt.target, is_https=origin.startswith("https:"))
    response.delete_cookie(ATTEMPT_COOKIE, path=CALLBACK)
    return response


def _accepted(login: Login, tokens: list[str]) -> str:
    """The first token that the server accepts. If it accepts none, the error says why not the first."""
    refused: SkiwayError | None = None
    for token in tokens:
        try:
            login.check(token)
        except SkiwayError as error:
            refused = refused or error
        else:
            return token
    assert refused is not None
    raise refused


def _started(sessions: Sessions, token: str, target: str, *, is_https: bool) -> Response:
    cookie = sessions.start(token)
    if len(cookie) > MAX_COOKIE_BYTES:
        raise InvalidArgument(
            f"the token has {len(token)} characters, which is more than a session can hold: have the identity provider issue "
            "tokens with fewer claims",
            key="login.too_large",
        )
    response = RedirectResponse(target, 303)
    response.set_cookie(
        COOKIE, cookie, max_age=int(LIFETIME.total_seconds()), httponly=True, samesite="lax", secure=is_https
    )
    return response


def _local_path(target: str) -> str:
    """A path on this server, from a link that anybody may have made."""
    parts = urlsplit(target)
    is_local = not parts.scheme and not parts.netloc and target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if is_local else "/"


def login_address(path: str, query: str, reason: str = "") -> str:
    """The address of the login page for somebody who asked for another page."""
    target = quote(path + (f"?{query}" if query else ""), safe="")
    why = f"&reason={quote(reason[:200], safe='')}" if reason else ""
    return f"/login?next={target}{why}"
