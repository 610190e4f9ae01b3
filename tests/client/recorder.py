"""A server that records its calls, and servers that send scripted responses."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import pyarrow as pa

from skiway.airport import AirportService
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import FrameWriter
from skiway.airport.wire.protocol import (
    CatalogRoot,
    Contents,
    ObjectMetadata,
    SchemaEntry,
    TransactionInfo,
    VersionInfo,
    encode,
    seal,
)
from skiway.model import flight_pb2 as flight
from skiway.testing import Call

_OF_GRPC = frozenset({"user-agent", "grpc-accept-encoding", "accept-encoding", "te", "content-type"})


class Recorder(grpc.ServerInterceptor):
    """Records each call when it ends, with its headers and its requests."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.received = 0  # messages of exchanges, including those that have not ended
        self._noted = threading.Condition()

    def wait_for(self, name: str) -> None:
        """Wait until such a call has ended on the server; a cancelled call ends later here than in the client."""
        with self._noted:
            assert self._noted.wait_for(lambda: name in self.names(), timeout=20)

    def wait_for_messages(self, messages: int) -> None:
        """Wait until this many messages of exchanges have arrived."""
        with self._noted:
            assert self._noted.wait_for(lambda: self.received >= messages, timeout=20)

    def intercept_service(self, continuation: Callable[..., Any], details: grpc.HandlerCallDetails) -> Any:
        handler = continuation(details)
        if handler is None:
            return handler
        sent = tuple((str(k), str(v)) for k, v in details.invocation_metadata or () if k not in _OF_GRPC)
        method = details.method.rpartition("/")[2]

        def note(*messages: bytes) -> None:
            with self._noted:
                self.calls.append(Call(method, sent, messages))
                self._noted.notify_all()

        count = self._count if method in ("DoExchange", "DoPut") else lambda: None
        run: Any = handler.stream_stream or handler.unary_stream or handler.stream_unary or handler.unary_unary

        def request_of(messages: Iterator[bytes]) -> Any:
            if method in ("DoExchange", "DoPut", "Handshake"):
                return messages
            only = next(messages)  # recorded although the server may reject the call without reading it
            return iter([only]) if handler.request_streaming else only

        if handler.response_streaming:

            def stream(messages: Iterator[bytes], context: Any) -> Any:
                recorded = _RecordedMessages(messages, count)
                try:
                    yield from run(request_of(recorded), context)
                finally:
                    note(*recorded.messages)

            return grpc.stream_stream_rpc_method_handler(stream)

        def answer(messages: Iterator[bytes], context: Any) -> Any:
            recorded = _RecordedMessages(messages, count)
            try:
                return run(request_of(recorded), context)
            finally:
                note(*recorded.messages)

        return grpc.stream_unary_rpc_method_handler(answer)

    def _count(self) -> None:
        with self._noted:
            self.received += 1
            self._noted.notify_all()

    def names(self) -> list[str]:
        return [call.name for call in self.calls]


class _RecordedMessages:
    """Records the messages of a client; after the last one, it still forwards every read."""

    def __init__(self, incoming: Iterator[bytes], count: Callable[[], None]) -> None:
        self.messages: list[bytes] = []
        self._incoming = incoming
        self._count = count

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        message = next(self._incoming)
        self.messages.append(message)
        self._count()
        return message


@contextlib.contextmanager
def recording(service: AirportService, recorder: Recorder) -> Iterator[str]:
    """Serve on loopback; yields the location."""
    server = grpc.server(ThreadPoolExecutor(16), interceptors=[recorder])
    service.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        server.stop(0).wait()
        service.close()


@dataclass(frozen=True, slots=True)
class Refusal:
    """A status to respond with."""

    code: grpc.StatusCode
    details: str = ""
    trailers: tuple[tuple[str, str | bytes], ...] = ()


Answer = list[bytes] | Refusal | Callable[[Any], Iterable[bytes]]


class Scripted(grpc.GenericRpcHandler):
    """A server that answers each method, and each action by name, with scripted bytes."""

    def __init__(self, answers: dict[str, Answer]) -> None:
        self.answers = answers
        self.recorder = Recorder()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method.rpartition("/")[2]

        def stream(data: Any, context: Any) -> Iterator[bytes]:
            named = flight.Action.FromString(data).type if method == "DoAction" else method
            answer = self.answers[named]
            if isinstance(answer, Refusal):
                context.set_trailing_metadata(answer.trailers)
                context.abort(answer.code, answer.details)
            else:
                yield from answer(data) if callable(answer) else answer

        if method == "GetFlightInfo":
            return grpc.unary_unary_rpc_method_handler(lambda data, context: next(stream(data, context)))
        if method in ("DoExchange", "DoPut"):  # such a response is a function of the incoming messages
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_stream_rpc_method_handler(stream)

    @contextlib.contextmanager
    def serving(self) -> Iterator[str]:
        server = grpc.server(ThreadPoolExecutor(8), interceptors=[self.recorder], handlers=[self])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"grpc://127.0.0.1:{port}"
        finally:
            server.stop(0).wait()


def result(body: bytes) -> bytes:
    """One result of an action."""
    return flight.Result(body=body).SerializeToString()


def table_info(columns: pa.Schema, name: str = "t", **facts: Any) -> bytes:
    """The FlightInfo of table `s.<name>` in catalog `c`."""
    metadata = ObjectMetadata(**{"type": "table", "catalog": "c", "schema": "s", "name": name, **facts})
    return flight.FlightInfo(
        schema=columns.serialize().to_pybytes(), flight_descriptor=descriptor(name), app_metadata=encode(metadata)
    ).SerializeToString()


def descriptor(name: str = "t") -> flight.FlightDescriptor:
    return flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=["s", name])


def root(*infos: bytes, contents: Contents | None = None, bundle: Contents | None = None, fixed: bool = False) -> bytes:
    """The response of `list_schemas` for a catalog with one schema `s`."""
    entry = SchemaEntry(name="s", contents=contents or Contents.inline(seal(list(infos))))
    return seal(CatalogRoot(contents=bundle or Contents(), schemas=[entry], version_info=VersionInfo(1, fixed)))


def frames(table: pa.Table) -> list[bytes]:
    """The DoGet stream of a table."""
    writer = FrameWriter(table.schema)
    return [writer.begin(), *(frame for batch in table.to_batches() for frame in writer.batch(batch))]


def endpoints(*locations: str, ticket: bytes = b"T") -> list[bytes]:
    """The response of `endpoints`, with one endpoint for each location."""
    return [
        result(
            encode(
                [
                    flight.FlightEndpoint(
                        ticket=flight.Ticket(ticket=ticket), location=[flight.Location(uri=uri)]
                    ).SerializeToString()
                    for uri in locations
                ]
            )
        )
    ]


def ordinary(table: pa.Table, *, identifier: str | None = None) -> dict[str, Answer]:
    """All responses that a scan of `s.t` in catalog `c` needs."""
    return {
        "create_transaction": [result(encode(TransactionInfo(identifier)))],
        "list_schemas": [result(root(table_info(table.schema)))],
        "catalog_version": [result(encode(VersionInfo(1, False)))],
        "flight_info": [result(table_info(table.schema))],
        "endpoints": endpoints(protocol.REUSE_CONNECTION),
        "DoGet": frames(table),
    }
