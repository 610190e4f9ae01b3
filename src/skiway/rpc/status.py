"""Errors as gRPC statuses, with details for programs.

The details are in the trailer `grpc-status-details-bin`: a `google.rpc.Status` with our `skiway.v1.Error`, the standard
`ErrorInfo`, and `BadRequest` if an argument is invalid. A fault of the server is reported as "internal error" with the
correlation id to look for in its log.
"""

from __future__ import annotations

import re
import traceback
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from skiway import errors
from skiway.config.server import Errors
from skiway.doors import GRPC_CODES, disclosed, internal_error, status_in
from skiway.metastore.records import errors as failures
from skiway.model import v1
from skiway.telemetry.context import CallContext

__all__ = ["DETAILS", "DOMAIN", "Failure", "code_of", "failure_of", "language"]

DETAILS: Final = "grpc-status-details-bin"
DOMAIN: Final = "skiway"

ROOM: Final = 6 * 1024
"""Bytes for message and details. By default gRPC rejects trailers of 8 KiB, which also contain the echoed headers."""
SHORTEST: Final = 16
_NUMBERS: Final = dict(v1.ErrorCode.items())
_PRIMARY_TAG: Final = re.compile(r"[A-Za-z]{2,3}(?![A-Za-z])")


@dataclass(frozen=True, slots=True)
class Failure:
    """An error in the form that gRPC sends; `details` are the bytes of the trailer."""

    code: grpc.StatusCode
    message: str
    details: bytes

    @property
    def size(self) -> int:
        """The maximum number of bytes on the wire: text is percent-encoded, bytes are in Base64."""
        return len(quote(self.message)) + (len(self.details) + 2) // 3 * 4


def code_of(error: BaseException) -> grpc.StatusCode:
    """The gRPC code of any exception."""
    return status_in(GRPC_CODES, error)


def failure_of(error: Exception, context: CallContext, *, language: str = "en", disclosure: Errors) -> Failure:
    """The status of `error` for a caller. Texts are shortened until the details fit into the trailers."""
    limit = disclosure.max_detail_chars
    shown = disclosed(error) or internal_error(context.correlation_id)
    debug = error if disclosure.debug_details else None
    while True:
        status = _status(shown, context, language=language, limit=limit, debug=debug)
        if status.size <= ROOM or limit <= SHORTEST:
            return status
        limit //= 2


def language(accepted: str, locale: str) -> str:
    """The first supported language of: the header `accept-language`, the caller's locale, English."""
    for wish in (accepted.strip(), locale.strip()):
        tag = _PRIMARY_TAG.match(wish)
        if tag and failures.sentences(tag[0].lower()):
            return tag[0].lower()
    return "en"


def _status(
    error: errors.SkiwayError, context: CallContext, *, language: str, limit: int, debug: Exception | None
) -> Failure:
    code = code_of(error)
    message = _cut(_translated(error, language), limit)
    details = [_error(error, message, context, limit=limit), _info(error, code, context)]
    details += _violations(error, message, limit=limit)
    if debug is not None:
        trace = "".join(traceback.format_exception(debug))
        details.append(error_details_pb2.DebugInfo(detail=_cut(trace, limit)))
    status = status_pb2.Status(code=code.value[0], message=message)
    for detail in details:
        status.details.add().Pack(detail)
    return Failure(code, message, status.SerializeToString())


def _translated(error: errors.SkiwayError, language: str) -> str:
    """The message in the language if there is a template for the error's key; else as it was raised."""
    if language == "en" or not error.key:
        return error.message
    try:
        translated = failures.sentence(error.code, error.key, error.params, language=language)
    except (KeyError, ValueError, IndexError):
        return error.message
    return error.message if translated == error.key else translated


def _error(error: errors.SkiwayError, message: str, context: CallContext, *, limit: int) -> Message:
    around = {"operation": context.operation, "query_id": context.query_id}
    return v1.Error(
        code=_NUMBERS.get(error.code, v1.MC_UNSPECIFIED),
        message=message,
        params={name: _cut(str(value), limit) for name, value in error.params.items()},
        context={name: value for name, value in around.items() if value},
        message_key=error.key,
        correlation_id=context.correlation_id,
    )


def _info(error: errors.SkiwayError, code: grpc.StatusCode, context: CallContext) -> Message:
    facts = {"correlation_id": context.correlation_id, "grpc_status": code.name, "message_key": error.key}
    info: Message = error_details_pb2.ErrorInfo(reason=error.code, domain=DOMAIN, metadata=facts)
    return info


def _violations(error: errors.SkiwayError, message: str, *, limit: int) -> list[Message]:
    field = error.params.get("field") or error.params.get("header")
    if not field or not isinstance(error, errors.InvalidArgument):
        return []
    violation = error_details_pb2.BadRequest.FieldViolation(field=_cut(field, limit), description=message)
    return [error_details_pb2.BadRequest(field_violations=[violation])]


def _cut(text: str, limit: int) -> str:
    """Shorten a text in the middle, and replace what cannot be encoded as UTF-8."""
    whole = text.encode("utf-8", "replace").decode()
    if len(whole) <= limit:
        return whole
    tail = (limit - 1) // 2
    return f"{whole[: limit - 1 - tail]}…{whole[len(whole) - tail :]}"
