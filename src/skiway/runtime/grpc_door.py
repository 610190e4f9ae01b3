"""Health by the protocol of gRPC: SERVING while all doors are open, NOT_SERVING before and after."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]

from skiway.errors import InvalidArgument, Unavailable

__all__ = ["GrpcDoor", "GrpcOptions", "GrpcService", "Health", "Tls"]

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


# --------------------
# The gRPC door: one server for all gRPC services of the process, with reflection.


CANCEL_S: Final = 5.0
"""What a cancelled call has to notice it."""

log = logging.getLogger("skiway.runtime")


class GrpcService(Protocol):
    """Something served by gRPC: a group of services that is added to a server as a whole."""

    @property
    def service_names(self) -> Sequence[str]:
        """The full names of its services."""

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Certificate chain and private key, as PEM files."""

    certificate: Path
    key: Path

    def credentials(self) -> grpc.ServerCredentials:
        """What gRPC takes. The files are tried first, because gRPC does not say what is wrong with them."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            pair = self.key.read_bytes(), self.certificate.read_bytes()
        except (OSError, ValueError) as error:  # an SSLError is an OSError
            raise InvalidArgument(
                f"the certificate {self.certificate} and its key {self.key} cannot be used: {error}"
            ) from error
        return grpc.ssl_server_credentials([pair])


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """How the port is served."""

    workers: int = 32
    max_message_bytes: int = 64 * 1024 * 1024
    share_port: bool = False
    reflection: bool = True
    drain_s: float = 10.0
    tls: Tls | None = None


class GrpcDoor:
    """Serves all `services` on one `host:port`; port 0 takes one that is free.

    `names` are what clients are told is served there, each with what they write before the address.
    """

    def __init__(
        self, names: Mapping[str, str], services: Sequence[GrpcService], address: str, options: GrpcOptions
    ) -> None:
        self._names, self._address, self._options = names, address, options
        self._calls = ThreadPoolExecutor(options.workers, thread_name_prefix="call")
        self._server = grpc.server(self._calls, options=_server_options(options))
        for service in services:
            service.add_to(self._server)
        if options.reflection:
            served = [name for service in services for name in service.service_names]
            reflection.enable_server_reflection((*served, reflection.SERVICE_NAME), self._server)
        self._drained: threading.Event | None = None
        self._drain_until = 0.0

    def start(self) -> Mapping[str, str]:
        """Listen; where."""
        host, _, _ = self._address.rpartition(":")
        port = self._listen()
        self._server.start()
        address = f"{host}:{port}"
        return {name: f"{scheme}{address}" for name, scheme in self._names.items()}

    def drain(self) -> None:
        """Take no new calls, and return at once."""
        self._drain_until = time.monotonic() + self._options.drain_s
        self._drained = self._server.stop(self._options.drain_s)

    def close(self) -> None:
        """Wait for the calls that run, and cancel those that take too long."""
        assert self._drained is not None
        left = max(0.0, self._drain_until - time.monotonic())
        if not self._drained.wait(left + CANCEL_S):
            log.warning("calls did not end %.0f s after they were cancelled; leaving them behind", CANCEL_S)
        self._calls.shutdown(wait=False, cancel_futures=True)

    def _listen(self) -> int:
        tls = self._options.tls
        credentials = tls.credentials() if tls else None
        try:
            if credentials is not None:
                return self._server.add_secure_port(self._address, credentials)
            return self._server.add_insecure_port(self._address)
        except RuntimeError as error:
            raise Unavailable(
                f"cannot listen on {self._address}: {_why_not(self._address)}; choose another address with --grpc or "
                "server.grpc.address, with port 0 for any that is free",
                key="address.unavailable",
            ) from error


def _server_options(options: GrpcOptions) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", int(options.share_port)),
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", -1),  # rows go out in batches as large as they are
        ("grpc.max_metadata_size", 64 * 1024),  # filters of DuckDB travel as a header
    ]


def _why_not(address: str) -> str:
    """GRPC says only that it failed; asking the system tells why."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return "gRPC refused it"
