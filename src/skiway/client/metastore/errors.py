"""From a failed call back to the tree of errors: the class, message, key and parameters that the server raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import grpc
from google.protobuf.any_pb2 import Any as Packed
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from skiway import errors
from skiway.airport.wire.headers import ERROR_DETAILS
from skiway.client.airport.errors import CLASSES
from skiway.model import v1

__all__ = ["error_of"]

_NEVER_REACHED: Final = "failed to connect"  # how gRPC begins to say so
_DETAILS_FIELD: Final = 3  # of google.rpc.Status, whose module is in no plain install

BY_CODE: Final[Mapping[str, type[errors.SkiwayError]]] = {
    kind.code: kind
    for kind in (
        errors.Unauthorized,
        errors.PermissionDenied,
        errors.NotFound,
        errors.InvalidArgument,
        errors.PreconditionFailed,
        errors.Conflict,
        errors.Contention,
        errors.LimitExceeded,
        errors.Unavailable,
        errors.TimedOut,
        errors.Cancelled,
        errors.Internal,
    )
}


def error_of(failed: grpc.RpcError, target: str, correlation_id: str) -> errors.SkiwayError:
    """The error that a failed call stands for; its parameters tell under which correlation id the server's log has it."""
    call: Any = failed  # grpcio raises the call itself, of a type that it does not show
    trailers = dict(call.trailing_metadata() or ())
    told = _told(trailers.get(ERROR_DETAILS))
    message = told.message if told and told.message else _message(call, target)
    error = _kind(call.code(), told)(message)
    if told is not None:
        error.key = told.message_key
        error.params.update(told.params)
        correlation_id = told.correlation_id or correlation_id
    error.params.setdefault("correlation_id", correlation_id)
    error.add_note(f"correlation id: {correlation_id}")
    return error


def _kind(status: grpc.StatusCode, told: v1.Error | None) -> type[errors.SkiwayError]:
    """The code that the server told has the last word; the status chooses among classes that share it."""
    by_status = CLASSES.get(status, errors.Internal)
    code = v1.ErrorCode.DESCRIPTOR.values_by_number.get(told.code) if told else None
    if code is None or code.name == by_status.code:
        return by_status
    return BY_CODE.get(code.name, by_status)


def _told(data: object) -> v1.Error | None:
    """Our own error among the details of a status, as far as there is one."""
    if not isinstance(data, bytes):
        return None
    try:
        fields: Any = UnknownFieldSet(Empty.FromString(data))  # its types do not say that it can be iterated over
        for field in fields:
            if field.field_number == _DETAILS_FIELD and isinstance(field.data, bytes):
                found = v1.Error()
                if Packed.FromString(field.data).Unpack(found):
                    return found
    except DecodeError:
        pass  # details of somebody else's making; the status says enough
    return None


def _message(call: Any, target: str) -> str:
    said = call.details() or ""
    match call.code():
        case grpc.StatusCode.UNAVAILABLE:
            return _unavailable(said, target)
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return f"{target} did not answer in time; give timeout_s a larger value, or None to wait for ever"
        case grpc.StatusCode.UNIMPLEMENTED:
            return f"{target} does not know this call ({said}): it is no metastore, or of another version"
    return said or f"{target} failed without a message"


def _unavailable(said: str, target: str) -> str:
    """Whether the server was never reached, or was lost after it may have begun."""
    if said.startswith(_NEVER_REACHED):
        checks = "check the address, that the server runs there, and whether it wants TLS"
        return f"cannot reach the metastore at {target}: {said}; {checks}"
    reason = said or "no reason is known"
    return f"lost the metastore at {target} during the call ({reason}): look whether it was done, then call again"
