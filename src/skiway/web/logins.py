"""Logging in and out: with a token, or at an identity provider."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from skiway.doors import WrongSecrets
from skiway.errors import InvalidArgument, SkiwayError, Unauthorized
from skiway.web.sessions import ATTEMPT_COOKIE, ATTEMPT_LIFETIME, COOKIE, LIFETIME, Attempt, Sessions
from skiway.web.visits import Page

__all__ = [
    "CALLBACK",
    "Login",
    "Provider",
    "call_back",
    "log_in",
    "login_address",
    "login_page",
    "send_to_provider",
]

CALLBACK: Final = "/login/callback"
MAX_COOKIE_BYTES: Final = 4000
"""Browsers ignore cookies of more than 4096 bytes, name and attributes included."""


class Provider(Protocol):
    """An identity provider; see `skiway.security.code_login.CodeLogin`."""

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
