"""How an error leaves the server: its gRPC code, its sentence, and the trailers that make DuckDB show it well.

Without the Arrow trailers DuckDB's client would retry for three seconds before it shows some codes, and would put its
own words around the message. It reads details in two ways: on actions as a JSON object, elsewhere as a typed error.
Other Flight clients get no details: Arrow would show them a plain internal error in place of the right class.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import grpc

from skiway import errors
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import TypedError, encode

__all__ = ["failure"]


CODES: Final[dict[type[errors.SkiwayError], grpc.StatusCode]] = {
    errors.Unauthorized: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.InvalidArgument: grpc.StatusCode.INVALID_ARGUMENT,
    errors.PreconditionFailed: grpc.StatusCode.FAILED_PRECONDITION,
    errors.AlreadyExists: grpc.StatusCode.ALREADY_EXISTS,
    errors.Conflict: grpc.StatusCode.ABORTED,
    errors.Unsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.LimitExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.TimedOut: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: grpc.StatusCode.CANCELLED,
    errors.SkiwayError: grpc.StatusCode.INTERNAL,
}

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

T = TypeVar("T")

MAX_MESSAGE_BYTES: Final = 1000  # gRPC cuts headers at 8 KiB, and the text travels in up to three of them


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as gRPC takes it."""

    code: grpc.StatusCode
    message: str
    trailers: tuple[tuple[str, str | bytes], ...]


def failure(error: BaseException, *, action: bool, airport: bool) -> Failure:
    """The failure that `error` is to an `airport` client or another one; the client reads it from an `action` or not."""
    known = error if isinstance(error, errors.SkiwayError) else foreign(error)
    code = _nearest(CODES, known) or grpc.StatusCode.INTERNAL
    message = _shortened(known.message)
    trailers: list[tuple[str, str | bytes]] = [(headers.ARROW_MESSAGE, message.encode())]
    arrow = ARROW_CODES.get(code, ARROW_INVALID)
    if airport and action:
        trailers.append((headers.ERROR_DETAILS, _facts(known)))
    elif airport and (typed := _nearest(DUCKDB_TYPES, known)) is not None:
        arrow = ARROW_IO_ERROR
        trailers.append((headers.ERROR_DETAILS, encode(TypedError(exception_type=typed, message=message))))
    trailers += [(headers.ARROW_STATUS, str(arrow)), (headers.ERROR_CLASS, _public_class(known))]
    return Failure(code, message, tuple(trailers))


def _public_class(error: errors.SkiwayError) -> str:
    """The name of the class, or of the nearest one that others know too."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in errors.__all__)


def _facts(error: errors.SkiwayError) -> bytes:
    named = {"code": error.code, **({"key": error.key} if error.key else {})}
    facts = json.dumps({**error.params, **named}).encode()
    return facts if len(facts) <= MAX_MESSAGE_BYTES else json.dumps(named).encode()


def foreign(error: BaseException) -> errors.SkiwayError:
    """An exception that is not of our tree, told without the server's paths and without a traceback."""
    if isinstance(error, NotImplementedError):
        return errors.Unsupported(_clean(str(error)) or "this server cannot do that")
    if isinstance(error, MemoryError):
        return errors.LimitExceeded("the server has no memory for this request")
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return errors.Internal(_clean(text) or f"the server failed with {type(error).__name__}; its log has the details")


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
