"""The gRPC server of a process: all gRPC services on one port, with health checks and reflection.

Health checks and reflection need no token. They have threads of their own, and a client can occupy only a part of them, for
a short time: a client that opens calls and sends nothing blocks neither the work of the server nor the health checks of others.

Reflection lists the services and their messages: the service `v1`, and `v1alpha` for older clients. Both have the same
messages under different names, so the library's servicer of `v1alpha` answers both. Callers must authenticate, or come from
a network of the operator.
"""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, Final, Protocol

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]

from skiway.config.server import Grpc, Tls
from skiway.errors import InvalidArgument, LimitExceeded, SkiwayError, TimedOut, Unavailable
from skiway.foundation.doors import GRPC_CODES, status_in
from skiway.foundation.native import new_server
from skiway.foundation.threads import FairThreads, StreamWatch, WatchedCall
from skiway.foundation.transport import Certificate, Choice, Ended, Method, Methods, Options, Transport
from skiway.request_path import Operators

_REFUSERS: Final = 8  # threads for calls that are replaced or rejected


class SideCalls:
    """Up to `limit` calls at a time, of which each client (by its address) may have `per_client`.

    A call beyond that replaces one whose client has sent nothing, and is rejected if there is none.

    A client has `opening_s` seconds to send its request, and a stream may be idle for `idle_s`.
    """

    def __init__(
        self, name: str, *, limit: int = 16, per_client: int = 4, opening_s: float = 5.0, idle_s: float = 10.0
    ) -> None:
        self._limit, self._per_client = limit, per_client
        self._threads = FairThreads(limit + _REFUSERS, name)
        self._watch = StreamWatch(opening_s=opening_s, idle_s=idle_s)
        self._open: dict[WatchedCall, str] = {}  # in the order in which they were opened, with their addresses
        self._lock = threading.Lock()

    def unary(self, path: str, act: Callable[[Any, Any], Any], request: Any) -> Method:
        """A method with one request and one response."""

        def serve(messages: Iterator[bytes], context: Any) -> Any:
            with self._admitted(context) as client:
                return act(_decoded(request, client.only(messages)), context).SerializeToString()

        return Method(path, serve, self._threads)

    def watching(self, path: str, act: Callable[[Any, Any, Any], None], request: Any) -> Method:
        """A method that sends responses with a callback, also after `act` has returned."""

        def serve(messages: Iterator[bytes], context: Any, send: Any) -> None:
            def send_response(response: Any) -> None:
                send(None if response is None else response.SerializeToString())

            with self._admitted(context) as client:
                act(_decoded(request, client.only(messages)), context, send_response)

        return Method(path, serve, self._threads, answers="sends")

    def streaming(self, path: str, act: Callable[[Iterator[Any], Any], Iterator[Any]], request: Any) -> Method:
        """A method with many requests and many responses."""

        def serve(messages: Iterator[bytes], context: Any) -> Iterator[bytes]:
            with self._admitted(context) as client:
                requests = (_decoded(request, message) for message in client.received(messages))
                for response in act(requests, context):
                    client.wait()
                    yield response.SerializeToString()
                    client.resume()

        return Method(path, serve, self._threads, answers="many", is_single=False)

    def close(self) -> None:
        """End the threads, once no calls run."""
        self._watch.close()
        self._threads.shutdown()

    @contextmanager
    def _admitted(self, context: grpc.ServicerContext) -> Iterator[WatchedCall]:
        """Count the call while the block runs, and watch its client; errors end the call with their status."""
        host = _host(context.peer())
        try:
            with self._watch.watched(context) as client:
                self._enter(host, client)
                try:
                    yield client
                finally:
                    self._leave(client)
        except SkiwayError as error:
            context.abort(status_in(GRPC_CODES, error), error.message)

    def _enter(self, host: str, client: WatchedCall) -> None:
        """Count a call. If there are too many, it replaces the oldest one that waits for its client."""
        with self._lock:
            same_host = [each for each, its_host in self._open.items() if its_host == host]
            rivals = same_host if len(same_host) >= self._per_client else list(self._open)
            if len(same_host) >= self._per_client or len(self._open) >= self._limit:
                replaced = next((each for each in rivals if each.since is not None and each.ended is None), None)
                if replaced is None:
                    raise LimitExceeded(f"{len(rivals)} such calls are open: try again in a moment")
                del self._open[replaced]
                replaced.end(TimedOut("the client sent nothing, and other calls are waiting", key="stream.idle"))
            self._open[client] = host

    def _leave(self, client: WatchedCall) -> None:
        with self._lock:
            self._open.pop(client, None)


def _decoded(kind: Any, data: bytes) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError:
        name = kind.DESCRIPTOR.full_name
        raise InvalidArgument(f"the request is not a {name}", key="message.malformed") from None


