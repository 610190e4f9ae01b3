"""The gRPC server of a process: all gRPC services on one port, with health checks and reflection."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from skiway.config.server import Grpc, Tls
from skiway.errors import InvalidArgument, Unavailable

__all__ = ["GrpcDoor", "GrpcService", "Health"]

SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

CANCEL_S: Final = 5.0
"""How long cancelled calls may take to end."""

log = logging.getLogger("skiway.runtime")


class Health:
    """The gRPC health service: SERVING while the process accepts calls, NOT_SERVING before and after.

    It covers the given services and the server as a whole, which has the empty name.
    """

    service_names = (health.SERVICE_NAME,)

    def __init__(self, services: Iterable[str] = ()) -> None:
        self._servicer = _Servicer()
        self._services = ("", *services)
        self.is_serving = False
        self._set(NOT_SERVING)

    def add_to(self, server: grpc.Server) -> None:
        """Add the health service to `server`."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    @contextmanager
    def serving(self) -> Iterator[None]:
        """SERVING for the duration of the block. Watchers are notified of its end and disconnected."""
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


class _Servicer(health.HealthServicer):  # type: ignore[misc]  # the library is untyped
    """A health servicer that can end watches, which would otherwise delay shutdown until the drain period expires."""

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


class GrpcService(Protocol):
    """A group of gRPC services that is added to a server as a whole."""

    @property
    def service_names(self) -> Sequence[str]:
        """The full names of its services."""

    def add_to(self, server: grpc.Server) -> None:
        """Add the services to `server`."""


class GrpcDoor:
    """A gRPC server for `services`. If the configured port is 0, it picks a free one.

    `schemes` maps each name under which clients look for the address to the URL scheme in front of it.
    """

    def __init__(self, schemes: Mapping[str, str], services: Sequence[GrpcService], settings: Grpc) -> None:
        self._schemes, self._settings = schemes, settings
        self._calls = ThreadPoolExecutor(settings.workers, thread_name_prefix="call")
        self._server = grpc.server(self._calls, options=_server_options(settings))
        for service in services:
            service.add_to(self._server)
        if settings.reflection:
            served = [name for service in services for name in service.service_names]
            reflection.enable_server_reflection((*served, reflection.SERVICE_NAME), self._server)
        self._drained: threading.Event | None = None
        self._drain_until = 0.0

    def start(self) -> Mapping[str, str]:
        """Start listening. Returns the address under each name."""
        host, _, _ = self._settings.address.rpartition(":")
        port = self._listen()
        self._server.start()
        address = f"{host}:{port}"
        return {name: f"{scheme}{address}" for name, scheme in self._schemes.items()}

    def drain(self) -> None:
        """Stop accepting calls; returns immediately."""
        self._drain_until = time.monotonic() + self._settings.drain_seconds
        self._drained = self._server.stop(self._settings.drain_seconds)

    def close(self) -> None:
        """Wait for running calls, and cancel those that exceed the drain period."""
        assert self._drained is not None
        left = max(0.0, self._drain_until - time.monotonic())
        if not self._drained.wait(left + CANCEL_S):
            log.warning("some calls did not end within %.0f s after they were cancelled; abandoning them", CANCEL_S)
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> int:
        address, credentials = self._settings.address, _credentials(self._settings.tls)
        try:
            if credentials is not None:
                return self._server.add_secure_port(address, credentials)
            return self._server.add_insecure_port(address)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {address}: {_bind_error(address)}; choose another address with --grpc or "
                "server.grpc.address, with port 0 for a free port",
                key="address.unavailable",
            ) from error


def _credentials(tls: Tls) -> grpc.ServerCredentials | None:
    """The credentials for gRPC. The files are loaded with `ssl` first, because gRPC does not report what is wrong."""
    if tls.cert is None or tls.key is None:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key)
        pair = tls.key.read_bytes(), tls.cert.read_bytes()
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InvalidArgument(f"the certificate {tls.cert} and its key {tls.key} cannot be used: {error}") from error
    return grpc.ssl_server_credentials([pair])


def _server_options(settings: Grpc) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", int(settings.share_port)),
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # batches of rows have any size
        ("grpc.max_metadata_size", 64 * 1024),  # DuckDB sends filters in a header
    ]


def _bind_error(address: str) -> str:
    """The reason why binding fails, from the operating system; gRPC does not report it."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "gRPC could not bind it"
