"""The HTTP door: Iceberg REST at /iceberg, and what operators ask for: /healthz, /readyz, /metrics."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from skiway.errors import Unavailable
from skiway.runtime.grpc_door import Tls

__all__ = ["HttpDoor", "HttpOptions", "web_app"]

START_S: Final = 10.0
USUAL: Final = "127.0.0.1:8181"
FREE: Final = "127.0.0.1:0"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"


def web_app(*, iceberg: ASGIApp, metrics: Callable[[], str], is_ready: Callable[[], bool]) -> Starlette:
    """What is served there. Health, readiness and metrics are open to everybody who reaches the port."""

    def healthz(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    def readyz(_: Request) -> Response:
        return PlainTextResponse("ready\n") if is_ready() else PlainTextResponse("not ready\n", status_code=503)

    def shown(_: Request) -> Response:
        return Response(metrics(), media_type=PROMETHEUS)

    return Starlette(
        routes=[
            Route("/healthz", healthz),
            Route("/readyz", readyz),
            Route("/metrics", shown),
            Mount("/iceberg", iceberg),
        ]
    )


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How the port is served."""

    drain_s: float = 10.0
    tls: Tls | None = None


class HttpDoor:
    """Serves `app` on `host:port`, on a thread of its own; port 0 takes one that is free, None the usual one or any."""

    def __init__(self, app: ASGIApp, address: str | None, options: HttpOptions) -> None:
        self._address, self._options = address, options
        tls = options.tls
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=max(1, round(options.drain_s)),
            ssl_certfile=str(tls.certificate) if tls else None,
            ssl_keyfile=str(tls.key) if tls else None,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="http", daemon=True)
        self._socket: socket.socket | None = None

    def start(self) -> Mapping[str, str]:
        """Listen; where."""
        self._socket = _listening(self._address) if self._address else _usual()
        host, port = self._socket.getsockname()[:2]
        host = f"[{host}]" if ":" in host else host
        self._thread.start()
        self._wait_for(lambda: self._server.started, START_S)
        return {"http": f"http{'s' if self._options.tls else ''}://{host}:{port}"}

    def drain(self) -> None:
        """Take no new calls, and return at once."""
        self._server.should_exit = True

    def close(self) -> None:
        """Wait for the calls that run; uvicorn cancels those that take too long."""
        self._thread.join(self._options.drain_s + START_S)
        if self._socket is not None:
            self._socket.close()

    def _run(self) -> None:
        assert self._socket is not None
        self._server.run(sockets=[self._socket])

    def _wait_for(self, holds: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not holds():
            if not self._thread.is_alive() or time.monotonic() > deadline:
                raise Unavailable("the HTTP door did not open; the log tells why")
            time.sleep(0.01)


def _usual() -> socket.socket:
    """The port that clients try first; a second server on a machine is found by its ready file."""
    try:
        return _listening(USUAL)
    except Unavailable:
        return _listening(FREE)


def _listening(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), proto=socket.IPPROTO_TCP)[0]
        # The protocol is named, because asyncio lets answers go without delay only on sockets that say they are TCP.
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(1024)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0].lower()
        raise Unavailable(
            f"cannot listen on {address}: {reason}; choose another address with --http or "
            "server.http.address, with port 0 for any that is free",
            key="address.unavailable",
        ) from error
