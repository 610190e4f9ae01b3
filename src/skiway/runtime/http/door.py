"""The HTTP server of a process: the explorer at /, Iceberg REST at /iceberg, /healthz, /readyz and /metrics for operators.

The explorer and its clients are imported after the server is ready, because no other part needs them; until then, requests
to it wait. Its clients reach the gRPC server of the same process over a socket file, in a folder that only the user of the
server can open. The socket has no TLS, whatever the other addresses have, and its callers are never operators.

Without authentication, a web page that the user visits could send requests to the server. Two checks stop it:

- A page can point its own host name at 127.0.0.1 (DNS rebinding) and is then of the same origin as the server. Its requests
  have that name in `Host`, so only IP addresses, `localhost` and names that the operator allows are accepted there.
- A page of another origin cannot read responses, but can make changes. Browsers put its address into `Origin`, which must
  be the server itself.

gRPC needs neither: browsers cannot speak it without TLS, and with TLS the certificate does not match a rebound name.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from skiway.config import Settings
from skiway.config.server import Http, Tls
from skiway.errors import PermissionDenied, Unauthorized, Unavailable
from skiway.request_path import Operators
from skiway.runtime.http.connections import Connections
from skiway.security.authentication import OBSERVES_PLATFORM

if TYPE_CHECKING:
    from skiway.web import Explorer
    from skiway.web.logins import Ended, Provider

OPEN_PATHS: Final = ("/healthz", "/readyz")
"""Probes address a server by any name, and learn nothing else."""


class LocalOnly:
    """An ASGI app that passes on requests to `app` unless they come from a web page of another site."""

    def __init__(self, app: ASGIApp, *, allowed_hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._allowed = {"localhost", *(name.lower().rstrip(".") for name in allowed_hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            reason = self._reason(Headers(scope=scope))
            if reason:
                error = {"message": reason, "type": "ForbiddenException", "code": 403}
                await JSONResponse({"error": error}, 403)(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _reason(self, headers: Headers) -> str:
        """Why the request is rejected; empty if it is not."""
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not self._is_allowed(hosts[0]):
            found = hosts[0][:100] if hosts else "missing"
            return (
                f"the header Host is {found!r}: without authentication (auth.mode dev), address the server by its IP address or "
                "as localhost, or add the name to server.http.allowed_hosts"
            )
        if any(urlsplit(origin).netloc.lower() != hosts[0].lower() for origin in origins):
            return (
                f"the request comes from the web page {origins[0][:100]!r}: without authentication (auth.mode dev), pages of "
                "other sites cannot use the server; set auth.mode to token or oidc"
            )
        return ""

    def _is_allowed(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if name in self._allowed:
            return True
        try:
            return bool(ip_address(name))
        except ValueError:
            return False


log = logging.getLogger("skiway.runtime")


class LateApp:
    """The application that `make` returns. Requests wait until it is made."""

    def __init__(self, make: Callable[[], ASGIApp]) -> None:
        self._make = make
        self._made: Future[ASGIApp] = Future()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if not self._made.done():  # shielded, because the end of one request must not end the others
            await asyncio.shield(asyncio.wrap_future(self._made))
        await self._made.result()(scope, receive, send)

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make the application on a thread; wait for it at the end of the block."""
        thread = threading.Thread(target=self._run, name="late-app", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _run(self) -> None:
        try:
            self._made.set_result(self._make())
        except BaseException as error:
            log.exception("a web application could not be made")
            self._made.set_exception(error)


@contextmanager
def socket_file() -> Iterator[Path]:
    """The path of a socket in a new private folder."""
    with tempfile.TemporaryDirectory(prefix="skiway-") as folder:  # only its owner can open it
        yield Path(folder) / "calls"


def explorer_of(
    settings: Settings, socket: Path, *, location: Callable[[], str], key: Callable[[], bytes], ended: Ended
) -> LateApp:
    """The explorer. `location` is where DuckDB finds the server, and `key` and `ended` are those of sessions."""
    provider = _provider(settings)  # wrong settings are an error before the server is ready
    return LateApp(partial(_made, settings, socket, provider, location=location, key=key, ended=ended))


def _made(
    settings: Settings,
    socket: Path,
    provider: Provider | None,
    *,
    location: Callable[[], str],
    key: Callable[[], bytes],
    ended: Ended,
) -> Explorer:
    from skiway.client import Metastore
    from skiway.foundation.doors import PAGES
    from skiway.presentation.results import TIMEOUT_S, OpenClients
    from skiway.web import Explorer
    from skiway.web.logins import Login
    from skiway.web.visits import Clients

    target = f"grpc+unix://{socket}"
    opened = OpenClients(target, PAGES)

    def check(token: str) -> None:
        """Accept the token if the server does, whatever its owner may see."""
        with Metastore(target, token=token, timeout_s=TIMEOUT_S) as lake, suppress(PermissionDenied):
            next(iter(lake.catalogs(page_size=1)), None)

    clients = Clients(
        metastore=lambda visitor: opened.metastore(visitor.token),
        airport=lambda visitor, catalog: opened.airport(visitor.token, catalog),
        location=location,
        editor=lambda visitor, catalog, query_id: opened.for_query(visitor.token, catalog, query_id),
    )
    login = Login(settings.auth.mode != "dev", check, provider)
    return Explorer(clients, key=key, ended=ended, login=login, public_url=settings.server.http.public_url or "")


def _provider(settings: Settings) -> Provider | None:
    oidc = settings.auth.oidc
    if settings.auth.mode != "oidc" or not oidc.issuer or not oidc.client_id:
        return None
    from skiway.security.oidc import CodeLogin

    secret = oidc.client_secret.reveal() if oidc.client_secret else ""
    return CodeLogin(oidc.issuer, oidc.client_id, client_secret=secret, scopes=oidc.scopes, allow_http=oidc.allow_http)


START_S: Final = 10.0
BACKLOG: Final = 1024
EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE)
RETRY_S: Final = 1.0
SHED: Final = 50
LOGGED_S: Final = 60.0
"""While the process can open no more files, a connection is tried every `RETRY_S`; then `SHED` idle ones are closed. It is
logged every `LOGGED_S`."""
PROBES: Final = 100
"""How many connections the door for probes has."""
ICEBERG: Final = "/iceberg"
DEFAULT_ADDRESS: Final = "127.0.0.1:8181"
FREE_PORT: Final = "127.0.0.1:0"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def probe_routes(not_ready: Callable[[], Sequence[str]]) -> list[BaseRoute]:
    """`/healthz` and `/readyz`. `not_ready` names the parts that do not work; the server is ready if there are none."""

    def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    def readyz(_: Request) -> Response:
        failed = not_ready()
        if failed:
            return PlainTextResponse(f"not ready: {', '.join(failed)}\n", status_code=503)
        return PlainTextResponse("ready\n")

    return [Route("/healthz", healthz), Route("/readyz", readyz)]