def _host(peer: str) -> str:
    """The address of a client without its port, as in `ipv4:10.0.0.1`."""
    return peer.rpartition(":")[0] if peer.startswith(("ipv4:", "ipv6:")) else peer


ALPHA: Final = "grpc.reflection.v1alpha"
STABLE: Final = "grpc.reflection.v1"
SERVICE_V1: Final = f"{STABLE}.ServerReflection"


def enable_reflection(services: Sequence[str], server: Transport, operators: Operators) -> SideCalls:
    """Add the reflection services to `server`, for callers that `operators` admits. They list `services` and themselves.

    They run on the threads that are returned.
    """
    names = (*services, reflection.SERVICE_NAME, SERVICE_V1)
    pool = descriptor_pool.Default()
    _describe_v1(pool)
    servicer: Any = reflection.ReflectionServicer(service_names=names, pool=pool)

    def serve(requests: Iterator[Any], client: grpc.ServicerContext) -> Iterator[Any]:
        headers = {name: value for name, value in client.invocation_metadata() if isinstance(value, str)}
        try:
            operators.admit_grpc(headers, client.peer())
        except SkiwayError as error:
            client.abort(status_in(GRPC_CODES, error), error.message)
        yield from servicer.ServerReflectionInfo(requests, client)

    calls = SideCalls("reflection")
    request = reflection_pb2.ServerReflectionRequest
    paths = (f"/{name}/ServerReflectionInfo" for name in (reflection.SERVICE_NAME, SERVICE_V1))
    server.add_generic_rpc_handlers([Methods(calls.streaming(path, serve, request) for path in paths)])
    return calls


def _describe_v1(pool: Any) -> None:
    """Add the description of `v1`, which is that of `v1alpha` with another package, so that clients can ask for it."""
    renamed = descriptor_pb2.FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(renamed)
    renamed.name = "grpc/reflection/v1/reflection.proto"
    renamed.package = STABLE
    for message in renamed.message_type:
        for field in filter(lambda each: each.type_name, message.field):
            field.type_name = field.type_name.replace(f".{ALPHA}.", f".{STABLE}.")
    for service in renamed.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{ALPHA}.", f".{STABLE}.")
            method.output_type = method.output_type.replace(f".{ALPHA}.", f".{STABLE}.")
    pool.AddSerializedFile(renamed.SerializeToString())


SERVING: Final = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: Final = health_pb2.HealthCheckResponse.NOT_SERVING

CANCEL_S: Final = 5.0
"""How long cancelled calls may take to end."""

MAX_WATCHES: Final = 1000
WATCH_S: Final = 1.0
RECOVERY_S: Final = 0.1

log = logging.getLogger("skiway.runtime")


