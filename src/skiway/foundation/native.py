"""The native transport: a gRPC server in Rust, from the distribution `skiway-native`.

HTTP/2, TLS, framing, deadlines and flow control are there. Here, each call is given to the threads of its method. `new_server`
chooses between this transport and grpcio.
"""

from __future__ import annotations

import atexit
import importlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import Context
from importlib.util import find_spec
from threading import Thread
from typing import Any, Final, Never
from weakref import WeakSet

import grpc

from skiway.errors import Internal, Unsupported
from skiway.foundation.threads import FairThreads
from skiway.foundation.transport import (
    Certificate,
    Choice,
    Ended,
    Grpcio,
    Metadata,
    Method,
    Methods,
    Options,
    Transport,
)

NATIVE: Final = "skiway_native"
VARIABLE: Final = "SKIWAY__SERVER__TRANSPORT"
"""The environment variable of the setting `server.transport`. It also says what `auto` is."""

log = logging.getLogger("skiway.transport")

_OK: Final = 0
_CANCELLED: Final = 1
_UNKNOWN: Final = 2
_UNIMPLEMENTED: Final = 12
_CLOSE_S: Final = 5.0


def new_server(options: Options, transport: Choice = "auto") -> Transport:
    """A server of a transport; `auto` is the native one if it is installed."""
    return Grpcio(options) if chosen(transport) == "grpcio" else Native(options)


_CHOICES: Final[Mapping[str, Choice]] = {"native": "native", "grpcio": "grpcio"}


def chosen(transport: Choice) -> Choice:
    """What `transport` stands for on this machine."""
    if transport == "auto":
        transport = _CHOICES.get(os.environ.get(VARIABLE, ""), "auto")
    if transport == "auto":
        return "native" if find_spec(NATIVE) is not None else "grpcio"
    if transport == "native" and find_spec(NATIVE) is None:
        raise Unsupported(
            "the native transport is not installed: install skiway-native, or build it with `make native`",
            key="transport.missing",
        )
    return transport


class _Aborted(Exception):
    """The handler has ended the call with a status."""


class NativeCall:
    """A call, with the methods of `transport.Call`; iterating yields the messages of the client."""

    __slots__ = ("_call", "_code", "_details", "_metadata", "_trailers")

    def __init__(self, call: Any) -> None:
        self._call = call
        self._metadata: Metadata = call.metadata()
        self._trailers: Metadata | None = None
        self._code, self._details = _OK, ""

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return str(self._call.peer())

    def time_remaining(self) -> float | None:
        left: float | None = self._call.time_remaining()
        return left

    def is_active(self) -> bool:
        return bool(self._call.is_active())

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return bool(self._call.when_over(callback))

    def send_initial_metadata(self, metadata: Metadata) -> None:
        self._call.send_metadata(metadata)

    def set_trailing_metadata(self, metadata: Metadata) -> None:
        self._trailers = metadata

    def set_code(self, code: grpc.StatusCode) -> None:
        """The status of the call if it ends normally, as libraries set it."""
        self._code = code.value[0]

    def set_details(self, details: str) -> None:
        """The message of that status."""
        self._details = details

    def abort(self, code: grpc.StatusCode, details: str) -> Never:
        self._call.finish(code.value[0], details, self._trailers)
        raise _Aborted

    def cancel(self) -> None:
        self._call.cut(_CANCELLED, "the server cancelled the call")

    def cut(self, code: grpc.StatusCode, details: str) -> None:
        """End the call with a status, from any thread."""
        self._call.cut(code.value[0], details)

    def __iter__(self) -> NativeCall:
        return self

    def __next__(self) -> bytes:
        message = self._call.receive()
        if message is None:
            raise StopIteration
        if message is False:
            raise grpc.RpcError
        return message  # type: ignore[no-any-return]

    def send(self, message: bytes | None) -> None:
        """Send a message, or end the response."""
        if message is None:
            self._call.finish(self._code, self._details, self._trailers)
        else:
            self._call.send(message)

    def serve(self, method: Method) -> None:
        """Run the function of the method, and send what it returns."""
        try:
            if method.answers == "one":
                answer = method.serve(self, self)
                self._call.reply(answer, self._code, self._details, self._trailers)
            elif method.answers == "sends":
                method.serve(self, self, self.send)
            else:
                self._send_all(method.serve(self, self))
        except _Aborted:
            pass
        except Exception as error:
            if not isinstance(error, grpc.RpcError) or self.is_active():
                log.exception("%s failed", method.path)
            self._call.finish(_UNKNOWN, "the server failed: see its log", None)

    def _send_all(self, messages: Any) -> None:
        send = self._call.send
        try:
            for message in messages:
                if not send(message):
                    return
            self.send(None)
        finally:
            if close := getattr(messages, "close", None):
                close()