def health_door(settings: Http, not_ready: Callable[[], Sequence[str]]) -> HttpDoor:
    """The door for probes, which has connections and threads of its own."""
    own = replace(settings, address=settings.health_address, tls=Tls(), max_connections=PROBES)
    return HttpDoor(Starlette(routes=probe_routes(not_ready)), own, drain_s=1.0, name="health")


def web_app(
    *,
    iceberg: ASGIApp,
    explorer: ASGIApp,
    metrics: Callable[[], str],
    not_ready: Callable[[], Sequence[str]],
    operators: Operators,
) -> WebApp:
    """The web application. Health and readiness are open to everybody, metrics only to operators."""

    def metrics_text(request: Request) -> Response:
        try:
            operators.admit(dict(request.headers), request.client.host if request.client else "", OBSERVES_PLATFORM)
        except Unauthorized as error:
            return PlainTextResponse(f"{error.message}\n", 401, {"www-authenticate": "Bearer"})
        except PermissionDenied as error:
            return PlainTextResponse(f"{error.message}\n", 403)
        except Unavailable as error:  # the store, or the keys of the issuer
            return PlainTextResponse(f"{error.message}\n", 503)
        return Response(metrics(), media_type=PROMETHEUS)

    def elsewhere(request: Request) -> Response:
        message = (
            f"the Iceberg REST catalog is below {ICEBERG}: set the uri of the client to {request.base_url}{ICEBERG[1:]}"
        )
        return JSONResponse({"error": {"message": message, "type": "NotFoundException", "code": 404}}, 404)

    return WebApp(
        iceberg,
        routes=[
            *probe_routes(not_ready),
            Route("/metrics", metrics_text),
            Route("/v1/config", elsewhere),  # the first call of Iceberg clients
            Mount(ICEBERG, iceberg),
            Mount("/", explorer),
        ],
    )


