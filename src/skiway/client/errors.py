"""Map failed gRPC calls back to `skiway.errors`: the class, message, key and parameters that the server raised.

A Skiway server names the class (Airport) or the error code (metastore). A server of another make is understood by its gRPC
status and by DuckDB's typed errors. The tables by class name and by code are derived from `skiway.errors`, so a new class or
code needs no change here.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import grpc
import msgspec
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from skiway import errors
from skiway.airport.wire import protocol
from skiway.airport.wire.protocol import TypedError
from skiway.model import v1

BY_STATUS: Final[Mapping[grpc.StatusCode, type[errors.SkiwayError]]] = {
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
"""The class for each gRPC status; any other status is `Internal`."""

BY_CODE: Final[Mapping[str, type[errors.SkiwayError]]] = {
    **{
        kind.code: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.SkiwayError) and "code" in vars(kind)
    },
    errors.SkiwayError.code: errors.Internal,
}
"""The class for each error code: the one that declares it. Subclasses that inherit their code are told apart by status."""

# These refine the status where it is too coarse: streams send DuckDB's exception types, actions send our keys.
BY_DUCKDB_TYPE: Final[Mapping[str, type[errors.SkiwayError]]] = {
    "ConstraintException": errors.ConstraintViolation,
    "PermissionException": errors.PermissionDenied,
    "InvalidInputException": errors.InvalidArgument,
}
BY_KEY: Final[Mapping[str, type[errors.SkiwayError]]] = {
    "rowid.null": errors.NullRowId,
    "schema.not_empty": errors.SchemaNotEmpty,
    "namespace.not_empty": errors.SchemaNotEmpty,
}

# Suffixes that Arrow's own servers and its C++ client append to messages.
_ARROW_NOISE: Final = re.compile(r"(?:\. Detail: \w+)?\.?(?: gRPC client debug context: .*)?$", re.DOTALL)
_NEVER_CONNECTED: Final = "failed to connect"  # the beginning of gRPC's message
_DETAILS_FIELD: Final = 3  # of google.rpc.Status, whose Python module is not part of the plain install


@contextlib.contextmanager
def blame_server(location: str, request: str) -> Iterator[None]:
    """Turn `InvalidArgument` from our decoders into `Internal`: the server sent a malformed response to `request`."""
    try:
        yield
    except errors.InvalidArgument as error:
        if isinstance(error.__cause__, grpc.RpcError):  # the server itself raised it, in the middle of a stream
            raise
        raise errors.Internal(
            f"{location} sent a malformed response to {request}: {error.message}", key="answer.malformed"
        ) from error


# -- Airport -----------------------------------------------------------------------------------------------------------


def airport_error(failed: grpc.RpcError, location: str) -> errors.SkiwayError:
    """Return the error of a failed Airport call."""
    call: Any = failed  # grpcio raises the call object itself, whose type it does not export
    trailers: dict[str, Any] = dict(call.trailing_metadata() or ())
    details = trailers.get(protocol.ERROR_DETAILS, b"")
    facts, typed = _json_details(trailers.get(protocol.ERROR_FACTS, details)), _typed_error(details)
    kind = _named_class(trailers) or _class_by_status(call.code(), facts, typed)
    error = kind(_airport_message(call, trailers, typed, location), key=facts.pop("key", ""))
    facts.pop("code", None)
    error.params.update(facts)
    return error


def _named_class(trailers: dict[str, Any]) -> type[errors.SkiwayError] | None:
    """The class that a Skiway server names in a trailer."""
    name = trailers.get(protocol.ERROR_CLASS)
    return getattr(errors, name) if name in errors.__all__ else None


def _class_by_status(
    code: grpc.StatusCode, facts: dict[str, str], typed: TypedError | None
) -> type[errors.SkiwayError]:
    kind = BY_STATUS.get(code, errors.Internal)
    finer = BY_KEY.get(facts.get("key", ""))
    if facts.get("code") == errors.Contention.code and kind is errors.Conflict:
        finer = errors.Contention
    elif typed is not None:
        finer = BY_DUCKDB_TYPE.get(typed.exception_type)
    # The status takes precedence: DuckDB, for example, has one type for Unauthorized and PermissionDenied.
    return finer if finer is not None and (issubclass(finer, kind) or kind is errors.Internal) else kind


def _airport_message(call: Any, trailers: dict[str, Any], typed: TypedError | None, location: str) -> str:
    if typed is not None:
        return typed.message
    if protocol.ARROW_MESSAGE in trailers:
        return str(trailers[protocol.ARROW_MESSAGE].decode("utf-8", "replace"))
    details = _ARROW_NOISE.sub("", call.details() or "")
    if call.code() is grpc.StatusCode.UNAVAILABLE and not trailers:
        return f"cannot reach {location}: {details or 'the connection failed'}; check that the server is running"
    if call.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not trailers:
        return f"{location} did not finish the call in time; increase timeout_s, or set it to None for no deadline"
    return details or f"{location} failed without a message"


def _json_details(details: bytes | str) -> dict[str, str]:
    """The JSON object in the details of an action's error; empty if there is none."""
    try:
        facts = json.loads(details)
    except ValueError:  # includes bytes that are not UTF-8
        return {}
    if not isinstance(facts, dict):
        return {}
    return {str(key): str(value) for key, value in facts.items()}