class Native:
    """A server in Rust."""

    name = "native"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._methods: dict[str, Methods] = {}
        self._lanes: dict[FairThreads, Any] = {}
        self._threads: list[Thread] = []
        self._library = importlib.import_module(NATIVE)
        self._server: Any = self._library.Server(
            max_message_bytes=options.max_message_bytes,
            max_header_bytes=options.max_header_bytes,
            opening_s=options.opening_s,
        )
        _open.add(self)

    def add_generic_rpc_handlers(self, handlers: Sequence[Methods]) -> None:
        """Serve methods."""
        for methods in handlers:
            if not isinstance(methods, Methods):
                raise Internal(f"the native transport serves Methods, not {type(methods).__name__}")
            self._methods.update(dict.fromkeys(methods.by_path, methods))

    def listen(self, address: str, certificate: Certificate | None = None) -> int:
        """Listen on an address."""
        given: dict[str, Any] = {}
        if certificate is not None:
            given = {"certificate": certificate.chain, "key": certificate.key, "client_ca": certificate.client_ca}
        port: int = self._server.listen(address, share_port=self._options.share_port, **given)
        return port

    def start(self) -> None:
        """Begin to serve."""
        described = {}
        for path, methods in self._methods.items():
            method = methods.by_path[path]
            lanes = self._lanes.get(method.threads) or self._opened(method.threads)
            described[path] = {
                "is_single": method.is_single,
                "threads": lanes,
                "lane_of": methods.lane_of,
                "lane_headers": None if methods.lane_headers is None else list(methods.lane_headers),
            }
        self._server.start(described)

    def stop(self, grace: float) -> Ended:
        """End the server."""
        self._server.stop(grace)
        return _Ended(self)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the server has ended."""
        has_ended: bool = self._server.wait(timeout)
        if has_ended:
            self.close()
        return has_ended

    def close(self) -> None:
        """End the threads, once no calls run. Nothing in Rust calls Python afterwards."""
        self._server.close()
        for lanes in self._lanes.values():
            lanes.close()
        self._methods.clear()

    def exit(self) -> None:
        """End the server before the interpreter ends, and let running calls end."""
        self._server.stop(0)
        self._server.wait(_CLOSE_S)
        self.close()
        for thread in self._threads:
            thread.join()

    def _opened(self, threads: FairThreads) -> Any:
        """Threads with the same limits, which Rust gives calls to."""
        by_path, started = self._methods, self._threads

        def serve(call: Any) -> None:
            methods = by_path.get(call.path)
            if methods is None:  # the server has ended
                return
            served = NativeCall(call)
            method = methods.find(call.path, dict(served.invocation_metadata()))
            if method is None:
                call.finish(_UNIMPLEMENTED, "Method not found!", None)
            else:
                Context().run(served.serve, method)

        def start() -> None:
            thread = Thread(target=lanes.work, name=f"{threads.name}_{len(started) + 1}", daemon=True)
            thread.start()
            started.append(thread)

        lanes = self._library.Lanes(threads.threads, threads.per_lane, threads.waiting, start, serve)
        self._lanes[threads] = lanes
        lanes.open()
        return lanes


class _Ended:
    """The end of a server."""

    def __init__(self, server: Native) -> None:
        self._server = server

    def wait(self, timeout: float | None = None) -> bool:
        return self._server.wait(timeout)


_open: WeakSet[Native] = WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_open):
        server.exit()