class WebApp(Starlette):
    """Starlette with a shortcut: its middleware takes as long as loading a table over Iceberg REST."""

    def __init__(self, iceberg: ASGIApp, *, routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes=routes)
        self._iceberg = iceberg

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(f"{ICEBERG}/"):
            await self._iceberg({**scope, "root_path": scope.get("root_path", "") + ICEBERG}, receive, send)
        else:
            await super().__call__(scope, receive, send)


class HttpDoor:
    """An HTTP server for `app`, on a thread of its own.

    If the configured port is 0, it picks a free one. Without an address, it uses port 8181, or a free one if that is in use.
    """

    def __init__(self, app: ASGIApp, settings: Http, *, drain_s: float = 10.0, name: str = "http") -> None:
        self._settings, self._drain_s = settings, drain_s
        self._connections = Connections(settings)
        self._logged_at = float("-inf")
        tls = settings.tls
        config = uvicorn.Config(
            app,
            http=self._connections.protocol(),
            timeout_keep_alive=settings.keep_alive_seconds,  # type: ignore[arg-type]  # asyncio accepts fractions
            backlog=BACKLOG,
            log_config=None,
            access_log=False,
            lifespan="off",
            proxy_headers=False,  # anybody can send them, and the address of the connection decides who is an operator
            timeout_graceful_shutdown=max(1, round(drain_s)),
            ssl_certfile=str(tls.cert) if tls.cert else None,
            ssl_keyfile=str(tls.key) if tls.key else None,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._socket: socket.socket | None = None

    def start(self) -> Mapping[str, str]:
        """Start listening. Returns the URL under the name of the door."""
        setting = "server.http.health_address" if self._thread.name == "health" else "server.http.address"
        self._socket = (
            _listening(self._settings.address, setting) if self._settings.address else _listening_by_default()
        )
        host, port = self._socket.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        self._thread.start()
        self._wait_for(lambda: self._server.started, START_S)
        return {self._thread.name: f"http{'s' if self._settings.tls.cert else ''}://{host}:{port}"}

    def drain(self) -> None:
        """Stop accepting requests; returns immediately."""
        self._server.should_exit = True

    def close(self) -> None:
        """Wait for running requests; uvicorn cancels those that exceed the drain period."""
        self._thread.join(self._drain_s + START_S)
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._on_exception)
        if self._settings.tls.cert:  # uvicorn does not pass it on, and asyncio's default is a minute
            loop.create_server = partial(  # type: ignore[method-assign]
                loop.create_server, ssl_handshake_timeout=self._settings.header_seconds
            )
        await self._server.serve(sockets=[self._socket])

    def _on_exception(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Close idle connections if the process cannot open more files, and log that once in a while."""
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in EXHAUSTED):
            loop.default_exception_handler(context)
            return
        self._connections.shed(SHED)
        if (now := time.monotonic()) < self._logged_at + LOGGED_S:
            return
        self._logged_at = now
        log.error(
            "HTTP connections wait, because the process cannot open more files (%s): idle connections are closed; raise the limit "
            "of open files (ulimit -n, LimitNOFILE), or lower server.http.max_connections",
            (error.strerror or "").lower(),
        )

    def _wait_for(self, holds: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise Unavailable("the HTTP server did not start; see the log")
            time.sleep(0.01)


def _listening_by_default() -> socket.socket:
    """A socket on the port that clients try first, or on a free port if another server of this machine uses it."""
    try:
        return _listening(DEFAULT_ADDRESS)
    except Unavailable:
        return _listening(FREE_PORT)


class _Listener(socket.socket):
    """A socket that pauses when the process can open no more files. asyncio would try, and log, a thousand times per second."""

    _paused_until = 0.0

    def accept(self) -> tuple[socket.socket, Any]:
        if time.monotonic() < self._paused_until:
            raise BlockingIOError  # asyncio takes it for the end of the queue
        try:
            return super().accept()
        except OSError as error:
            if error.errno in EXHAUSTED:
                self._paused_until = time.monotonic() + RETRY_S / 2  # asyncio waits for a second
            raise


def _listening(address: str, setting: str = "server.http.address") -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), proto=socket.IPPROTO_TCP)[0]
        # asyncio sets TCP_NODELAY only on sockets whose protocol is TCP, so the protocol is given.
        listener = _Listener(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0].lower()
        raise Unavailable(
            f"cannot listen on {address}: {reason}; choose another address with "
            f"{'--http or ' if setting == 'server.http.address' else ''}{setting}, with port 0 for a free port",
            key="address.unavailable",
        ) from error
