"""A Flight client of plain gRPC calls: it sends any bytes and returns any response, including trailers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa

from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.protocol import EndpointsRequest, ScanParameters, decode, encode, packed
from skiway.model import flight_pb2 as flight

SERVICE = "/arrow.flight.protocol.FlightService/"
AIRPORT = (("airport-user-agent", "airport/20250723"),)


def descriptor(*path: str) -> bytes:
    data: bytes = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=path).SerializeToString()
    return data


@dataclass
class Raw:
    """Calls on one channel, each with `metadata`."""

    target: str
    metadata: tuple[tuple[str, str], ...] = AIRPORT
    credentials: Any = None
    channel: grpc.Channel = field(init=False)

    def __post_init__(self) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
        target = self.target.partition("://")[2]
        if self.credentials is not None:
            self.channel = grpc.secure_channel(target, self.credentials, options)
        else:
            self.channel = grpc.insecure_channel(target, options)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()

    def stream(self, method: str, message: bytes, *headers: tuple[str, str], timeout: float = 20) -> Any:
        return self.channel.unary_stream(SERVICE + method)(
            message, metadata=(*self.metadata, *headers), timeout=timeout
        )

    def unary(self, method: str, message: bytes, *headers: tuple[str, str]) -> bytes:
        data: bytes = self.channel.unary_unary(SERVICE + method)(
            message, metadata=(*self.metadata, *headers), timeout=200
        )
        return data

    def exchange(
        self, messages: Iterable[bytes], *headers: tuple[str, str], method: str = "DoExchange", timeout: float = 20
    ) -> Any:
        call = self.channel.stream_stream(SERVICE + method)
        return call(iter(messages), metadata=(*self.metadata, *headers), timeout=timeout)

    def action(self, name: str, body: bytes = b"", *headers: tuple[str, str]) -> list[bytes]:
        message = flight.Action(type=name, body=body).SerializeToString()
        return [flight.Result.FromString(data).body for data in self.stream("DoAction", message, *headers)]

    def endpoints(self, *path: str, columns: Iterable[int] = (), **parameters: Any) -> list[flight.FlightEndpoint]:
        request = EndpointsRequest(packed(descriptor(*path)), ScanParameters(column_ids=list(columns), **parameters))
        (body,) = self.action("endpoints", encode(request))
        return [flight.FlightEndpoint.FromString(data) for data in decode(body, list[bytes], "endpoints")]

    def get(self, ticket: bytes, *headers: tuple[str, str]) -> Iterator[bytes]:
        frames: Iterator[bytes] = self.stream("DoGet", flight.Ticket(ticket=ticket).SerializeToString(), *headers)
        return frames

    def scan(self, *path: str, columns: Iterable[int] = (), **parameters: Any) -> pa.Table:
        (endpoint,) = self.endpoints(*path, columns=columns, **parameters)
        reader = BatchReader(self.get(endpoint.ticket.ticket))
        return pa.Table.from_batches(list(reader), reader.schema)


def code_of(call: Any) -> tuple[grpc.StatusCode, str]:
    """Status and message of a call that must fail."""
    try:
        if callable(call):
            call = call()
        list(call)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    raise AssertionError("the call did not fail")
