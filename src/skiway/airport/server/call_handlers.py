"""What all calls have in common: who calls, one request or a stream of them, observers, limits, and errors as statuses.

gRPC would occupy a thread until the request of a call arrives, before anybody knows who calls. So all methods are served as
if clients streamed their requests: callers are authenticated first, and those who send nothing are ended.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from skiway.airport.request import Authenticator, Observer, Request, ServedCall, admit, read_request
from skiway.airport.server.actions import ACTIONS
from skiway.airport.server.origins import author_location
from skiway.airport.server.status import Details, Disclosure, failure
from skiway.airport.wire import headers
from skiway.airport.wire.sizes import MAX_DECODED_BYTES
from skiway.errors import Internal, LimitExceeded, SkiwayError
from skiway.memory_budget import MemoryBudget
from skiway.streams import IDLE_S, OPENING_S, StreamWatch, WatchedCall

__all__ = ["METHODS", "CallHandlers", "Frames", "Limits"]

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


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a server. Calls and scans beyond the limit wait for a thread; exchanges and handshakes are rejected.

    A client has `opening_s` seconds to send the request of a call. A stream ends when the client neither sends nor reads for
    `idle_s` seconds.

    While the process uses more than `memory_bytes` of memory, new calls are rejected and running ones continue; 0 is no limit.

    A received batch takes at most `decoded_bytes` once it is decompressed and its dictionaries, runs and views are resolved.
    """

    calls: int = 16
    scans: int = 64
    exchanges: int = 64
    handshakes: int = 8
    opening_s: float = OPENING_S
    idle_s: float = IDLE_S
    decoded_bytes: int = MAX_DECODED_BYTES
    memory_bytes: int = 0


Frames = Iterator[bytes]


class CallHandlers:
    """Makes the handlers of gRPC calls from functions of a request and its body."""

    def __init__(
        self,
        auth: Authenticator | None,
        limits: Limits,
        *,
        observers: Sequence[Observer],
        disclosure: Disclosure,
        log: logging.Logger,
        log_failures: bool,
    ) -> None:
        self._auth = auth
        self._observers = tuple(observers)
        self._disclosure = disclosure
        self._log, self._log_failures = log, log_failures
        self._gates = {
            "DoExchange": (exchanges := _Gate("exchanges", limits.exchanges)),
            "DoPut": exchanges,
            "Handshake": _Gate("handshakes", limits.handshakes),
        }
        self._memory = MemoryBudget(limits.memory_bytes)
        self._watch = StreamWatch(opening_s=limits.opening_s, idle_s=limits.idle_s)

    @property
    def gated(self) -> Collection[str]:
        """The methods whose calls the server rejects once too many are open. Other calls wait for a thread."""
        return self._gates.keys()

    def close(self) -> None:
        """Stop watching streams."""
        self._watch.close()

    def unary(self, method: str, handle: Callable[[Request, bytes], bytes]) -> Any:
        """A handler that receives one message and sends one."""

        def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            call = self._open(method, context)
            try:
                with self._observed(call), self._memory.work(), self._watch.watched(context) as client:
                    request = admit(call.request, self._auth)
                    data = client.only(messages)
                    call.bytes_in = len(data)
                    answer = handle(request, data)
                    call.bytes_out = len(answer)
                    return answer
            except Exception as error:  # noqa: BLE001  (errors become statuses here)
                return self._fail(call, error, context)

        return serve

    def stream(self, method: str, handle: Callable[[Request, Any], Frames], *, many: bool = False) -> Any:
        """A handler that sends many messages, and receives as `many`, or one."""
        gate: contextlib.AbstractContextManager[object] = self._gates.get(method, contextlib.nullcontext())

        def serve(messages: Iterator[bytes], context: grpc.ServicerContext) -> Frames:
            call = self._open(method, context)
            try:
                with self._observed(call), gate, self._memory.work(), self._watch.watched(context) as client:
                    request = admit(call.request, self._auth)
                    received: Any
                    if many:
                        received = _counted(messages, call, client)
                    else:
                        received = client.only(messages)
                        call.bytes_in = len(received)
                    last = yield from _counted_frames(handle(request, received), call, client)
                if last is not None:
                    yield last
            except Exception as error:  # noqa: BLE001  (errors become statuses here)
                self._fail(call, error, context)

        return serve

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

    def _fail(self, call: ServedCall, error: Exception, context: grpc.ServicerContext) -> bytes:
        if not context.is_active():  # the client is gone, and the error may only be that it cannot be reached
            self._log.debug("%s was ended by its client: %s", call.method, error)
            return b""
        if self._log_failures and (not isinstance(error, SkiwayError) or isinstance(error, Internal)):
            self._log.error(
                "%s failed%s, correlation id %s",
                _described(call),
                f" in {where}" if (where := author_location(error, call.target, call.operation)) else "",
                call.correlation_id,
                exc_info=error,
            )
        status = failure(
            error,
            details=_details(call),
            correlation_id=call.correlation_id,
            disclosure=self._disclosure,
        )
        context.set_trailing_metadata(status.trailers)
        context.abort(status.code, status.message)
        raise AssertionError("abort always raises")


def _details(call: ServedCall) -> Details:
    """How the client of a call reads the details of its error.

    DuckDB reads those of Airport's actions as JSON. A user may call any action with `airport_action`, which expects a
    typed error; it does not name a catalog, and neither do older clients.
    """
    sent = call.request.headers
    if headers.USER_AGENT not in sent:
        return "none"
    if call.method != "DoAction" or not {call.operation, *sent.get(headers.ACTION_NAME, ())} & ACTIONS.keys():
        return "typed"
    return "json" if headers.CATALOG in sent else "none"


def _described(call: ServedCall) -> str:
    """`scan of demo.sales.people`"""
    named = ".".join(filter(None, (call.request.catalog, call.schema, call.name)))
    return f"{call.operation} of {named}" if named else call.operation


class _Gate(contextlib.AbstractContextManager[None]):
    """Lets at most `limit` calls in at a time, and rejects others."""

    def __init__(self, what: str, limit: int) -> None:
        self._what, self._limit, self._free = what, limit, threading.Semaphore(limit)

    def __enter__(self) -> None:
        if not self._free.acquire(blocking=False):
            raise LimitExceeded(
                f"{self._limit} {self._what} are open, which is the limit of this server: try again, or increase "
                f"Limits.{self._what}"
            )

    def __exit__(self, *_: object) -> None:
        self._free.release()


@contextlib.contextmanager
def _entered_together(blocks: Sequence[contextlib.AbstractContextManager[object]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for block in blocks:
            stack.enter_context(block)
        yield


def _counted_frames(
    frames: Iterator[bytes], call: ServedCall, client: WatchedCall
) -> Generator[bytes, None, bytes | None]:
    """The response with its bytes counted. Returns the frame that ends a statement, for which a handler returns it.

    That frame is sent after the observers are done: the client stops reading there, and an audit record must be written
    before a client knows that its change is committed.
    """
    iterator = iter(frames)
    try:
        while True:
            frame = next(iterator)
            call.bytes_out += len(frame)
            client.wait()
            yield frame
            client.resume()
    except StopIteration as end:
        last: bytes | None = end.value
        call.bytes_out += len(last or b"")
        return last
    finally:
        if isinstance(iterator, Generator):
            iterator.close()  # at once, if the client is gone


def _counted(messages: Iterator[bytes], call: ServedCall, client: WatchedCall) -> Iterator[bytes]:
    """The client's messages with their bytes counted."""
    for message in client.received(messages):
        call.bytes_in += len(message)
        yield message
