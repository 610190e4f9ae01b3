"""The Flight service on grpcio: decode, authenticate, call one function, encode.

It works on raw bytes, so that record batches are never copied into protobuf objects. `AirportService` can be added to
any grpcio server, next to other services; `Server` is a complete server.

Scans and exchanges hold a thread while their stream is open, and an UPDATE holds its exchange while it scans. So the
three kinds of calls have separate thread pools, and an exchange beyond the limit is rejected instead of queued: clients
cannot deadlock each other. Handshakes have threads of their own, too, and never compete with other calls.
`skiway.airport.server.call_handlers` has what all calls have in common.

A server can serve other protocols over the same Flight service, such as Flight SQL. The first protocol that recognizes a command, a
ticket or an action gets the call; all others are calls of Airport. Authentication, observers, limits and errors are the same
for all.
"""

from __future__ import annotations

import contextlib
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, cast

import grpc
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from skiway.airport.catalog import Catalog, TransactionManager
from skiway.airport.checks import check_auth, check_callbacks, check_transactions
from skiway.airport.request import Authenticator, Observer, Request
from skiway.airport.server.actions import ACTIONS
from skiway.airport.server.call_handlers import CallHandlers, Disclosure, Frames, Limits
from skiway.airport.server.discovery import object_infos, table_info
from skiway.airport.server.exchange import do_exchange
from skiway.airport.server.host import (
    CatalogResolver,
    Catalogs,
    HasState,
    Host,
    ScannedTables,
    catalogs_of,
    open_table,
)
from skiway.airport.server.json_contract import do_put
from skiway.airport.server.scans import announce, databases_info, do_get, is_databases
from skiway.airport.server.tickets import TicketOffice, parse_descriptor
from skiway.airport.wire import protocol as wire
from skiway.airport.wire.duckdb_sql import FILE_READERS
from skiway.airport.wire.frames import BatchReader
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, Unsupported
from skiway.foundation.threads import FairThreads, lane_share
from skiway.foundation.transport import LaneOf, Method, Methods, Transport
from skiway.model import flight_pb2 as flight

RawAction = Callable[[bytes], bytes | str | Iterable[bytes | str] | None]


_REFUSERS: Final = 4  # threads that reject calls beyond the limit
_PATH: Final = f"/{wire.SERVICE}/"


class FlightProtocol(ABC):
    """A protocol: which calls belong to it, and how it answers them."""

    actions: Mapping[str, str] = {}
    """Its actions, and a description of each."""

    @abstractmethod
    def owns(self, message: bytes) -> bool:
        """Whether the command of a descriptor, or a ticket, belongs to this protocol."""

    @abstractmethod
    def info(self, host: Host, request: Request, descriptor: flight.FlightDescriptor) -> flight.FlightInfo:
        """The answer to GetFlightInfo. GetSchema returns its schema."""

    @abstractmethod
    def stream(self, host: Host, request: Request, ticket: bytes) -> Iterator[bytes]:
        """The frames of DoGet."""

    @abstractmethod
    def act(self, host: Host, request: Request, action: str, body: bytes) -> Iterator[bytes]:
        """The bodies of the results of an action."""

    @abstractmethod
    def put(
        self, host: Host, request: Request, descriptor: flight.FlightDescriptor, rows: BatchReader
    ) -> Generator[bytes, None, bytes | None]:
        """The PutResults of a DoPut. The one that it returns is sent after the call has been observed."""


