"""The HTTP server of a process: the explorer at /, Iceberg REST at /iceberg, /healthz, /readyz and /metrics for operators."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from skiway.config.server import Http, Tls
from skiway.errors import PermissionDenied, Unauthorized, Unavailable
from skiway.runtime.http_connections import Connections
from skiway.runtime.operators import Operators
from skiway.security.principals import OBSERVES_PLATFORM

__all__ = ["DEFAULT_ADDRESS", "HttpDoor", "health_door", "web_app"]

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


log = logging.getLogger("skiway.runtime")


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

    return WebApp(
        iceberg,
        routes=[
            *probe_routes(not_ready),
            Route("/metrics", metrics_text),
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
