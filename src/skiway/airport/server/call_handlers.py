"""What all calls have in common: who calls, one request or a stream of them, observers, limits, and errors as statuses.

Without the Arrow trailers DuckDB's client retries some codes for three seconds before it shows them, and wraps the
message in its own text. It reads details in two ways: of Airport's actions as a JSON object, elsewhere, and of all actions
that a user calls with `airport_action`, as a typed error. Other Flight clients get no details, because Arrow would show
them a plain internal error instead of the right class.

Only errors of our own tree are written for callers. The text of any other exception stays in the server's log, unless
the server runs in debug mode. The log also says where the code of an author failed.

gRPC would occupy a thread until the request of a call arrives, before anybody knows who calls. So all methods are served as
if clients streamed their requests: callers are authenticated first, and those who send nothing are ended.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import logging
import re
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, Final, Literal, TypeVar

import grpc
import pyarrow as pa

import skiway
from skiway import errors
from skiway.airport.request import Authenticator, Observer, Request, ServedCall, admit, read_request
from skiway.airport.server.actions import ACTIONS
from skiway.airport.wire import protocol
from skiway.airport.wire.protocol import TypedError, encode
from skiway.airport.wire.sizes import MAX_DECODED_BYTES
from skiway.errors import Internal, LimitExceeded, SkiwayError
from skiway.foundation.doors import GRPC_CODES, exhausted, internal_error, see_log, status_in
from skiway.foundation.memory_budget import MemoryBudget
from skiway.foundation.threads import IDLE_S, OPENING_S, StreamWatch, WatchedCall

_LIBRARIES: Final = [Path(str(library.__file__)).parent for library in (skiway, grpc, pa)]
_CYTHON: Final = (".pyx", ".pxi")
_STDLIB: Final = Path(sysconfig.get_path("stdlib"))
_ENTRIES: Final = ("scan", "execute", "open", "function_calls")  # the methods that authors write
_WRITES: Final = ("insert", "update", "delete")


def author_location(error: BaseException, target: object, operation: str = "scan") -> str:
    """`/home/ada/app.py:12 (people)`: the author's code that `error` passed through, else the definition of `target`.

    It is the outermost such place: the author's own code, not a library that it called. "" if there is none.
    """
    return _in_traceback(error) or _definition(target, operation)


def _in_traceback(error: BaseException | None) -> str:
    while error is not None:
        for frame, line in traceback.walk_tb(error.__traceback__):
            if _is_author(frame.f_code.co_filename):
                return f"{frame.f_code.co_filename}:{line} ({frame.f_code.co_name})"
        error = error.__cause__
    return ""


def _definition(target: object, operation: str) -> str:
    if target is None:
        return ""
    names = (*((operation, f"{operation}_batch", "write") if operation in _WRITES else ()), *_ENTRIES)
    methods = (getattr(type(target), name, None) for name in names)
    function = getattr(target, "__wrapped__", None) or next(filter(None, methods), None)
    code = getattr(inspect.unwrap(getattr(function, "func", function)), "__code__", None) if function else None
    if not isinstance(code, CodeType) or not _is_author(code.co_filename):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno} ({code.co_qualname})"


def _is_author(filename: str) -> bool:
    path = Path(filename)
    if any(map(path.is_relative_to, _LIBRARIES)) or path.suffix in _CYTHON or filename.startswith("<frozen"):
        return False
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or not path.is_relative_to(_STDLIB)


# Arrow's own numbers. IOError (5) is the one that the client retries on actions, so nothing maps to it there.
ARROW_IO_ERROR: Final = 5
ARROW_INVALID: Final = 4
ARROW_CODES: Final = {
    grpc.StatusCode.NOT_FOUND: 2,
    grpc.StatusCode.CANCELLED: 8,
    grpc.StatusCode.UNIMPLEMENTED: 10,
    grpc.StatusCode.ALREADY_EXISTS: 45,
}

# The classes that DuckDB knows by name.
DUCKDB_TYPES: Final[dict[type[errors.SkiwayError], str]] = {
    errors.ConstraintViolation: "ConstraintException",
    errors.PermissionDenied: "PermissionException",
    errors.Unauthorized: "PermissionException",
    errors.InvalidArgument: "InvalidInputException",
}

Details = Literal["json", "typed", "none"]
"""How the client of a call reads the details of an error."""

T = TypeVar("T")

MAX_MESSAGE_BYTES: Final = 1000  # gRPC cuts headers at 8 KiB, and the text travels in up to three of them


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in the form that gRPC sends."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]


@dataclass(frozen=True, slots=True)
class Disclosure:
    """What callers learn about faults of the server.

    With `internal`, they see the messages of `Internal` errors, which help authors of catalogs. With `debug`, they also
    see the text of foreign exceptions, without paths and tracebacks: for development only.
    """

    internal: bool = True
    debug: bool = False


def failure(error: BaseException, *, details: Details, correlation_id: str, disclosure: Disclosure) -> Failure:
    """The status of `error`, with `details` in the form that the client reads."""
    known = _disclosed(error, correlation_id, disclosure)
    code = status_in(GRPC_CODES, known)
    message = _shortened(known.message)
    trailers: list[tuple[str, str | bytes]] = [(protocol.ARROW_MESSAGE, message.encode())]
    arrow = ARROW_CODES.get(code, ARROW_INVALID)
    if details == "json":
        trailers.append((protocol.ERROR_DETAILS, _facts(known)))
    elif details == "typed" and (typed := _nearest(DUCKDB_TYPES, known)) is not None:
        arrow = ARROW_IO_ERROR
        trailers.append((protocol.ERROR_DETAILS, encode(TypedError(exception_type=typed, message=message))))
    if details != "json" and (known.key or known.params):
        trailers.append((protocol.ERROR_FACTS, _facts(known)))
    trailers += [
        (protocol.ARROW_STATUS, str(arrow)),
        (protocol.ERROR_CLASS, _public_class(known)),
        (protocol.CORRELATION_ID, correlation_id),
    ]
    return Failure(code, message, tuple(trailers))


def _public_class(error: errors.SkiwayError) -> str:
    """The name of the class, or of its nearest base class in `skiway.errors`."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in errors.__all__)


