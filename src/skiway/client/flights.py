"""Flights: what a server lists outside of any catalog."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from skiway.client.catalog import read_schema
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

__all__ = ["Flight"]


@dataclass(frozen=True, slots=True)
class Flight:
    """Something that a server lists: by `path` or by `command`, with what is known of its rows (-1: nothing)."""

    path: tuple[str, ...]
    command: bytes
    schema: pa.Schema
    total_records: int = -1
    total_bytes: int = -1
    ordered: bool = False
    app_metadata: bytes = field(default=b"", repr=False)


def read_flight(info: FlightInfo) -> Flight:
    """The flight that a message describes."""
    return Flight(
        tuple(info.flight_descriptor.path),
        info.flight_descriptor.cmd,
        read_schema(info.schema, f"flight {shown(info.flight_descriptor)}"),
        info.total_records,
        info.total_bytes,
        info.ordered,
        info.app_metadata,
    )


def flight_descriptor(given: Sequence[str] | str | bytes) -> FlightDescriptor:
    """A path for a list of names, a command for a text or bytes."""
    if isinstance(given, str):
        given = given.encode()
    if isinstance(given, bytes):
        return FlightDescriptor(type=FlightDescriptor.CMD, cmd=given)
    return FlightDescriptor(type=FlightDescriptor.PATH, path=list(given))


def shown(descriptor: FlightDescriptor) -> str:
    """For messages."""
    return repr("/".join(descriptor.path)) if descriptor.path else repr(descriptor.cmd)
