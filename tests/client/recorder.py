"""A server that remembers the calls made to it, and servers that answer nonsense."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from airport.recorded import Call
from skiway.airport import AirportService

_OF_GRPC = frozenset({"user-agent", "grpc-accept-encoding", "accept-encoding", "te", "content-type"})


class Recorder(grpc.ServerInterceptor):
    """Notes each call when it ends, with its headers and its one request."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def intercept_service(self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails) -> Any:
        handler = continuation(details)
        if handler is None or handler.request_streaming:
            return handler
        headers = tuple((str(k), str(v)) for k, v in details.invocation_metadata or () if k not in _OF_GRPC)
        method = details.method.rpartition("/")[2]

        def note(data: bytes) -> None:
            self.calls.append(Call(method, headers, (data,)))

        if not handler.response_streaming:

            def answer(data: bytes, context: Any) -> Any:
                try:
                    return handler.unary_unary(data, context)
                finally:
                    note(data)

            return grpc.unary_unary_rpc_method_handler(answer)

        def stream(data: bytes, context: Any) -> Any:
            try:
                yield from handler.unary_stream(data, context)
            finally:
                note(data)

        return grpc.unary_stream_rpc_method_handler(stream)

    def names(self) -> list[str]:
        return [call.name for call in self.calls]


@contextlib.contextmanager
def recording(service: AirportService, recorder: Recorder) -> Iterator[str]:
    """Serve on loopback; gives the location."""
    server = grpc.server(ThreadPoolExecutor(16), interceptors=[recorder])
    service.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
        service.close()