def _facts(error: errors.SkiwayError) -> bytes:
    named = {"code": error.code, **({"key": error.key} if error.key else {})}
    facts = json.dumps({**error.params, **named}).encode()
    return facts if len(facts) <= MAX_MESSAGE_BYTES else json.dumps(named).encode()


def code_of(error: BaseException) -> grpc.StatusCode:
    """The gRPC code of any exception."""
    return status_in(GRPC_CODES, error if isinstance(error, errors.SkiwayError) else _foreign_class(error)(""))


def _disclosed(error: BaseException, correlation_id: str, disclosure: Disclosure) -> errors.SkiwayError:
    """The error that the caller sees."""
    if isinstance(error, errors.SkiwayError):
        if not isinstance(error, errors.Internal) or disclosure.internal:
            return error
        return internal_error(correlation_id)
    if (known := exhausted(error)) is not None:
        return known
    kind = _foreign_class(error)
    if disclosure.debug:
        return kind(_clean(str(error)) or f"the server failed with {type(error).__name__}")
    return kind(f"{_FOREIGN[kind]}; {see_log(correlation_id)}")


_FOREIGN: Final[dict[type[errors.SkiwayError], str]] = {
    errors.Unsupported: "this server does not support the request",
    errors.Internal: "internal error",
}


def _foreign_class(error: BaseException) -> type[errors.SkiwayError]:
    """The class under which an exception that is not of our tree is reported."""
    if isinstance(error, NotImplementedError):
        return errors.Unsupported
    return errors.LimitExceeded if exhausted(error) is not None else errors.Internal


_TRACEBACK: Final = re.compile(r"Traceback \(most recent call last\).*", re.DOTALL)
_PATH: Final = re.compile(
    r"""(?<![\w.:/])(?:file:/*|[A-Za-z]:[\\/]|[\\/])(?:[^\s'"\\/,;:()<>|]+[\\/])+[^\s'",;:()<>|]*"""
)


def _clean(text: str) -> str:
    return _PATH.sub("<path>", _TRACEBACK.sub("", text)).strip()


def _shortened(message: str) -> str:
    data = message.encode("utf-8", "replace")
    return message if len(data) <= MAX_MESSAGE_BYTES else data[: MAX_MESSAGE_BYTES - 3].decode("utf-8", "ignore") + "…"


def _nearest(table: Mapping[type[errors.SkiwayError], T], error: errors.SkiwayError) -> T | None:
    return next((table[kind] for kind in type(error).__mro__ if kind in table), None)


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
    if protocol.USER_AGENT not in sent:
        return "none"
    if call.method != "DoAction" or not {call.operation, *sent.get(protocol.ACTION_NAME, ())} & ACTIONS.keys():
        return "typed"
    return "json" if protocol.CATALOG in sent else "none"


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
