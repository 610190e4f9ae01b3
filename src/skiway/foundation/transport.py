"""Transports serve gRPC calls. Doors are written against this interface, and do not depend on an implementation.

A door describes its methods, each with its shape, its function and the threads that it runs on. A transport accepts
connections, and hands each call to the function of its method as messages in bytes and a `Call`. There are two:
`Grpcio`, which is always there, and `skiway.foundation.native.Native`, which needs the distribution `skiway-native`.

    server = new_server(Options())
    server.add_generic_rpc_handlers((Methods([Method("/example/Echo", echo, threads)]),))
    port = server.listen("127.0.0.1:0")
    server.start()
    server.stop(10).wait()

`Methods` can be added to any server of grpcio, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, Never, Protocol, TypeAlias

import grpc

from skiway.foundation.threads import CONNECTION_OPTIONS, FairThreads

Metadata: TypeAlias = Sequence[tuple[str, str | bytes]]
Choice: TypeAlias = Literal["auto", "native", "grpcio"]

MIB: Final = 1024 * 1024


class Call(Protocol):
    """One call. `grpc.ServicerContext` has these methods."""

    def invocation_metadata(self) -> Metadata:
        """The headers; names are lower-case."""

    def peer(self) -> str:
        """The address of the client, such as `ipv4:127.0.0.1:5000`."""

    def time_remaining(self) -> float | None:
        """Seconds until the deadline."""

    def is_active(self) -> bool:
        """Whether the client still waits for the response."""

    def add_callback(self, callback: Callable[[], None]) -> bool:
        """Call `callback` in another thread when the call is over; False if it is over already."""

    def send_initial_metadata(self, metadata: Metadata) -> None:
        """Send headers before the response."""

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        """Send these headers after the response."""

    def abort(self, code: grpc.StatusCode, details: str) -> Never:
        """End the call with a status."""

    def cancel(self) -> None:
        """End the call, from any thread."""


Answers: TypeAlias = Literal["one", "many", "sends"]


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method of a service, at a path such as `/package.Service/Name`.

    `serve` gets an iterator of the messages of the client, and the call. It returns the response, or yields it if it `answers`
    many messages. One that "sends" gets a function as well, which sends a message, or ends the response if it gets None.

    The iterator raises `grpc.RpcError` if the call ends early. If `is_single`, clients send exactly one message, and a transport
    may wait for it before it occupies a thread.
    """

    path: str
    serve: Callable[..., Any]
    threads: FairThreads
    answers: Answers = "one"
    is_single: bool = True


LaneOf: TypeAlias = Callable[[Mapping[str, "str | bytes"]], str]
"""From the headers of a call to the lane in which it waits for a thread."""


class Methods(grpc.GenericRpcHandler):
    """Methods that are served together. For grpcio, it is what finds their handlers.

    If only `lane_headers` decide about the lane of a call, a transport may remember it for a second.
    """

    def __init__(
        self, methods: Iterable[Method], lane_of: LaneOf | None = None, lane_headers: Sequence[str] | None = None
    ) -> None:
        self.by_path: dict[str, Method] = {method.path: method for method in methods}
        self.lane_of, self.lane_headers = lane_of, lane_headers
        self._handlers: dict[Method, Any] = {}

    def find(self, path: str, headers: Mapping[str, str | bytes]) -> Method | None:  # noqa: ARG002  (subclasses do)
        """The method of a call; a subclass may choose by the headers, too."""
        return self.by_path.get(path)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        """The handler of a call, for grpcio."""
        path = handler_call_details.method
        if path not in self.by_path:
            return None
        headers = dict(handler_call_details.invocation_metadata)
        method = self.find(path, headers)
        if method is None:
            return None
        handler = self._handlers.get(method)
        if handler is None:
            handler = self._handlers[method] = _handler(method)
        return method.threads.serve(handler, "" if self.lane_of is None else self.lane_of(headers))


def _handler(method: Method) -> Any:
    """The handler for grpcio.

    All methods are served as if clients streamed their requests: grpcio would occupy a thread until the request arrives, before
    anybody knows who calls.
    """
    serve: Any = partial(method.serve)
    if method.answers == "sends":
        serve.experimental_non_blocking = True  # tells grpcio that the function sends itself
    if method.answers == "one":
        return grpc.stream_unary_rpc_method_handler(serve)
    return grpc.stream_stream_rpc_method_handler(serve)


@dataclass(frozen=True, slots=True)
class Certificate:
    """The certificate of a server and its key, as PEM. With `client_ca`, clients need a certificate signed by it."""

    chain: bytes
    key: bytes
    client_ca: bytes | None = None


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a server. A client has `opening_s` seconds to send a request."""

    max_message_bytes: int = 64 * MIB
    max_header_bytes: int = 64 * 1024  # DuckDB sends filters in a header
    share_port: bool = False
    opening_s: float = 30.0


class Ended(Protocol):
    """The end of a server. `threading.Event` has this method."""

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no calls run; False after `timeout` seconds."""


class Transport(Protocol):
    """A server of one of the transports."""

    name: str

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Serve `Methods`."""

    def listen(self, address: str, certificate: Certificate | None = None) -> int:
        """Listen on `host:port` or `unix:path`, and return the port; `OSError` if that is impossible."""

    def start(self) -> None:
        """Begin to serve."""

    def stop(self, grace: float) -> Ended:
        """Accept nothing more, let calls run for `grace` seconds, and then cancel them. Returns immediately."""


class Grpcio:
    """A server of grpcio."""

    name = "grpcio"

    def __init__(self, options: Options) -> None:
        self._other = ThreadPoolExecutor(1, "grpc-other")  # all methods have threads of their own
        self._server = grpc.server(
            self._other,
            options=[
                ("grpc.so_reuseport", int(options.share_port)),
                ("grpc.max_receive_message_length", options.max_message_bytes),
                ("grpc.max_send_message_length", -1),  # batches of rows have any size
                ("grpc.max_metadata_size", options.max_header_bytes),
                *CONNECTION_OPTIONS,
            ],
        )
        self.add_generic_rpc_handlers = self._server.add_generic_rpc_handlers
        self.start = self._server.start

    def listen(self, address: str, certificate: Certificate | None = None) -> int:
        """Listen on an address."""
        try:
            if certificate is None:
                return self._server.add_insecure_port(address)
            credentials = grpc.ssl_server_credentials(
                [(certificate.key, certificate.chain)],
                root_certificates=certificate.client_ca,
                require_client_auth=certificate.client_ca is not None,
            )
            return self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise OSError(f"cannot listen on {address}") from error

    def stop(self, grace: float) -> Ended:
        """End the server."""
        self._other.shutdown(wait=False)
        return self._server.stop(grace)
