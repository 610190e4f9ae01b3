"""The ASGI app: from a request to the function that answers it, and back.

found       the route, and what the call is known by
admitted    who calls, and may they
read        the body, no larger than allowed
acted       the function of the route, on a thread: again where it lost a race, once where the caller gave a key
told        errors become answers; metrics, a span, the audit trail
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as AnyPath
from starlette.routing import Router
from starlette.types import Receive, Scope, Send
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from skiway.errors import (
    Cancelled,
    Contention,
    InvalidArgument,
    LimitExceeded,
    PermissionDenied,
    SkiwayError,
    Unavailable,
)
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.metastore.records.realm import Realm, random_id
from skiway.rest.calls import CORRELATION_ID, Answer, Call, Lake, opened
from skiway.rest.errors import disclosed, failed
from skiway.rest.idempotency import once
from skiway.rest.mirrored import Mirrors
from skiway.rest.observing import Observers
from skiway.rest.routes import matched
from skiway.security import NOBODY, Authenticator, Authorizer, Principal
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces

__all__ = ["RestApp", "RestOptions", "rest_app"]

T = TypeVar("T")

METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


@dataclass(frozen=True, slots=True)
class RestOptions:
    """`workers` calls are worked on at a time and `waiting` more may wait; a body has up to `max_body_bytes`."""

    workers: int = 16
    waiting: int = 256
    max_body_bytes: int = 16 * 1024 * 1024
    retries: int = 5


def rest_app(
    realm_of: Callable[[Principal], Realm],
    authenticator: Authenticator,
    authorizer: Authorizer,
    *,
    warehouse: Warehouse,
    mirrors: Mirrors | None = None,
    metrics: Metrics | None = None,
    traces: Traces | None = None,
    audit: AuditLog | None = None,
    options: RestOptions | None = None,
    ids: Callable[[], str] = random_id,
) -> RestApp:
    """The app for callers that `authenticator` knows, each in the realm that `realm_of` gives them.

    Managed tables are in `warehouse`; `mirrors` opens those of connectors, without it they are not served.
    """
    return RestApp(
        realm_of,
        authenticator,
        authorizer,
        lake=Lake(warehouse, mirrors),
        observers=Observers(metrics, traces, audit),
        options=options or RestOptions(),
        ids=ids,
    )


class RestApp:
    """An ASGI app, to be mounted anywhere. `close` when the server has ended."""

    def __init__(
        self,
        realm_of: Callable[[Principal], Realm],
        authenticator: Authenticator,
        authorizer: Authorizer,
        *,
        lake: Lake,
        observers: Observers,
        options: RestOptions,
        ids: Callable[[], str],
    ) -> None:
        self._realm_of = realm_of
        self._authenticator = authenticator
        self._authorizer = authorizer
        self._lake = lake
        self._observers = observers
        self._options = options
        self._ids = ids
        self._threads = ThreadPoolExecutor(options.workers, thread_name_prefix="rest")
        self._inside = 0
        self._router = Router([AnyPath("/{path:path}", self._serve, methods=METHODS)])
        self._retrying = Retrying(
            retry=retry_if_exception_type(Contention),
            stop=stop_after_attempt(options.retries + 1),
            wait=wait_random_exponential(multiplier=0.005, max=0.2),
            reraise=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._router(scope, receive, send)

    def close(self) -> None:
        """Let the calls that are worked on finish, and end the threads."""
        self._threads.shutdown()

    async def _serve(self, request: Request) -> Response:
        headers = dict(request.headers)
        try:
            route, names = matched(request.method, _raw_path(request.scope))
        except SkiwayError as error:
            context = opened(headers, "none", ids=self._ids)
            return _response(request, failed(error, context.correlation_id), context.correlation_id)
        context = opened(headers, route.name, ids=self._ids)
        target = f"{request.url.path}?{request.url.query}"
        call = Call(route, names, dict(request.query_params), target, headers, context)
        return _response(request, await self._answered(request, call), context.correlation_id)

    async def _answered(self, request: Request, call: Call) -> Answer:
        if self._inside >= self._options.workers + self._options.waiting:
            return failed(_overloaded(), call.context.correlation_id)
        self._inside += 1
        try:
            refusal: Exception | None = None
            try:
                await self._on_thread(lambda: self._admit(call))
                if call.route.permissions:
                    call.body = await _body(request, self._options.max_body_bytes)
            except Exception as error:  # noqa: BLE001 - told on the thread, with all that is to be told
                refusal = error
            return await self._on_thread(lambda: self._observers.observed(call, lambda: self._act(call, refusal)))
        finally:
            self._inside -= 1

    async def _on_thread(self, act: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, act)

    def _admit(self, call: Call) -> None:
        """Let in only callers who are known, are in an account, and have a permission of the route."""
        if not call.route.permissions:
            return
        principal = self._authenticator.authenticate(call.headers)
        call.principal = principal
        call.context = replace(call.context, account_id=principal.account_id, subject=principal.subject)
        self._authorizer.require(principal, *call.route.permissions)
        if not principal.account_id:
            raise PermissionDenied(
                f"catalogs are in accounts, and {principal.subject} has none: call with credentials of an account",
                key="account.required",
                subject=principal.subject,
            )

    def _act(self, call: Call, refusal: Exception | None) -> Answer:
        if refusal is not None:
            raise refusal
        realm = self._realm_of(call.principal or NOBODY)
        asked = call.asked(realm, self._lake)

        def attempt() -> Answer:
            try:
                return self._retrying(call.route.act, asked) if call.route.changes else call.route.act(asked)
            except SkiwayError as error:
                told = failed(error, call.context.correlation_id)
                if disclosed(error) is None or told.status >= 500:
                    raise
                call.outcome = error.code
                return told

        return once(realm, call, attempt)


def _raw_path(scope: Scope) -> str:
    """The path below where the app is mounted, as it came over the wire: decoding it first would cut names in two."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path: str = raw.decode("latin-1")
    return path.removeprefix(scope.get("root_path", ""))


async def _body(request: Request, limit: int) -> bytes:
    """The body, which must be JSON if there is one."""
    if request.method not in ("POST", "PUT", "PATCH"):
        return b""
    announced = request.headers.get("content-length", "0")
    if announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    received = bytearray()
    try:
        async for part in request.stream():
            received += part
            if len(received) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise Cancelled("the client went away while it sent the body", key="client.gone") from None
    _check_media(request.headers.get("content-type", ""), received)
    return bytes(received)


def _check_media(given: str, body: bytearray) -> None:
    """Pages in a browser can send forms and plain text to any server without asking it, but no JSON."""
    media = given.partition(";")[0].strip().lower()
    if body and media != "application/json":
        raise InvalidArgument(
            f"the body is of type {media[:100] or 'none'}: send JSON, with the header content-type: application/json",
            key="body.media",
        )


def _too_large(limit: int) -> LimitExceeded:
    return LimitExceeded(f"the body has more than {limit} bytes: send less at a time", key="body.too_large")


def _overloaded() -> Unavailable:
    return Unavailable("the server has as many calls to answer as it can keep: try again in a moment", key="overloaded")


def _response(request: Request, answer: Answer, correlation_id: str) -> Response:
    headers = {CORRELATION_ID: correlation_id, **answer.headers}
    body = b"" if request.method == "HEAD" else answer.body
    return Response(body, answer.status, headers, media_type="application/json" if body else None)