def _typed_error(details: bytes | str) -> TypedError | None:
    """The DuckDB error in the details of a stream's error, if there is one."""
    if not isinstance(details, bytes):
        return None
    try:
        return msgspec.msgpack.decode(details, type=TypedError)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


# -- metastore ---------------------------------------------------------------------------------------------------------


def metastore_error(failed: grpc.RpcError, target: str, correlation_id: str) -> errors.SkiwayError:
    """Return the error of a failed metastore call; `params["correlation_id"]` finds it in the server's log."""
    call: Any = failed  # grpcio raises the call object itself, whose type it does not export
    trailers = dict(call.trailing_metadata() or ())
    details = _error_details(trailers.get(protocol.ERROR_DETAILS))
    message = details.message if details and details.message else _metastore_message(call, target)
    error = _class_by_code(call.code(), details)(message)
    if details is not None:
        error.key = details.message_key
        error.params.update(details.params)
        correlation_id = details.correlation_id or correlation_id
    error.params.setdefault("correlation_id", correlation_id)
    error.add_note(f"correlation id: {correlation_id}")
    return error


def _class_by_code(status: grpc.StatusCode, details: v1.Error | None) -> type[errors.SkiwayError]:
    """The class of the error code, if the server sent one; the status decides between classes with the same code."""
    by_status = BY_STATUS.get(status, errors.Internal)
    code = v1.ErrorCode.DESCRIPTOR.values_by_number.get(details.code) if details else None
    if code is None or code.name == by_status.code:
        return by_status
    return BY_CODE.get(code.name, by_status)


def _error_details(data: object) -> v1.Error | None:
    """The `skiway.v1.Error` among the details of a google.rpc.Status, if there is one."""
    if not isinstance(data, bytes):
        return None
    try:
        fields: Any = UnknownFieldSet(Empty.FromString(data))  # its type stub lacks iteration
        for field in fields:
            if field.field_number == _DETAILS_FIELD and isinstance(field.data, bytes):
                found = v1.Error()
                if Packed.FromString(field.data).Unpack(found):
                    return found
    except DecodeError:
        pass  # details of another server's making; the status is enough
    return None


def _metastore_message(call: Any, target: str) -> str:
    details = call.details() or ""
    match call.code():
        case grpc.StatusCode.UNAVAILABLE if details.startswith(_NEVER_CONNECTED):
            checks = "check the address, that the server is running, and whether it requires TLS"
            return f"cannot reach the metastore at {target}: {details}; {checks}"
        case grpc.StatusCode.UNAVAILABLE:
            reason = details or "no reason given"
            checks = "check whether the change was applied before you retry"
            return f"lost the connection to the metastore at {target} during the call ({reason}): {checks}"
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{target} did not respond in time; increase timeout_s, or set it to None for no deadline"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"{target} does not implement this call ({details}): it is no metastore, or a different version"
    return details or f"{target} failed without a message"
