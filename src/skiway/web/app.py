"""The ASGI app of the explorer: routes, sessions, headers and errors."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from skiway import errors
from skiway.errors import NotFound, PermissionDenied, SkiwayError, Unauthorized
from skiway.foundation.doors import EXPLANATIONS, bearer_token, disclosed, require_at_most, status_in
from skiway.web.logins import (
    CALLBACK,
    COOKIE,
    Ended,
    Login,
    Sessions,
    call_back,
    log_in,
    login_address,
    login_page,
    send_to_provider,
)
from skiway.web.navigation import OBJECTS, place_of
from skiway.web.pages import PAGES
from skiway.web.rendering import json_text, rendered
from skiway.web.visits import Clients, Page, Redirect, Visit, Visitor

log = logging.getLogger("skiway.web")

MAX_FORM_BYTES: Final = 1 << 16
MAX_FIELDS: Final = 100
VISITOR_COOKIE: Final = "skiway_visitor"
_METHODS: Final = {"GET": "GET", "HEAD": "GET", "POST": "POST"}
HTML: Final = "text/html; charset=utf-8"
HEADERS: Final = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
STATUSES: Final[Mapping[type[SkiwayError], int]] = {
    errors.Unauthorized: 401,
    errors.PermissionDenied: 403,
    errors.NotFound: 404,
    errors.InvalidArgument: 400,
    errors.PreconditionFailed: 409,
    errors.AlreadyExists: 409,
    errors.Contention: 503,
    errors.Conflict: 409,
    errors.Unsupported: 501,
    errors.LimitExceeded: 429,
    errors.Unavailable: 503,
    errors.TimedOut: 504,
    errors.Cancelled: 503,
    errors.SkiwayError: 500,
}
"""The status of a page, for people and programs. Iceberg clients expect other ones in some cases, see `skiway.rest.errors`."""


class Explorer:
    """An ASGI app. `clients` act for visitors, `key` protects their sessions, and `ended` are those that they logged out of.

    `public_url` is the address that browsers use, if it is another one than that of the server: behind a proxy, for example.
    """

    def __init__(
        self,
        clients: Clients,
        *,
        key: Callable[[], bytes],
        ended: Ended,
        login: Login | None = None,
        public_url: str = "",
    ) -> None:
        self._clients, self._login, self._public_url = clients, login or Login(), public_url.rstrip("/")
        self._key, self._ended = key, ended
        self._made: Sessions | None = None
        static = GZipMiddleware(StaticFiles(directory=str(files("skiway.web") / "static")))
        self._app = Starlette(
            routes=[
                Mount("/static", static),
                Route("/login", self._login_page, methods=["GET", "POST"]),
                Route("/login/provider", self._provider, methods=["GET"]),
                Route(CALLBACK, self._provider, methods=["GET"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/{path:path}", self._serve, methods=["GET", "POST"]),
            ]
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @property
    def _sessions(self) -> Sessions:
        if self._made is None:
            self._made = Sessions(self._key(), self._ended)
        return self._made

    # -- pages --------------------------------------------------------------------------------------------------------

    async def _serve(self, request: Request) -> Response:
        return await run_in_threadpool(self._answer, request, await _body(request))

    def _answer(self, request: Request, body: bytes) -> Response:
        visitor, cookie = self._visitor(request)
        if visitor is None:
            return self._to_login(request)
        kind, segments, wants_json = _split(request.scope)
        try:
            show = PAGES.get((_METHODS[request.method], kind))
            if show is None:
                raise NotFound(
                    f"there is no page {kind[:100]!r}: start at the home page, or search", key="page.unknown"
                )
            form = _fields(body)
            if request.method == "POST":
                self._check_form(request, visitor, form)
            result = show(
                Visit(visitor, self._clients, segments, dict(request.query_params), form, self._origin(request))
            )
        except Unauthorized as error:
            if self._login.required and not wants_json:
                return self._to_login(request, error.message)
            result = _error_page(error)
        except Exception as error:  # noqa: BLE001 - errors become pages here
            result = _error_page(error)
        if isinstance(result, Redirect):
            return _finished(RedirectResponse(result.to, 303))
        if isinstance(result, Response):
            return _finished(result)
        if wants_json:
            return _finished(_json(result))
        response = self._html(request, result, visitor)
        if cookie:
            response.set_cookie(
                VISITOR_COOKIE,
                cookie,
                httponly=True,
                samesite="strict",
                secure=self._origin(request).startswith("https:"),
            )
        return response

    def _html(self, request: Request, page: Page, visitor: Visitor) -> Response:
        kind, names, _ = _split(request.scope)
        shell = {
            "title": page.title,
            "has_navigation": not self._login.required or visitor != Visitor(),
            "may_log_out": self._login.required and bool(visitor.session_id),
            "form_token": self._sessions.form_token(visitor.session_id),
            "place": place_of(kind),
            "path": names if kind in OBJECTS else (),
            "now": self._clients.clock(),
            "is_fragment": request.headers.get("hx-request") == "true",
        }
        try:
            text = rendered(page.template, {**page.data, "shell": shell}).encode()
        except Exception as error:  # noqa: BLE001 - a page that cannot be shown is an error of the server
            page = _error_page(error)
            text = _shown_error(page, shell).encode()
        return _finished(Response(text, page.status, media_type=HTML))

    def _origin(self, request: Request) -> str:
        """The address of the server as the visitor knows it."""
        return self._public_url or f"{request.url.scheme}://{request.url.netloc}"

    # -- visitors -----------------------------------------------------------------------------------------------------

    def _visitor(self, request: Request) -> tuple[Visitor | None, str]:
        """The visitor of a request; and without logins the cookie to set, which identifies the browser in forms.

        Programs may send a token instead of a session. They can read pages, but not send forms.
        """
        if self._login.required:
            token = bearer_token(request.headers.get("authorization", ""))
            if token and _METHODS.get(request.method) == "GET":
                return Visitor(token), ""
            return self._sessions.visitor(request.cookies.get(COOKIE, "")), ""
        known = request.cookies.get(VISITOR_COOKIE, "")
        if known:
            return Visitor(session_id=known[:100]), ""
        new = secrets.token_urlsafe(16)
        return Visitor(session_id=new), new

    def _check_form(self, request: Request, visitor: Visitor, form: Mapping[str, str]) -> None:
        """Raise unless a form was sent by a page of this server, in this session."""
        self._check_origin(request)
        if not self._sessions.is_form_token(visitor.session_id, form.get("form_token", "")):
            raise _forged()

    def _check_origin(self, request: Request) -> None:
        """Raise if a page of another site sent a form: browsers say so in one of these headers."""
        origin = request.headers.get("origin")
        own = {request.headers.get("host", "").lower(), urlsplit(self._public_url).netloc.lower()}
        is_foreign = origin is not None and _netloc(origin) not in own - {""}
        if is_foreign or request.headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            raise _forged()

    def _to_login(self, request: Request, reason: str = "") -> Response:
        if request.url.path.endswith(".json"):
            error = {"error": "log in first, or send your token as authorization: Bearer"}
            return _finished(Response(json_text(error), 401, media_type="application/json"))
        return _finished(RedirectResponse(login_address(request.url.path, request.url.query, reason), 303))

    async def _login_page(self, request: Request) -> Response:
        if not self._login.required:
            return _finished(RedirectResponse("/", 303))
        return await run_in_threadpool(self._log_in, request, await _body(request))

    def _log_in(self, request: Request, body: bytes) -> Response:
        is_https = self._origin(request).startswith("https:")
        try:
            form = _fields(body)
        except SkiwayError as error:
            return self._html(request, _error_page(error), Visitor())

        def act() -> Response | Page:
            if request.method == "POST":
                self._check_origin(request)  # another site must not log its visitors in with a token of its own
            return log_in(self._login, self._sessions, request, form, is_https=is_https)

        return self._logged_in(request, act, target=form.get("next", "/"))

    def _provider(self, request: Request) -> Response:
        provider, origin = self._login.provider, self._origin(request)
        if provider is None:
            return _finished(RedirectResponse("/login", 303))
        if request.url.path == CALLBACK:
            return self._logged_in(request, lambda: call_back(self._login, self._sessions, request, origin))
        return self._logged_in(request, lambda: send_to_provider(provider, self._sessions, request, origin))

    def _logged_in(self, request: Request, act: Callable[[], Response | Page], *, target: str = "/") -> Response:
        """What `act` returns; if it fails, the login page with the reason."""
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - errors become pages here
            shown = _error_page(error)
            result = login_page(self._login, target, str(shown.data["error"]), shown.status)
        return _finished(result) if isinstance(result, Response) else self._html(request, result, Visitor())

    async def _logout(self, request: Request) -> Response:
        body = await _body(request)
        visitor, _ = self._visitor(request)
        if visitor is not None:
            try:
                self._check_form(request, visitor, _fields(body))
            except SkiwayError as error:
                return self._html(request, _error_page(error), visitor)
            self._sessions.end(visitor.session_id)
        response = _finished(RedirectResponse("/login", 303))
        response.delete_cookie(COOKIE)
        return response


def _split(scope: Scope) -> tuple[str, tuple[str, ...], bool]:
    """The kind of a page, the names in its path, and whether its data is wanted as JSON.

    The path is split before it is decoded, so that names may contain slashes.
    """
    raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
    is_json = raw.endswith(".json")
    kind, *names = [unquote(each) for each in raw.removesuffix(".json").strip("/").split("/")]
    return ("" if kind == "index" else kind), tuple(names), is_json


async def _body(request: Request) -> bytes:
    """The body of a form; no more of one that is too large than shows that."""
    body = bytearray()
    if request.method == "POST":
        async for part in request.stream():
            body += part
            if len(body) > MAX_FORM_BYTES:
                break
    return bytes(body)


def _fields(body: bytes) -> Mapping[str, str]:
    """The fields of a form."""
    remedy, key = "send less at a time", "body.too_large"
    require_at_most(MAX_FORM_BYTES, len(body), "the form has {} or more bytes", remedy=remedy, key=key)
    require_at_most(MAX_FIELDS, 1 + body.count(b"&"), "the form has {} fields", remedy=remedy, key=key)
    return dict(parse_qsl(body.decode(errors="replace"), keep_blank_values=True))


def _netloc(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _forged() -> PermissionDenied:
    return PermissionDenied(
        "the form does not come from a page of this session: reload the page, and try again", key="form.forged"
    )


def _finished(response: Response) -> Response:
    response.headers.update({name: value for name, value in HEADERS.items() if name not in response.headers})
    return response


def _error_page(error: Exception) -> Page:
    shown, request_id = disclosed(error), ""
    if shown is None:
        request_id = secrets.token_hex(8)
        log.error("request %s: a page failed", request_id, exc_info=error)
        shown = SkiwayError(
            "the page cannot be shown because of a fault of the server; the operator finds it in the log"
        )
    facts = {"error": shown.message, "key": shown.key, "code": shown.code, "action": EXPLANATIONS[shown.code].action}
    return Page("error.html", "Error", {**facts, "request_id": request_id}, _status(error))


def _json(page: Page) -> Response:
    try:
        return Response(json_text(page.data), page.status, media_type="application/json")
    except Exception as error:  # noqa: BLE001 - as for HTML
        page = _error_page(error)
        return Response(json_text(page.data), page.status, media_type="application/json")


def _shown_error(page: Page, shell: Mapping[str, Any]) -> str:
    """The page of an error; without the frame of pages if that is what fails."""
    try:
        return rendered(page.template, {**page.data, "shell": {**shell, "title": page.title}})
    except Exception:
        log.exception("the page of an error failed")
        text = Markup(
            "<!doctype html><html lang=en><title>Error</title><h1>That did not work</h1><p>{}</p><p>request {}</p>"
        )
        return text.format(page.data["error"], page.data["request_id"])


def _status(error: Exception) -> int:
    return 413 if getattr(error, "key", "") == "body.too_large" else status_in(STATUSES, error)
