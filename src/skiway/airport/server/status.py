"""Errors as gRPC statuses, with the trailers that make DuckDB show them well.

Without the Arrow trailers DuckDB's client retries some codes for three seconds before it shows them, and wraps the
message in its own text. It reads details in two ways: of Airport's actions as a JSON object, elsewhere, and of all actions
that a user calls with `airport_action`, as a typed error. Other Flight clients get no details, because Arrow would show
them a plain internal error instead of the right class.

Only errors of our own tree are written for callers. The text of any other exception stays in the server's log, unless
the server runs in debug mode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

import grpc

from skiway import errors
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import TypedError, encode
from skiway.doors import GRPC_CODES, exhausted, internal_error, see_log, status_in

__all__ = ["Details", "Disclosure", "code_of", "failure"]


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
    trailers: list[tuple[str, str | bytes]] = [(headers.ARROW_MESSAGE, message.encode())]
    arrow = ARROW_CODES.get(code, ARROW_INVALID)
    if details == "json":
        trailers.append((headers.ERROR_DETAILS, _facts(known)))
    elif details == "typed" and (typed := _nearest(DUCKDB_TYPES, known)) is not None:
        arrow = ARROW_IO_ERROR
        trailers.append((headers.ERROR_DETAILS, encode(TypedError(exception_type=typed, message=message))))
    if details != "json" and (known.key or known.params):
        trailers.append((headers.ERROR_FACTS, _facts(known)))
    trailers += [
        (headers.ARROW_STATUS, str(arrow)),
        (headers.ERROR_CLASS, _public_class(known)),
        (headers.CORRELATION_ID, correlation_id),
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