class AirportService:
    """Arrow Flight for DuckDB's Airport extension, over `catalogs`."""

    def __init__(
        self,
        catalogs: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs = (),
        *,
        auth: Authenticator | None = None,
        actions: Mapping[str, RawAction] | None = None,
        tickets: TicketOffice | None = None,
        endpoint_location: str = wire.REUSE_CONNECTION,
        allowed_functions: Iterable[str] = FILE_READERS,
        limits: Limits | None = None,
        auto_commit: bool = True,
        auto_rollback: bool = True,
        transactions: TransactionManager | None = None,
        memory_pool: pa.MemoryPool | None = None,
        observers: Sequence[Observer] = (),
        lane_of: LaneOf | None = None,
        lane_headers: Sequence[str] | None = None,
        disclosure: Disclosure | None = None,
        logger: logging.Logger | None = None,
        log_failures: bool = True,
        protocols: Sequence[FlightProtocol] = (),
    ) -> None:
        check_auth(auth)
        check_transactions(transactions)
        check_callbacks(observers, actions or {})
        self.limits = limits or Limits()
        location = flight.FlightEndpoint(location=[flight.Location(uri=endpoint_location)])
        served = catalogs_of(catalogs)
        self.host = Host(
            served,
            auth,
            tickets or TicketOffice(),
            location.SerializeToString(),
            frozenset(allowed_functions),
            auto_commit=auto_commit,
            auto_rollback=auto_rollback,
            transactions=transactions,
            memory_pool=memory_pool,
            max_decoded_bytes=self.limits.decoded_bytes,
            scanned_tables=ScannedTables(served.state if isinstance(served, HasState) else None),
        )
        self.actions = dict(actions or {})
        self.log = logger or logging.getLogger("skiway.airport")
        self._protocols = tuple(protocols)
        self._protocol_actions = {name: protocol for protocol in protocols for name in protocol.actions}
        self._handlers = CallHandlers(
            auth,
            self.limits,
            observers=observers,
            disclosure=disclosure or Disclosure(),
            log=self.log,
            log_failures=log_failures,
        )
        # Each lane gets a share of the threads, if there are lanes.
        self._calls, self._scans = (
            FairThreads(threads, name, per_lane=None if lane_of is None else lane_share(threads))
            for threads, name in ((self.limits.calls, "airport-call"), (self.limits.scans, "airport-scan"))
        )
        self._lane_of, self._lane_headers = lane_of, lane_headers
        self._exchanges = FairThreads(self.limits.exchanges + _REFUSERS, "airport-exchange")
        self._handshakes = FairThreads(self.limits.handshakes + _REFUSERS, "airport-handshake")
        if clash := self.actions.keys() & (ACTIONS.keys() | self._protocol_actions.keys()):
            raise AlreadyExists(f"the action {min(clash)!r} belongs to a protocol of this server; choose another name")

    def add_to(self, server: grpc.Server | Transport) -> None:
        """Serve on `server`, next to its other services."""
        calls = self._calls
        methods = (
            self._stream("Handshake", self._handshake, self._handshakes, many=True),
            self._stream("ListFlights", self._list_flights, calls),
            self._unary("GetFlightInfo", self._get_flight_info),
            self._unary("GetSchema", self._get_schema),
            self._stream("DoGet", self._do_get, self._scans),
            self._stream("DoAction", self._do_action, calls),
            self._stream("ListActions", self._list_actions, calls),
            self._stream("DoPut", self._do_put, self._exchanges, many=True),
            self._stream("DoExchange", partial(do_exchange, self.host), self._exchanges, many=True),
        )
        single = self._unary("DoAction", self._do_single_action)
        server.add_generic_rpc_handlers((_FlightMethods(methods, single, self._lane_of, self._lane_headers),))

    def _unary(self, name: str, handle: Callable[[Request, bytes], bytes]) -> Method:
        return Method(_PATH + name, self._handlers.unary(name, handle), self._calls)

    def _stream(
        self,
        name: str,
        handle: Callable[[Request, Any], Frames],
        threads: FairThreads,
        *,
        many: bool = False,
    ) -> Method:
        serve = self._handlers.stream(name, handle, many=many)
        return Method(_PATH + name, serve, threads, answers="many", is_single=not many)

    @property
    def service_names(self) -> tuple[str, ...]:
        """The full names of the services, for health and reflection."""
        return (wire.SERVICE,)

    def close(self) -> None:
        """End the threads, once no calls run."""
        self._handlers.close()
        for threads in (self._calls, self._scans, self._exchanges, self._handshakes):
            threads.shutdown()

    # -- Flight's methods ---------------------------------------------------------------------------------------------

    def _do_action(self, request: Request, data: bytes) -> Frames:
        action = _parsed(flight.Action, data)
        self._name(request, action.type)
        bodies: Iterable[bytes]
        if action.type in ACTIONS:
            bodies = (ACTIONS[action.type](self.host, request, action.body),)
        elif action.type in self.actions:
            bodies = _bodies(self.actions[action.type](action.body))
        elif action.type in self._protocol_actions:
            bodies = self._protocol_actions[action.type].act(self.host, request, action.type, action.body)
        else:
            raise Unsupported(f"unknown action {action.type!r}; ListActions lists the supported ones")
        for body in bodies:
            yield flight.Result(body=body).SerializeToString()

    def _do_single_action(self, request: Request, data: bytes) -> bytes:
        action = _parsed(flight.Action, data)
        self._name(request, action.type)
        if action.type not in ACTIONS:
            raise InvalidArgument(f"the header {wire.ACTION_NAME} names another action than the body, {action.type!r}")
        result: bytes = flight.Result(body=ACTIONS[action.type](self.host, request, action.body)).SerializeToString()
        return result

    def _name(self, request: Request, action: str) -> None:
        """Name the action for observers. Unknown names are left out, so that callers cannot add metric labels."""
        if request.call is not None and (action in ACTIONS or action in self.actions):
            request.call.operation = action

    def _do_get(self, request: Request, data: bytes) -> Frames:
        ticket = _parsed(flight.Ticket, data).ticket
        protocol = self._protocol(ticket)
        return do_get(self.host, request, ticket) if protocol is None else protocol.stream(self.host, request, ticket)

    def _get_flight_info(self, request: Request, data: bytes) -> bytes:
        return self._info(request, data).SerializeToString()

    def _get_schema(self, request: Request, data: bytes) -> bytes:
        return flight.SchemaResult(schema=self._info(request, data).schema).SerializeToString()

    def _info(self, request: Request, data: bytes) -> flight.FlightInfo:
        descriptor = _parsed(flight.FlightDescriptor, data)
        protocol = self._protocol(descriptor.cmd)
        if protocol is not None:
            return protocol.info(self.host, request, descriptor)
        if is_databases(descriptor):
            return databases_info(descriptor)
        request, catalog, path = self.host.open(request, descriptor)
        opened = open_table(catalog, path)
        announce(self.host, request, opened)
        info = table_info(opened.table, path, opened.schema)
        info.flight_descriptor.CopyFrom(descriptor)  # the client compares it with its own
        return info

    def _list_flights(self, request: Request, data: bytes) -> Frames:
        _parsed(flight.Criteria, data)
        wanted_catalog = request.header(wire.LIST_CATALOG)
        wanted_schema = request.header(wire.LIST_SCHEMA)
        for_catalog = wire.LIST_CATALOG in request.headers
        names = [wanted_catalog] if for_catalog else list(self.host.visible_catalogs(request))
        # DuckDB loads a catalog from this listing; other clients expect addresses that a user can type.
        for name in names:
            _, catalog = self.host.open_catalog(request.within(name))
            if for_catalog and wanted_schema:
                with contextlib.suppress(NotFound):  # somebody dropped the schema
                    yield from self.host.listings.object_infos(catalog, name, wanted_schema)
                continue
            for schema in catalog.schemas():
                if not wanted_schema or schema.name == wanted_schema:
                    with contextlib.suppress(NotFound):
                        for info in object_infos(schema, name, bound=for_catalog):
                            yield info.SerializeToString()

    def _list_actions(self, _request: Request, _data: bytes) -> Frames:
        for name, action in {**ACTIONS, **self.actions}.items():
            first_line = (action.__doc__ or "").strip().partition("\n")[0]
            yield flight.ActionType(type=name, description=first_line).SerializeToString()
        for protocol in self._protocols:
            for name, description in protocol.actions.items():
                yield flight.ActionType(type=name, description=description).SerializeToString()

    def _handshake(self, _request: Request, messages: Iterator[bytes]) -> Frames:
        for data in messages:
            asked = _parsed(flight.HandshakeRequest, data)
            yield flight.HandshakeResponse(
                protocol_version=asked.protocol_version, payload=asked.payload
            ).SerializeToString()

    def _do_put(self, request: Request, messages: Iterator[bytes]) -> Frames:
        reader = BatchReader(messages, max_decoded_bytes=self.host.max_decoded_bytes)
        descriptor = parse_descriptor(reader.wait_for_descriptor())
        protocol = self._protocol(descriptor.cmd)
        if protocol is not None:
            return protocol.put(self.host, request, descriptor, reader)
        return do_put(self.host, request, descriptor, reader)

    def _protocol(self, message: bytes) -> FlightProtocol | None:
        """The protocol of a command or ticket; None if it is Airport."""
        return next((protocol for protocol in self._protocols if protocol.owns(message)), None)


class _FlightMethods(Methods):
    """Flight's methods.

    DuckDB's client names the action in a header. Airport's own actions have exactly one result, and a response of one
    message looks the same from a unary method, which needs one thread switch less.
    """

    def __init__(
        self, methods: Iterable[Method], single: Method, lane_of: LaneOf | None, lane_headers: Sequence[str] | None
    ) -> None:
        super().__init__(methods, lane_of, lane_headers)
        self._single = single

    def find(self, path: str, headers: Mapping[str, str | bytes]) -> Method | None:
        """The method of a call."""
        if path == self._single.path and headers.get(wire.ACTION_NAME) in ACTIONS:
            return self._single
        return super().find(path, headers)


def _parsed(kind: type[Any], data: bytes) -> Any:
    try:
        return cast(type[Message], kind).FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"malformed {kind.__name__}: not the protobuf message that Flight defines") from error


def _bodies(result: bytes | str | Iterable[bytes | str] | None) -> Iterator[bytes]:
    parts = () if result is None else (result,) if isinstance(result, bytes | str) else result
    for part in parts:
        yield part.encode() if isinstance(part, str) else part
