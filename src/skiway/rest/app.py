"""The ASGI app of the Iceberg REST catalog: its routes, which it runs through the request pipeline.

Functions of routes block, so they run on threads. Callers are admitted before a large body is read, so that
strangers cannot fill the memory of the server.

The table of routes has the handler of each, and the permission to call it. Permissions are the same as those of the
corresponding gRPC methods.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import unquote_plus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from skiway.errors import InvalidArgument, LimitExceeded, NotFound, SkiwayError, Unavailable
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.foundation.doors import WrongSecrets, disclosed
from skiway.foundation.threads import FairThreads, lane_share
from skiway.metastore.managed import ClientTurns
from skiway.metastore.records.realm import random_id
from skiway.request_path import CORRELATION_ID, Access, Observers, Pipeline, Retries, read_context
from skiway.rest.bodies import Body, Forms
from skiway.rest.calls import COMPONENT, Handler, Lake, Mirrors, RestCall, RestResponse, Route, TokenIssuer, once
from skiway.rest.errors import failed, status_of
from skiway.rest.handlers import commits, delegation, namespaces, oauth, scan_planning, tables, views
from skiway.rest.handlers.oauth import token_failed
from skiway.security import Principal
from skiway.telemetry.context import require_active, serving
from skiway.vending import Vending

_NAMESPACES: Final = "/v1/{prefix}/namespaces"
_NAMESPACE: Final = f"{_NAMESPACES}/{{namespace}}"
_TABLES: Final = f"{_NAMESPACE}/tables"
_TABLE: Final = f"{_TABLES}/{{table}}"
_VIEWS: Final = f"{_NAMESPACE}/views"
_VIEW: Final = f"{_VIEWS}/{{view}}"
_GENERIC_TABLES: Final = f"/polaris{_NAMESPACE}/generic-tables"
_PLANS: Final = f"{_TABLE}/plan"
_PLAN: Final = f"{_PLANS}/{{plan-id}}"


def _reads(
    noun: str, method: str, path: str, name: str, handler: Handler, *, changes: bool = False, **more: Any
) -> Route:
    """A route for callers who may read; `changes` is set if it changes something of their own, such as a plan."""
    return Route(method, path, name, handler, (f"{noun}.read",), noun, changes=changes, **more)


def _writes(noun: str, method: str, path: str, name: str, handler: Handler) -> Route:
    """A route for callers who may write."""
    return Route(method, path, name, handler, (f"{noun}.write",), noun, changes=True)


_IN_CATALOGS: Final = (
    _reads("namespace", "GET", _NAMESPACES, "ListNamespaces", namespaces.list_),
    _writes("namespace", "POST", _NAMESPACES, "CreateNamespace", namespaces.create),
    _reads("namespace", "GET", _NAMESPACE, "LoadNamespace", namespaces.load),
    _reads("namespace", "HEAD", _NAMESPACE, "NamespaceExists", namespaces.exists),
    _writes("namespace", "DELETE", _NAMESPACE, "DropNamespace", namespaces.drop),
    _writes("namespace", "POST", f"{_NAMESPACE}/properties", "UpdateProperties", namespaces.update_properties),
    _reads("table", "GET", _TABLES, "ListTables", tables.list_),
    _writes("table", "POST", _TABLES, "CreateTable", commits.create),
    _reads("table", "GET", _TABLE, "LoadTable", tables.load),
    _reads("table", "HEAD", _TABLE, "TableExists", tables.exists),
    _writes("table", "POST", _TABLE, "CommitTable", commits.commit),
    _writes("table", "DELETE", _TABLE, "DropTable", tables.drop),
    _reads("table", "POST", _PLANS, "PlanTableScan", scan_planning.plan, changes=True),
    _reads("table", "GET", _PLAN, "FetchPlanningResult", scan_planning.result),
    _reads("table", "DELETE", _PLAN, "CancelPlanning", scan_planning.cancel, changes=True),
    _reads("table", "POST", f"{_TABLE}/tasks", "FetchScanTasks", scan_planning.tasks),
    _reads(
        "table",
        "GET",
        f"{_TABLE}/credentials",
        "LoadCredentials",
        delegation.credentials,
        offered=delegation.vends_credentials,
    ),
    _reads("table", "POST", f"{_TABLE}/sign", "SignRequest", delegation.sign, offered=delegation.signs),
    _reads("table", "POST", f"{_TABLE}/metrics", "ReportMetrics", tables.report, changes=True),
    _writes("table", "POST", "/v1/{prefix}/tables/rename", "RenameTable", tables.rename),
    _writes("table", "POST", f"{_NAMESPACE}/register", "RegisterTable", commits.register),
    _writes("table", "POST", "/v1/{prefix}/transactions/commit", "CommitTransaction", commits.commit_transaction),
    _reads("table", "GET", _GENERIC_TABLES, "ListGenericTables", tables.list_generic),
    _reads("table", "GET", f"{_GENERIC_TABLES}/{{generic-table}}", "LoadGenericTable", tables.load_generic),
    _reads("view", "GET", _VIEWS, "ListViews", views.list_),
    _writes("view", "POST", _VIEWS, "CreateView", views.create),
    _reads("view", "GET", _VIEW, "LoadView", views.load),
    _reads("view", "HEAD", _VIEW, "ViewExists", views.exists),
    _writes("view", "POST", _VIEW, "ReplaceView", views.replace),
    _writes("view", "DELETE", _VIEW, "DropView", views.drop),
    _writes("view", "POST", "/v1/{prefix}/views/rename", "RenameView", views.rename),
    _writes("view", "POST", f"{_NAMESPACE}/register-view", "RegisterView", views.register),
)

ROUTES: Final = (
    _reads("catalog", "GET", "/v1/config", "GetConfig", namespaces.config_of(_IN_CATALOGS)),
    Route("POST", "/v1/oauth/tokens", "GetToken", oauth.tokens, (), "catalog", takes_form=True),
    *_IN_CATALOGS,
)
"""The route without permissions is open to everybody: it authenticates its callers by what they send in the form."""


_BY_LENGTH: Final[dict[int, list[tuple[Route, list[str]]]]] = {}
for _route in ROUTES:
    _segments = _route.path.split("/")
    _BY_LENGTH.setdefault(len(_segments), []).append((_route, _segments))


def matched(method: str, path: str) -> tuple[Route, Mapping[str, str]]:
    """Match a raw path, and decode the names in it.

    The path is split into segments before it is decoded, so names can contain slashes. A segment is always a name, so
    `..` has no special meaning.
    """
    segments = path.split("/")
    alike = _BY_LENGTH.get(len(segments), ())
    for route, template in alike:
        if route.method == method and (names := _names(template, segments)) is not None:
            return route, {name: _decoded(text) for name, text in names.items()}
    fitting = [route for route, template in alike if _names(template, segments) is not None]
    if not fitting:
        raise NotFound(
            f"there is no endpoint {path[:200]!r}: clients start with GET /v1/config?warehouse=<catalog>, and add the "
            "prefix that it returns after /v1",
            key="route.unknown",
        )
    allowed = ", ".join(route.method for route in fitting)
    raise InvalidArgument(f"{method} is not supported at {path[:200]!r}: use {allowed}", key="method.unknown")


def _names(template: list[str], segments: list[str]) -> dict[str, str] | None:
    names = {}
    for wanted, found in zip(template, segments, strict=True):
        if wanted.startswith("{"):
            names[wanted[1:-1]] = found
        elif wanted != found:
            return None
    return names


def _decoded(segment: str) -> str:
    """Decode a segment. A plus is a space, as Java clients encode it; all clients encode a plus itself."""
    try:
        return unquote_plus(segment, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(
            f"{segment[:100]!r} in the path is not UTF-8: percent-encode names in UTF-8", key="path.invalid"
        ) from None


T = TypeVar("T")

log = logging.getLogger("skiway.rest")

MAX_HELD = 64
"""How many commits may wait for their turn; see `ClientTurns`."""
PLANNING = ("PlanTableScan", "CancelPlanning")
"""Routes that change plans only, which clients repeat."""
SLOWED_S, MAX_SLOWED = 1.0, 50
"""How long clients with too many wrong secrets wait, and how many of them at a time; others are refused at once."""
WATCHED_AFTER_S = 0.25
CANCEL_S = 5.0
"""How long calls may take to end after the server has stopped waiting for them."""
WITH_BODY = ("POST", "PUT", "PATCH")


@dataclass(frozen=True, slots=True)
class RestOptions:
    """Limits: `workers` calls run at a time, `waiting` more may wait, a body has up to `max_body_bytes` and `body_s` seconds.

    `forms` with credentials are read at a time.
    """

    workers: int = 16
    waiting: int = 256
    forms: int = 64
    max_body_bytes: int = 16 * 1024 * 1024
    body_s: float = 60.0
    retries: Retries = field(default_factory=lambda: Retries(limit=5))


class RestApp:
    """An ASGI app that can be mounted anywhere; call `close` when its server has stopped.

    Managed tables are in `warehouse`. `mirrors` opens tables of connectors; without it they are not served. `vending` gives
    clients access to the files of tables; without it they need keys of their own. `tokens` issues access tokens.
    """

    def __init__(
        self,
        access: Access,
        observers: Observers | None = None,
        *,
        warehouse: Warehouse,
        mirrors: Mirrors | None = None,
        vending: Vending | None = None,
        tokens: TokenIssuer | None = None,
        options: RestOptions | None = None,
        ids: Callable[[], str] = random_id,
    ) -> None:
        self._options = options or RestOptions()
        workers = self._options.workers
        self._threads = FairThreads(workers, "rest", per_lane=lane_share(workers), parked=MAX_HELD)
        self._lake = Lake(warehouse, mirrors, vending or Vending(), tokens, ClientTurns(self._threads.parked))
        self._pipeline = Pipeline(access, observers or Observers(), log=log, status_of=status_of)
        self._ids = ids
        self._running: Counter[str] = Counter()  # by lane
        self._forms = Forms(self._options.forms)
        self._wrong, self._slowed_down = WrongSecrets(), 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._served(Request(scope, receive))
        await response(scope, receive, send)

    def close(self) -> None:
        """End the threads. Running calls have a short time to end, because their clients are gone."""
        if not self._threads.shutdown(wait_s=CANCEL_S):
            log.warning("some calls did not end within %.0f s after they were cancelled; abandoning them", CANCEL_S)

    async def _served(self, request: Request) -> Response:
        headers = dict(request.headers)
        try:
            route, names = matched(request.method, _raw_path(request.scope))
        except SkiwayError as error:
            context, _ = read_context(headers, COMPONENT, ids=self._ids)
            return _response(request, failed(error, context.correlation_id), context.correlation_id)
        operation = route.operation
        ended = threading.Event()
        context, _ = read_context(  # an invalid correlation id is replaced
            headers, operation.full_name, ids=self._ids, is_active=lambda: not ended.is_set()
        )
        sent = request.scope["query_string"].decode("latin-1")
        target = f"{request.scope['path']}?{sent}"  # `request.url` takes longer than matching the route
        query = dict(request.query_params) if sent else {}
        call = RestCall(operation, headers, context, route=route, names=names, query=query, target=target, ended=ended)
        answer = await self._answered(request, call)
        if route.takes_form and answer.status == 401:
            answer = await self._slowed(request, call, answer)
        return _response(request, answer, context.correlation_id)

    async def _slowed(self, request: Request, call: RestCall, refusal: RestResponse) -> RestResponse:
        """The answer to a wrong secret. After many, a client waits for it; it then occupies neither a thread nor a lane."""
        try:
            self._wrong.count(request.client.host if request.client else "")
        except LimitExceeded as error:
            if self._slowed_down < MAX_SLOWED:
                self._slowed_down += 1
                try:
                    await asyncio.sleep(SLOWED_S)
                finally:
                    self._slowed_down -= 1
            return _failed(call, error)
        return refusal

    async def _answered(self, request: Request, call: RestCall) -> RestResponse:
        lane = self._pipeline.access.lanes.of(call.headers)
        if refused := self._full(lane):
            return failed(refused, call.context.correlation_id)
        self._running[lane] += 1
        try:
            if not call.route.permissions:
                refusal = await self._read_form(request, call)
                return await self._on_thread(call, lambda: self._observed(call, refusal), client=request)
            if request.method not in WITH_BODY:
                return await self._on_thread(call, lambda: self._admitted(call), lane=lane, client=request)
            return await self._with_body(request, call)
        finally:
            call.ended.set()
            self._running[lane] -= 1
            if not self._running[lane]:
                del self._running[lane]
            call.release()

    async def _read_form(self, request: Request, call: RestCall) -> Exception | None:
        try:
            if call.route.takes_form and self._lake.tokens is not None:
                call.body = await self._forms.read(request, seconds=self._options.body_s)
        except Exception as error:  # noqa: BLE001 - raised again inside the pipeline, on a thread
            return error
        return None

    async def _with_body(self, request: Request, call: RestCall) -> RestResponse:
        body = Body(request, max_bytes=self._options.max_body_bytes, seconds=self._options.body_s)
        refusal: Exception | None = None
        try:
            has_arrived = await body.arrived()
            if not has_arrived:
                await self._on_thread(call, lambda: self._admit(call))
            call.body = await body.read()
        except Exception as error:  # noqa: BLE001 - raised again inside the pipeline, on a thread
            refusal = error
        finally:
            body.close()
            call.received = body.size
        if has_arrived:
            return await self._on_thread(call, lambda: self._admitted(call, refusal), client=request)
        return await self._on_thread(call, lambda: self._observed(call, refusal), client=request)

    def _full(self, lane: str) -> SkiwayError | None:
        """The error for a call if as many are open as the server can keep, of its lane or of all lanes together."""
        most = self._options.workers + self._options.waiting
        if self._running[lane] >= lane_share(most):
            return LimitExceeded(
                f"{lane_share(most)} calls of this account are open, which is the limit of this server: send fewer at a time",
                key="calls.limit",
                limit=str(lane_share(most)),
            )
        if self._running.total() >= most:
            return Unavailable(
                "the server has as many calls to answer as it can keep: try again in a moment", key="overloaded"
            )
        return None

    async def _on_thread(
        self, call: RestCall, act: Callable[[], T], *, lane: str = "", client: Request | None = None
    ) -> T:
        """Run `act` on a thread. If it takes long, watch whether the `client`, whose body was received, still waits."""
        lane = lane or self._pipeline.access.lanes.of(call.headers)
        running = asyncio.wrap_future(self._threads.submit(lane, act))
        if client is None:
            return await running
        watch: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        later = loop.call_later(WATCHED_AFTER_S, lambda: watch.append(loop.create_task(_watch(client, call))))
        try:
            return await running
        finally:
            later.cancel()
            for task in watch:
                task.cancel()

    def _admit(self, call: RestCall) -> None:
        with serving(call.context):
            self._pipeline.admit(call)

    def _admitted(self, call: RestCall, refusal: Exception | None = None) -> RestResponse:
        """Admit the caller and answer, on the same thread, because there is no body to wait for in between.

        `refusal` is the error of the body. The caller learns of it only if it is admitted.
        """
        try:
            self._admit(call)
        except Exception as error:  # noqa: BLE001 - raised again inside the pipeline
            return self._observed(call, error)
        return self._observed(call, refusal)

    def _observed(self, call: RestCall, refusal: Exception | None) -> RestResponse:
        try:
            with self._pipeline.observe(call):
                call.transferred(call.received)
                if refusal is not None:
                    raise refusal
                answer = self._act(call)
                call.transferred(len(answer.body))
                return answer
        except Exception as error:  # noqa: BLE001 - errors become answers here
            return _failed(call, error)

    def _act(self, call: RestCall) -> RestResponse:
        require_active()
        realm = self._pipeline.realm(call)
        request = call.request(realm, self._lake, lambda token: self._authenticate(call, token))
        retrying = self._options.retries.retrying(on_retry=lambda _: self._pipeline.count_retry(call.operation))

        def attempt() -> RestResponse:
            try:
                return retrying(call.route.handler, request) if call.route.changes else call.route.handler(request)
            except SkiwayError as error:
                answer = _failed(call, error)
                if disclosed(error) is None or answer.status >= 500:
                    raise
                call.outcome, call.status = error.code, str(answer.status)
                return answer

        return once(request.realm, call, attempt)

    def _authenticate(self, call: RestCall, token: str) -> Principal:
        """Make the owner of a token that came in a form the caller, as if it had come in a header."""
        call.headers = {self._pipeline.access.credentials[-1]: f"Bearer {token}"}
        return self._pipeline.authenticate(call)


async def _watch(client: Request, call: RestCall) -> None:
    """Mark a call as ended when its client disconnects, so that it stops at the next check."""
    while (await client.receive())["type"] != "http.disconnect":
        pass
    call.ended.set()


def _raw_path(scope: Scope) -> str:
    """The path below where the app is mounted, as it came over the wire: decoding it first would cut names in two."""
    raw = scope.get("raw_path") or scope["path"].encode()
    path: str = raw.decode("latin-1")
    return path.removeprefix(scope.get("root_path", ""))


def _failed(call: RestCall, error: Exception) -> RestResponse:
    if call.route.takes_form:
        return token_failed(error, call.context.correlation_id)
    changes = call.route.changes and call.route.name not in PLANNING
    return failed(error, call.context.correlation_id, changes=changes)


def _response(request: Request, answer: RestResponse, correlation_id: str) -> Response:
    headers = {CORRELATION_ID: correlation_id, **answer.headers}
    body = b"" if request.method == "HEAD" else answer.body
    return Response(body, answer.status, headers, media_type="application/json" if body else None)
