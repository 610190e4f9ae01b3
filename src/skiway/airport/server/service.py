"""The Flight service on grpcio: decode, authenticate, call one function, encode.

It works on raw bytes, so that record batches are never copied into protobuf objects. `AirportService` can be added to
any grpcio server, next to other services; `Server` is a complete server.

Scans and exchanges hold a thread while their stream is open, and an UPDATE holds its exchange while it scans. So the
three kinds of calls have separate thread pools, and an exchange beyond the limit is rejected instead of queued: clients
cannot deadlock each other.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, cast

import grpc
import pyarrow as pa
from google.protobuf.message import DecodeError, Message

from skiway.airport import table_refs
from skiway.airport.catalog import Catalog
from skiway.airport.request import Authenticator, Observer, Request, ServedCall, admit, read_request
from skiway.airport.server.actions import ACTIONS
from skiway.airport.server.discovery import object_infos, table_info
from skiway.airport.server.exchange import do_exchange
from skiway.airport.server.host import Host
from skiway.airport.server.json_contract import do_put
from skiway.airport.server.lookup import CatalogResolver, Catalogs, catalogs_of, open_table
from skiway.airport.server.scans import databases_info, do_get, is_databases
from skiway.airport.server.status import Disclosure, failure
from skiway.airport.server.tickets import TicketOffice
from skiway.airport.wire import headers
from skiway.errors import (
    AlreadyExists,
    Internal,
    InvalidArgument,
    LimitExceeded,
    SkiwayError,
    Unsupported,
)
from skiway.model import flight_pb2 as flight

METHODS: Final = {
    "Handshake": "handshake",
    "ListFlights": "list_flights",
    "GetFlightInfo": "get_flight_info",
    "GetSchema": "get_schema",
    "DoGet": "scan",
    "DoAction": "action",
    "ListActions": "list_actions",
    "DoPut": "put",
    "DoExchange": "exchange",
}
"""The methods of Flight, and what observers know a call by until its request says more."""

RawAction = Callable[[bytes], bytes | str | Iterable[bytes | str] | None]
Frames = Iterator[bytes]


@dataclass(frozen=True, slots=True)
class Limits:
    """Concurrency limits. Calls and scans beyond the limit wait for a thread; exchanges are rejected."""

    calls: int = 16
    scans: int = 64
    exchanges: int = 64


_REFUSERS: Final = 4  # threads that reject calls beyond the limit


class AirportService:
    """Arrow Flight for DuckDB's Airport extension, over `catalogs`."""

    def __init__(
        self,
        catalogs: Catalog | Iterable[Catalog] | CatalogResolver | Catalogs = (),
        *,
        auth: Authenticator | None = None,
        actions: Mapping[str, RawAction] | None = None,
        tickets: TicketOffice | None = None,
        endpoint_location: str = headers.REUSE_CONNECTION,
        allowed_functions: Iterable[str] = table_refs.ALLOWED,
        limits: Limits | None = None,
        auto_commit: bool = True,
        auto_rollback: bool = True,
        memory_pool: pa.MemoryPool | None = None,
        observers: Sequence[Observer] = (),
        disclosure: Disclosure | None = None,
        logger: logging.Logger | None = None,
        log_failures: bool = True,
    ) -> None:
        location = flight.FlightEndpoint(location=[flight.Location(uri=endpoint_location)])
        self.host = Host(
            catalogs_of(catalogs),
            auth,
            tickets or TicketOffice(),
            location.SerializeToString(),
            frozenset(allowed_functions),
            auto_commit=auto_commit,
            auto_rollback=auto_rollback,
            memory_pool=memory_pool,
        )
        self.actions = dict(actions or {})
        self.limits = limits or Limits()
        self.log = logger or logging.getLogger("skiway.airport")
        self._observers = tuple(observers)
        self._disclosure = disclosure or Disclosure()
        self._log_failures = log_failures
        self.calls = ThreadPoolExecutor(self.limits.calls, "airport-call")
        self._scans = ThreadPoolExecutor(self.limits.scans, "airport-scan")
        self._exchanges = ThreadPoolExecutor(self.limits.exchanges + _REFUSERS, "airport-exchange")
        self._open_exchanges = threading.Semaphore(self.limits.exchanges)
        if clash := self.actions.keys() & ACTIONS.keys():
            raise AlreadyExists(f"the action {min(clash)!r} belongs to Airport; choose another name")

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`, next to its other services."""
        calls, scans, exchanges = self.calls, self._scans, self._exchanges
        unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
        both = grpc.stream_stream_rpc_method_handler
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Handshake": both(_on(calls, self._stream("Handshake", self._handshake))),
            "ListFlights": stream(_on(calls, self._stream("ListFlights", self._list_flights))),
            "GetFlightInfo": unary(_on(calls, self._unary("GetFlightInfo", self._get_flight_info))),
            "GetSchema": unary(_on(calls, self._unary("GetSchema", self._get_schema))),
            "DoGet": stream(_on(scans, self._stream("DoGet", self._do_get))),
            "DoAction": stream(_on(calls, self._stream("DoAction", self._do_action))),
            "ListActions": stream(_on(calls, self._stream("ListActions", self._list_actions))),
            "DoPut": both(_on(exchanges, self._stream("DoPut", self._do_put))),
            "DoExchange": both(_on(exchanges, self._stream("DoExchange", self._do_exchange))),
        }
        single: grpc.RpcMethodHandler[Any, Any] = unary(_on(calls, self._unary("DoAction", self._do_single_action)))
        server.add_generic_rpc_handlers((_FlightHandlers(methods, single),))

    @property
    def service_names(self) -> tuple[str, ...]:
        """The full names of the services, for health and reflection."""
        return (headers.SERVICE,)

    def close(self) -> None:
        """End the threads, once no calls run."""
        for pool in (self.calls, self._scans, self._exchanges):
            pool.shutdown(wait=False)

    # -- Flight's methods ---------------------------------------------------------------------------------------------

    def _do_action(self, request: Request, data: bytes) -> Frames:
        action = _parsed(flight.Action, data)
        self._name(request, action.type)
        if action.type in ACTIONS:
            yield flight.Result(body=ACTIONS[action.type](self.host, request, action.body)).SerializeToString()
        elif action.type in self.actions:
            for body in _bodies(self.actions[action.type](action.body)):
                yield flight.Result(body=body).SerializeToString()
        else:
            raise Unsupported(f"unknown action {action.type!r}; ListActions lists the supported ones")

    def _do_single_action(self, request: Request, data: bytes) -> bytes:
        action = _parsed(flight.Action, data)
        self._name(request, action.type)
        if action.type not in ACTIONS:
            raise InvalidArgument(
                f"the header {headers.ACTION_NAME} names another action than the body, {action.type!r}"
            )
        result: bytes = flight.Result(body=ACTIONS[action.type](self.host, request, action.body)).SerializeToString()
        return result

    def _name(self, request: Request, action: str) -> None:
        """Name the action for observers. Unknown names are left out, so that callers cannot add metric labels."""
        if request.call is not None and (action in ACTIONS or action in self.actions):
            request.call.operation = action

    def _do_get(self, request: Request, data: bytes) -> Frames:
        return do_get(self.host, request, _parsed(flight.Ticket, data).ticket)

    def _get_flight_info(self, request: Request, data: bytes) -> bytes:
        return self._info(request, data).SerializeToString()

    def _get_schema(self, request: Request, data: bytes) -> bytes:
        return flight.SchemaResult(schema=self._info(request, data).schema).SerializeToString()

    def _info(self, request: Request, data: bytes) -> flight.FlightInfo:
        descriptor = _parsed(flight.FlightDescriptor, data)
        if is_databases(descriptor):
            return databases_info(descriptor)
        _, catalog, path = self.host.open(request, descriptor)
        info = table_info(open_table(catalog, path), path)
        info.flight_descriptor.CopyFrom(descriptor)  # the client compares it with its own
        return info

    def _list_flights(self, request: Request, data: bytes) -> Frames:
        _parsed(flight.Criteria, data)
        wanted_catalog = request.header(headers.LIST_CATALOG)
        wanted_schema = request.header(headers.LIST_SCHEMA)
        names = (
            [wanted_catalog] if headers.LIST_CATALOG in request.headers else list(self.host.visible_catalogs(request))
        )
        for name in names:
            _, catalog = self.host.open_catalog(request.within(name))
            for schema in catalog.schemas():
                if not wanted_schema or schema.name == wanted_schema:
                    for info in object_infos(schema, name):
                        yield info.SerializeToString()

    def _list_actions(self, _request: Request, _data: bytes) -> Frames:
        for name, action in {**ACTIONS, **self.actions}.items():
            first_line = (action.__doc__ or "").strip().partition("\n")[0]
            yield flight.ActionType(type=name, description=first_line).SerializeToString()

    def _handshake(self, _request: Request, messages: Iterator[bytes]) -> Frames:
        for data in messages:
            asked = _parsed(flight.HandshakeRequest, data)
            yield flight.HandshakeResponse(
                protocol_version=asked.protocol_version, payload=asked.payload
            ).SerializeToString()

    def _do_put(self, request: Request, messages: Iterator[bytes]) -> Frames:
        return do_put(self.host, request, messages)

    def _do_exchange(self, request: Request, messages: Iterator[bytes]) -> Frames:
        return do_exchange(self.host, request, messages)

    # -- one shape for all calls --------------------------------------------------------------------------------------

    def _open(self, method: str, context: grpc.ServicerContext) -> ServedCall:
        call = read_request(method, context.invocation_metadata(), context).call
        assert call is not None
        call.operation = METHODS[method]
        return call

    def _observed(self, call: ServedCall) -> contextlib.AbstractContextManager[object]:
        if not self._observers:
            return contextlib.nullcontext()
        if len(self._observers) == 1:
            return self._observers[0](call)
        return _entered_together([observer(call) for observer in self._observers])

    def _unary(self, method: str, handle: Callable[[Request, bytes], bytes]) -> Any:
        def serve(data: bytes, context: grpc.ServicerContext) -> bytes:
            call = self._open(method, context)
            try:
                with self._observed(call):
                    call.bytes_in = len(data)
                    answer = handle(admit(call.request, self.host.auth), data)
                    call.bytes_out = len(answer)
                    return answer
            except Exception as error:  # noqa: BLE001  (errors become statuses here)
                return self._fail(call, error, context)

        return serve

    def _stream(self, method: str, handle: Callable[[Request, Any], Frames]) -> Any:
        gate = self._exchange_gate if method in ("DoExchange", "DoPut") else contextlib.nullcontext

        def serve(data: Any, context: grpc.ServicerContext) -> Frames:
            call = self._open(method, context)
            try:
                with self._observed(call), gate():
                    frames = handle(admit(call.request, self.host.auth), _received(data, call))
                    last = yield from _counted_frames(frames, call)
                if last is not None:
                    yield last
            except Exception as error:  # noqa: BLE001  (errors become statuses here)
                self._fail(call, error, context)

        return serve

    @contextlib.contextmanager
    def _exchange_gate(self) -> Iterator[None]:
        if not self._open_exchanges.acquire(blocking=False):
            raise LimitExceeded(
                f"{self.limits.exchanges} exchanges are open, which is the limit of this server: try again, or increase Limits.exchanges"
            )
        try:
            yield
        finally:
            self._open_exchanges.release()

    def _fail(self, call: ServedCall, error: Exception, context: grpc.ServicerContext) -> bytes:
        if not context.is_active():  # the client is gone, and the error may only be that it cannot be reached
            self.log.debug("%s was ended by its client: %s", call.method, error)
            return b""
        if self._log_failures and (not isinstance(error, SkiwayError) or isinstance(error, Internal)):
            self.log.error("%s failed, correlation id %s", call.operation, call.correlation_id, exc_info=error)
        status = failure(
            error,
            action=call.method == "DoAction",
            airport=any(key == headers.USER_AGENT for key, _ in context.invocation_metadata()),
            correlation_id=call.correlation_id,
            disclosure=self._disclosure,
        )
        context.set_trailing_metadata(status.trailers)
        context.abort(status.code, status.message)
        raise AssertionError("abort always raises")


@contextlib.contextmanager
def _entered_together(blocks: Sequence[contextlib.AbstractContextManager[object]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        yield


def _counted_frames(frames: Iterator[bytes], call: ServedCall) -> Generator[bytes, None, bytes | None]:
    """The response with its bytes counted. Returns the frame that ends a statement, for which a handler returns it.

    That frame is sent after the observers are done: the client stops reading there, and an audit record must be written
    before a client knows that its change is committed.
    """
    iterator = iter(frames)
    try:
        while True:
            frame = next(iterator)
            call.bytes_out += len(frame)
            yield frame
    except StopIteration as end:
        last: bytes | None = end.value
        call.bytes_out += len(last or b"")
        return last
    finally:
        if isinstance(iterator, Generator):
            iterator.close()  # at once, if the client is gone


def _received(data: Any, call: ServedCall) -> Any:
    """The request of a stream, one message or many, with its bytes counted."""
    if isinstance(data, bytes):
        call.bytes_in = len(data)
        return data
    return _counted(data, call)


def _counted(messages: Iterator[bytes], call: ServedCall) -> Iterator[bytes]:
    """The client's messages; after the last one, gRPC is asked once more.

    A broken connection first looks like the end of the stream to gRPC, and only then like a client that is gone. Asking
    once more waits for that and raises: half a statement must not pass for a whole one.
    """
    for message in messages:
        call.bytes_in += len(message)
        yield message
    next(messages, None)


class _FlightHandlers(grpc.GenericRpcHandler):
    """Finds the handler of a call.

    DuckDB's client names the action in a header. Airport's own actions have exactly one result, and a response of one
    message looks the same from a unary method, which needs one thread switch less.
    """

    def __init__(
        self, methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]], single: grpc.RpcMethodHandler[Any, Any]
    ) -> None:
        self._methods = {f"/{headers.SERVICE}/{name}": handler for name, handler in methods.items()}
        self._single = single
        self._do_action = f"/{headers.SERVICE}/DoAction"

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        if handler_call_details.method == self._do_action:
            for key, value in handler_call_details.invocation_metadata:
                if key == headers.ACTION_NAME and value in ACTIONS:
                    return self._single
        return self._methods.get(handler_call_details.method)


def _on(pool: ThreadPoolExecutor, behaviour: Any) -> Any:
    behaviour.experimental_thread_pool = pool
    return behaviour


def _parsed(kind: type[Any], data: bytes) -> Any:
    try:
        return cast(type[Message], kind).FromString(data)
    except DecodeError as error:
        raise InvalidArgument(f"malformed {kind.__name__}: not the protobuf message that Flight defines") from error


def _bodies(result: bytes | str | Iterable[bytes | str] | None) -> Iterator[bytes]:
    parts = () if result is None else (result,) if isinstance(result, bytes | str) else result
    for part in parts:
        yield part.encode() if isinstance(part, str) else part


__all__ = ["METHODS", "AirportService", "Limits", "RawAction"]