class Health:
    """The gRPC health service: SERVING while the process accepts calls, NOT_SERVING before and after.

    It covers the given services and the server as a whole, which has the empty name. `failed` names the parts of the process
    that do not work: then the status is NOT_SERVING as well. While clients watch, a thread asks it again and again, so that
    they learn of every change.
    """

    service_names = (health.SERVICE_NAME,)

    def __init__(self, services: Iterable[str] = (), *, failed: Callable[[], Sequence[str]] = lambda: ()) -> None:
        self._servicer = _Servicer(self.not_ready)
        self._failed = failed
        self._calls = SideCalls("health")
        self._services = ("", *services)
        self._lock, self._telling = Lock(), Lock()
        self._stopped, self._changed = threading.Event(), threading.Event()
        self._status = NOT_SERVING
        self.is_serving = False
        self._set(NOT_SERVING)

    def add_to(self, server: grpc.Server | Transport) -> None:
        """Add the health service to `server`, on threads of its own."""
        request, path = health_pb2.HealthCheckRequest, f"/{health.SERVICE_NAME}/"
        check = self._calls.unary(f"{path}Check", self._servicer.Check, request)
        watch = self._calls.watching(f"{path}Watch", self._servicer.Watch, request)
        server.add_generic_rpc_handlers([Methods((check, watch))])

    def not_ready(self) -> Sequence[str]:
        """What keeps the process from serving: the server itself while it starts or stops, or parts that do not work.

        Watchers are told if that has changed.
        """
        with self._lock:  # watchers are told in the order of the answers
            failed = self._failed() if self.is_serving else ("server",)
            status = NOT_SERVING if failed else SERVING
            if status != self._status:
                self._set(status)
            return failed

    def close(self) -> None:
        """End the threads, once the server has stopped."""
        self._calls.close()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """SERVING for the duration of the block, as far as all parts work. Watchers are notified of its end and disconnected."""
        self.is_serving = True
        self.not_ready()
        thread = threading.Thread(target=self._watch_parts, name="readiness-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            with self._telling:  # a thread that sees that it has ended tells watchers nothing more
                self.is_serving = False
                self._stopped.set()
                self._servicer.enter_graceful_shutdown()
            self._changed.set()
            self._servicer.end_watches()

    def _watch_parts(self) -> None:
        """Ask the parts while clients watch: once per second, and more often until they work again."""
        while not self._stopped.is_set():
            self._changed.wait(WATCH_S if self._status == SERVING else RECOVERY_S)
            self._changed.clear()
            if self._servicer.is_watched and not self._stopped.is_set():
                self.not_ready()

    def _set(self, status: Any) -> None:
        self._status = status
        self._changed.set()  # how often the parts are asked depends on it
        with self._telling:  # watchers of all services learn of a change before the next one
            for service in self._services:
                self._servicer.set(service, status)


class _Servicer(health.HealthServicer):  # type: ignore[misc]  # the library is untyped
    """A health servicer that can end watches, which would otherwise delay shutdown until the drain period expires."""

    def __init__(self, refresh: Callable[[], object]) -> None:
        super().__init__()
        self._refresh = refresh
        self._watches: set[Callable[[Any], None]] = set()
        self._ended = False
        self._watching = Lock()

    def Check(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        self._refresh()
        return super().Check(request, context)

    def Watch(self, request: Any, context: Any, send_response_callback: Any = None) -> Any:  # noqa: N802 - gRPC's name
        if len(self._watches) >= MAX_WATCHES:
            raise LimitExceeded(f"{MAX_WATCHES} clients watch the health of this server: check it instead")
        self._refresh()
        answer = super().Watch(request, context, send_response_callback)
        context.add_callback(lambda: self._watches.discard(send_response_callback))
        with self._watching:
            if not self._ended:
                self._watches.add(send_response_callback)
                return answer
        send_response_callback(None)
        return answer

    @property
    def is_watched(self) -> bool:
        """Whether a client watches."""
        return bool(self._watches)

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

    def add_to(self, server: Transport) -> None:
        """Add the services to `server`."""


class GrpcDoor:
    """A gRPC server for `services`. If the configured port is 0, it picks a free one.

    `schemes` maps each name under which clients look for the address to the URL scheme in front of it. Without `operators`,
    there is no reflection. With a `socket_file`, it listens there as well, without TLS, for the process itself. If it `leads`,
    other processes of the same server listen on its port, but not other programs.
    """

    def __init__(
        self,
        schemes: Mapping[str, str],
        services: Sequence[GrpcService],
        settings: Grpc,
        *,
        operators: Operators | None = None,
        socket_file: Path | None = None,
        leads: bool = False,
        transport: Choice = "auto",
    ) -> None:
        self._schemes, self._settings, self._socket_file = schemes, settings, socket_file
        self._leads = leads
        self.address = settings.address
        options = Options(
            max_message_bytes=settings.max_message_bytes,
            share_port=settings.share_port or leads,
            opening_s=settings.opening_seconds,
        )
        self._server = new_server(options, transport)
        for service in services:
            service.add_to(self._server)
        self._reflection: SideCalls | None = None
        if settings.reflection and operators is not None:
            served = [name for service in services for name in service.service_names]
            self._reflection = enable_reflection(served, self._server, operators)
        self._drained: Ended | None = None
        self._drain_until = 0.0

    def start(self) -> Mapping[str, str]:
        """Start listening. Returns the address under each name."""
        host, _, _ = self._settings.address.rpartition(":")
        port = self._listen()
        if self._socket_file is not None:
            self._server.listen(f"unix:{self._socket_file}")
        self._server.start()
        self.address = f"{host}:{port}"
        log.info("serving gRPC at %s, with the transport %s", self.address, self._server.name)
        return {name: f"{scheme}{self.address}" for name, scheme in self._schemes.items()}

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
        if self._reflection is not None:
            self._reflection.close()

    def _listen(self) -> int:
        address, certificate = self._settings.address, _certificate(self._settings.tls)
        if self._leads and not self._settings.share_port and (reason := _bind_error(address)):
            raise _unavailable(address, reason)  # gRPC would share the port with a program that allows it
        try:
            return self._server.listen(address, certificate)
        except OSError as error:
            raise _unavailable(address, _bind_error(address) or "gRPC could not bind it") from error


def _unavailable(address: str, reason: str) -> Unavailable:
    return Unavailable(
        f"cannot listen on {address}: {reason}; choose another address with --grpc or server.grpc.address, with port 0 for a "
        "free port",
        key="address.unavailable",
    )


def _certificate(tls: Tls) -> Certificate | None:
    """The certificate. The files are loaded with `ssl` first, because gRPC does not report what is wrong."""
    if tls.cert is None or tls.key is None:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.cert, tls.key)
        return Certificate(tls.cert.read_bytes(), tls.key.read_bytes())
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        raise InvalidArgument(f"the certificate {tls.cert} and its key {tls.key} cannot be used: {error}") from error


def _bind_error(address: str) -> str:
    """The reason why binding fails, from the operating system, as gRPC does not report it; empty if it does not fail."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
