"""Health by the protocol of gRPC: SERVING while all doors are open, NOT_SERVING before and after."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]

__all__ = ["Health"]

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING


class Health:
    """The health of these services, and of the server as a whole, which is the service without a name."""

    service_names = (health.SERVICE_NAME,)

    def __init__(self, services: Iterable[str] = ()) -> None:
        self._servicer = _Servicer()
        self._services = ("", *services)
        self.is_serving = False
        self._set(NOT_SERVING)

    def add_to(self, server: grpc.Server) -> None:
        """Answer on `server`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """SERVING while inside; who watches is told of the end, and not waited for."""
        self._set(SERVING)
        self.is_serving = True
        try:
            yield
        finally:
            self.is_serving = False
            self._servicer.enter_graceful_shutdown()
            self._servicer.end_watches()

    def _set(self, status: Any) -> None:
        for service in self._services:
            self._servicer.set(service, status)


class _Servicer(health.HealthServicer):  # type: ignore[misc]  # it has no types
    """Watches last as long as their clients like, so they would keep a server from ending until its patience does."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[Callable[[Any], None]] = set()
        self._ended = False
        self._watching = Lock()

    def Watch(self, request: Any, context: Any, send_response_callback: Any = None) -> Any:  # noqa: N802 - gRPC's name
        answer = super().Watch(request, context, send_response_callback)
        context.add_callback(lambda: self._watches.discard(send_response_callback))
        with self._watching:
            if not self._ended:
                self._watches.add(send_response_callback)
                return answer
        send_response_callback(None)
        return answer

    def end_watches(self) -> None:
        with self._watching:
            self._ended, watches = True, list(self._watches)
        for send in watches:
            send(None)
