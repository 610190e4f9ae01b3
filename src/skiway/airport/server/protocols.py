"""Other protocols over the same Flight service, such as Flight SQL.

Flight has a few methods, and messages in them that only their protocol understands. A server can serve several protocols: the
first one that recognizes a command, a ticket or an action gets the call; all others are calls of Airport. Authentication,
observers, limits and errors are the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Mapping

from skiway.airport.request import Request
from skiway.airport.server.host import Host
from skiway.airport.wire.frames import BatchReader
from skiway.model.flight_pb2 import FlightDescriptor, FlightInfo

__all__ = ["FlightProtocol"]


class FlightProtocol(ABC):
    """A protocol: which calls belong to it, and how it answers them."""

    actions: Mapping[str, str] = {}
    """Its actions, and a description of each."""

    @abstractmethod
    def owns(self, message: bytes) -> bool:
        """Whether the command of a descriptor, or a ticket, belongs to this protocol."""

    @abstractmethod
    def info(self, host: Host, request: Request, descriptor: FlightDescriptor) -> FlightInfo:
        """The answer to GetFlightInfo. GetSchema returns its schema."""

    @abstractmethod
    def stream(self, host: Host, request: Request, ticket: bytes) -> Iterator[bytes]:
        """The frames of DoGet."""

    @abstractmethod
    def act(self, host: Host, request: Request, action: str, body: bytes) -> Iterator[bytes]:
        """The bodies of the results of an action."""

    @abstractmethod
    def put(
        self, host: Host, request: Request, descriptor: FlightDescriptor, rows: BatchReader
    ) -> Generator[bytes, None, bytes | None]:
        """The PutResults of a DoPut. The one that it returns is sent after the call has been observed."""
