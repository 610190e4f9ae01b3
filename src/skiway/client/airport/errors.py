"""From a failed call back to the tree of errors: the same class, message, key and parameters as the server raised."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from typing import Any, Final

import grpc
import msgspec

from skiway import errors
from skiway.airport.wire import headers
from skiway.airport.wire.payloads import TypedError

__all__ = ["CLASSES", "error_of", "nonsense"]

# What a Flight server of another make says with its code alone.
CLASSES: Final[dict[grpc.StatusCode, type[errors.SkiwayError]]] = {
    grpc.StatusCode.UNAUTHENTICATED: errors.Unauthorized,
    grpc.StatusCode.PERMISSION_DENIED: errors.PermissionDenied,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidArgument,
    grpc.StatusCode.OUT_OF_RANGE: errors.InvalidArgument,
    grpc.StatusCode.FAILED_PRECONDITION: errors.PreconditionFailed,
    grpc.StatusCode.ALREADY_EXISTS: errors.AlreadyExists,
    grpc.StatusCode.ABORTED: errors.Conflict,
    grpc.StatusCode.UNIMPLEMENTED: errors.Unsupported,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.LimitExceeded,
    grpc.StatusCode.UNAVAILABLE: errors.Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.TimedOut,
    grpc.StatusCode.CANCELLED: errors.Cancelled,
}

# What a stream says in DuckDB's words, and an action in ours, where the code alone would be too coarse.
BY_DUCKDB_TYPE: Final[dict[str, type[errors.SkiwayError]]] = {
    "ConstraintException": errors.ConstraintViolation,
    "PermissionException": errors.PermissionDenied,
    "InvalidInputException": errors.InvalidArgument,
}
BY_KEY: Final[dict[str, type[errors.SkiwayError]]] = {
    "rowid.null": errors.NullRowId,
    "schema.not_empty": errors.SchemaNotEmpty,
    "namespace.not_empty": errors.SchemaNotEmpty,
}

# Arrow's own servers add this to a message, and the C++ client that to its own.
_ARROW_NOISE: Final = re.compile(r"(?:\. Detail: \w+)?\.?(?: gRPC client debug context: .*)?$", re.DOTALL)


def error_of(failed: grpc.RpcError, location: str) -> errors.SkiwayError:
    """The error that a failed call stands for."""
    call: Any = failed  # grpcio raises the call itself, of a type that it does not show
    trailers = dict(call.trailing_metadata() or ())
    details = trailers.get(headers.ERROR_DETAILS, b"")
    facts, typed = _facts(details), _typed(details)
    kind = _named(trailers) or _kind(call.code(), facts, typed)
    error = kind(_message(call, trailers, typed, location), key=facts.pop("key", ""))
    facts.pop("code", None)
    error.params.update(facts)
    return error


@contextlib.contextmanager
def nonsense(location: str, what: str) -> Iterator[None]:
    """What our decoders refuse is not the caller's mistake here, but the server's."""
    try:
        yield
    except errors.InvalidArgument as refusal:
        if isinstance(refusal.__cause__, grpc.RpcError):  # the server itself said so, in the midst of a stream
            raise
        raise errors.Internal(
            f"{location} answered {what} with something else than the protocol says: {refusal.message}",
            key="answer.malformed",
        ) from refusal


def _named(trailers: dict[str, Any]) -> type[errors.SkiwayError] | None:
    """The class that one of our own servers names."""
    name = trailers.get(headers.ERROR_CLASS)
    return getattr(errors, name) if name in errors.__all__ else None


def _kind(code: grpc.StatusCode, facts: dict[str, str], typed: TypedError | None) -> type[errors.SkiwayError]:
    kind = CLASSES.get(code, errors.Internal)
    finer = BY_KEY.get(facts.get("key", ""))
    if facts.get("code") == errors.Contention.code and kind is errors.Conflict:
        finer = errors.Contention
    elif typed is not None:
        finer = BY_DUCKDB_TYPE.get(typed.exception_type)
    # the code has the last word; DuckDB, for one, has a single type for Unauthorized and PermissionDenied
    return finer if finer is not None and (issubclass(finer, kind) or kind is errors.Internal) else kind


def _message(call: Any, trailers: dict[str, Any], typed: TypedError | None, location: str) -> str:
    if typed is not None:
        return typed.message
    if headers.ARROW_MESSAGE in trailers:
        return str(trailers[headers.ARROW_MESSAGE].decode("utf-8", "replace"))
    said = _ARROW_NOISE.sub("", call.details() or "")
    if call.code() is grpc.StatusCode.UNAVAILABLE and not trailers:
        return f"cannot reach {location}: {said or 'the connection failed'}; see that the server runs there"
    if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not trailers:
        return f"{location} did not finish the call in time; give timeout_s a larger value, or None to wait for ever"
    return said or f"{location} failed without a message"


def _facts(details: bytes | str) -> dict[str, str]:
    """The JSON object of an action's error, as far as it is one."""
    try:
        facts = json.loads(details)
    except ValueError:  # also what is not UTF-8
        return {}
    if not isinstance(facts, dict):
        return {}
    return {str(key): str(value) for key, value in facts.items()}


def _typed(details: bytes | str) -> TypedError | None:
    """The typed error of a stream, if it is one."""
    if not isinstance(details, bytes):
        return None
    try:
        return msgspec.msgpack.decode(details, type=TypedError)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
