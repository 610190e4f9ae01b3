"""Threads for calls that need no token: health checks and reflection.

They never share threads with other calls, and a client can occupy only a part of them, for a short time: whoever opens calls
and sends nothing blocks neither the work of the server nor the health checks of others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from skiway.doors import GRPC_CODES, status_in
from skiway.errors import InvalidArgument, LimitExceeded, SkiwayError, TimedOut
from skiway.streams import StreamWatch, WatchedCall

__all__ = ["SideCalls"]

_REFUSERS: Final = 8  # threads for calls that are replaced or rejected

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class SideCalls:
    """Up to `limit` calls at a time, of which each client (by its address) may have `per_client`.

    A call beyond that replaces one whose client has sent nothing, and is rejected if there is none.

    A client has `opening_s` seconds to send its request, and a stream may be idle for `idle_s`.
    """

    def __init__(
        self, name: str, *, limit: int = 16, per_client: int = 4, opening_s: float = 5.0, idle_s: float = 10.0
    ) -> None:
        self._limit, self._per_client = limit, per_client
        self._threads = ThreadPoolExecutor(limit + _REFUSERS, thread_name_prefix=name)
        self._watch = StreamWatch(opening_s=opening_s, idle_s=idle_s)
        self._open: dict[WatchedCall, str] = {}  # in the order in which they were opened, with their addresses
        self._lock = threading.Lock()

    def unary(self, act: Callable[[Any, Any], Any], request: Any, *, answers: Callable[[Any], bytes]) -> Handler:
        """A handler for a method with one request and one response."""

        def serve(messages: Iterator[bytes], context: Any) -> Any:
            with self._admitted(context) as client:
                return act(_decoded(request, client.only(messages)), context)

        return grpc.stream_unary_rpc_method_handler(self._on_own_threads(serve), response_serializer=answers)

    def watching(
        self, act: Callable[[Any, Any, Any], None], request: Any, *, answers: Callable[[Any], bytes]
    ) -> Handler:
        """A handler for a method that sends responses with a callback, also after `act` has returned."""

        def serve(messages: Iterator[bytes], context: Any, send: Any) -> None:
            with self._admitted(context) as client:
                act(_decoded(request, client.only(messages)), context, send)

        serve.experimental_non_blocking = True  # type: ignore[attr-defined]  # tells gRPC that the handler sends itself
        return grpc.stream_stream_rpc_method_handler(self._on_own_threads(serve), response_serializer=answers)

    def streaming(
        self, act: Callable[[Iterator[Any], Any], Iterator[Any]], request: Any, *, answers: Callable[[Any], bytes]
    ) -> Handler:
        """A handler for a method with many requests and many responses."""

        def serve(messages: Iterator[bytes], context: Any) -> Iterator[Any]:
            with self._admitted(context) as client:
                requests = (_decoded(request, message) for message in client.received(messages))
                for response in act(requests, context):
                    client.wait()
                    yield response
                    client.resume()

        return grpc.stream_stream_rpc_method_handler(self._on_own_threads(serve), response_serializer=answers)

    def close(self) -> None:
        """End the threads, once no calls run."""
        self._watch.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_own_threads(self, serve: Any) -> Any:
        serve.experimental_thread_pool = self._threads
        return serve

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
