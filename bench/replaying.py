"""A server that repeats the answers of another one: the least time that a server on grpcio needs for the same calls.

    python -m bench.replaying ADDRESS READY_FILE

The first call of each kind is forwarded to the server at ADDRESS, and its answer is kept. Calls that are equal to an earlier
one are answered from memory. So a client that repeats its statements measures gRPC, and nothing of the original server.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

SERVICE: Final = "/arrow.flight.protocol.FlightService/"
ONE_TO_ONE: Final = ("GetFlightInfo", "GetSchema", "PollFlightInfo")
ONE_TO_MANY: Final = ("DoGet", "DoAction", "ListFlights", "ListActions")
OPTIONS: Final = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
NOT_FORWARDED: Final = ("user-agent", "te", "content-type", "accept-encoding")

Answer = list[tuple[int, bytes]]
"""Messages of an exchange, each with the number of requests that had arrived before it."""


class Replaying(grpc.GenericRpcHandler):  # type: ignore[misc]  # which has no types
    """Forwards the first of equal calls, and repeats its answer for the others."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=OPTIONS)
        self._answers: dict[tuple[str, bytes], list[bytes]] = {}
        self._exchanges: dict[tuple[str, bytes], Answer] = {}

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """The handler of a method, on messages as bytes."""
        name = handler_call_details.method.removeprefix(SERVICE)
        if name in ONE_TO_ONE:
            return grpc.unary_unary_rpc_method_handler(
                lambda request, context: self._answered(name, request, context)[0]
            )
        if name in ONE_TO_MANY:
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: iter(self._answered(name, request, context))
            )
        return grpc.stream_stream_rpc_method_handler(lambda requests, context: self._exchanged(name, requests, context))

    def _answered(self, name: str, request: bytes, context: grpc.ServicerContext) -> list[bytes]:
        known = self._answers.get((name, request))
        if known is None:
            call: Callable[..., Any] = self._channel.unary_stream(SERVICE + name)
            if name in ONE_TO_ONE:
                call = self._channel.unary_unary(SERVICE + name)
            try:
                found = call(request, metadata=_forwarded(context))
                known = [found] if name in ONE_TO_ONE else list(found)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details())
            self._answers[name, request] = known
        return known

    def _exchanged(self, name: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        first = next(requests)
        operation = dict(context.invocation_metadata()).get("airport-operation", "")
        key = (f"{name} {operation}", first)
        known = self._exchanges.get(key)
        if known is None:
            yield from self._recorded(key, name, first, requests, context)
            return
        arrived, at = 1, 0
        while True:
            while at < len(known) and known[at][0] <= arrived:
                yield known[at][1]
                at += 1
            if next(requests, None) is None:
                break
            arrived += 1
            if at == len(known):  # more requests than the first time: each gets an answer, too
                yield known[-1][1]
        yield from (message for _, message in known[at:])

    def _recorded(
        self,
        key: tuple[str, bytes],
        name: str,
        first: bytes,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        arrived = 0

        def counted() -> Iterator[bytes]:
            nonlocal arrived
            arrived = 1
            yield first
            for request in requests:
                arrived += 1
                yield request

        answer: Answer = []
        for message in self._channel.stream_stream(SERVICE + name)(counted(), metadata=_forwarded(context)):
            answer.append((arrived, message))
            yield message
        self._exchanges[key] = answer


def _forwarded(context: grpc.ServicerContext) -> list[tuple[str, str | bytes]]:
    return [each for each in context.invocation_metadata() if each[0] not in NOT_FORWARDED]


def main() -> None:
    address, ready = sys.argv[1:]
    server = grpc.server(ThreadPoolExecutor(32), options=OPTIONS)
    server.add_generic_rpc_handlers([Replaying(address)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    Path(ready).write_text(json.dumps({"airport": f"grpc://127.0.0.1:{port}"}))
    server.wait_for_termination()


if __name__ == "__main__":
    main()
