"""The gRPC door: all services of the metastore, each call through the request pipeline; and errors as gRPC statuses.

The details of an error for programs are in the trailer `grpc-status-details-bin`: a `google.rpc.Status` with our
`skiway.v1.Error`, the standard `ErrorInfo`, and `BadRequest` if an argument is invalid. A fault of the server is reported as
"internal error" with the correlation id to look for in its log.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Never
from urllib.parse import quote, unquote

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from skiway import errors
from skiway.config.server import Errors
from skiway.errors import LimitExceeded, PreconditionFailed
from skiway.foundation import transport
from skiway.foundation.doors import GRPC_CODES, disclosed, internal_error, status_in
from skiway.foundation.threads import IDLE_S, OPENING_S, FairThreads, StreamWatch, lane_share
from skiway.foundation.transport import Transport
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.records import errors as failures
from skiway.metastore.records.realm import random_id
from skiway.model import v1
from skiway.request_path import Access, Observers, Pipeline, Retries, echo_headers, read_context
from skiway.rpc.methods import Method, RpcCall, Service, handle
from skiway.rpc.services import all_services
from skiway.security.authentication import MANAGES_ACCOUNTS
from skiway.telemetry.context import CallContext

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


LANGUAGE: Final = "accept-language"
BRANCH: Final = "x-skiway-branch"
"""The header that names a branch of the lake, such as `lake@dev`, percent-encoded."""


class Door:
    """Serves `services`, by default all, to the callers that `access` admits.

    `workers` calls run at a time, of which one account gets a part. `max_streams` calls may stream at a time, because each
    holds a thread of the server while its client sends. A client has `opening_s` seconds to send its request, and a stream
    ends when its client neither sends nor reads for `idle_s` seconds.
    """

    def __init__(
        self,
        access: Access,
        observers: Observers | None = None,
        *,
        services: Iterable[Service] | None = None,
        disclosure: Errors | None = None,
        retries: Retries | None = None,
        ids: Callable[[], str] = random_id,
        workers: int = 32,
        max_streams: int = 8,
        opening_s: float = OPENING_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self.services = all_services() if services is None else tuple(services)
        self._pipeline = Pipeline(
            access,
            observers or Observers(),
            log=logging.getLogger("skiway.rpc"),
            status_of=lambda error: code_of(error).name,
        )
        self._retrying = (retries or Retries()).retrying(
            on_retry=lambda state: self._pipeline.count_retry(state.args[0].operation)
        )
        self._disclosure = disclosure or Errors()
        self._ids = ids
        self._max_streams = max_streams
        self._free_streams = threading.Semaphore(max_streams)
        self._threads = FairThreads(workers, "rpc", per_lane=lane_share(workers))
        self._watch = StreamWatch(opening_s=opening_s, idle_s=idle_s)

    @property
    def service_names(self) -> tuple[str, ...]:
        """The full names of the services, for health and reflection."""
        return tuple(service.full_name for service in self.services)

    def add_to(self, server: grpc.Server | Transport) -> None:
        """Serve on `server`, next to its other services."""
        lanes = self._pipeline.access.lanes
        methods = [
            self._method(f"/{service.full_name}/{method.name}", method)
            for service in self.services
            for method in service.methods()
        ]
        server.add_generic_rpc_handlers((transport.Methods(methods, lanes.of, lanes.credentials),))

    def close(self) -> None:
        """End the threads, once no calls run."""
        self._watch.close()
        self._threads.shutdown()

    def _method(self, path: str, method: Method) -> transport.Method:
        """The method for a transport. A request that cannot be decoded is an error like any other, so it stays bytes."""
        if method.answers_many:
            return self._sender(path, method)

        def serve(messages: Iterator[bytes], client: grpc.ServicerContext) -> bytes:
            return self._serve(self._open(method, client), messages)

        return transport.Method(path, serve, self._threads, is_single=not method.streamed)

    def _sender(self, path: str, method: Method) -> transport.Method:
        """A method that sends messages while it runs, so that the whole response is inside the pipeline."""

        def serve(
            messages: Iterator[bytes], client: grpc.ServicerContext, send: Callable[[bytes | None], None]
        ) -> None:
            call = self._open(method, client)

            def send_counted(message: bytes) -> None:
                call.transferred(len(message))
                send(message)

            call.send = send_counted
            self._serve(call, messages)
            send(None)  # ends the response

        return transport.Method(path, serve, self._threads, answers="sends", is_single=not method.streamed)

    def _open(self, method: Method, client: grpc.ServicerContext) -> RpcCall:
        headers = {name: value for name, value in client.invocation_metadata() if isinstance(value, str)}
        context, invalid = read_context(headers, method.operation.full_name, ids=self._ids, is_active=client.is_active)
        return RpcCall(method.operation, headers, context, invalid, method=method, client=client)

    def _serve(self, call: RpcCall, messages: Iterator[bytes]) -> bytes:
        echoed = echo_headers(call.context)
        with contextlib.suppress(grpc.RpcError):  # the client may be gone already; `require_client` finds out
            call.client.send_initial_metadata(echoed)
        call.client.set_trailing_metadata(echoed)
        try:
            with self._pipeline.observe(call):
                self._pipeline.admit(call)
                with self._stream_slot(call.method), self._watch.watched(call.client) as client:
                    received = _counted(call, client.received(messages))
                    request = received if call.method.streamed else client.only(messages)
                    call.transferred(len(request) if isinstance(request, bytes) else 0)
                    call.watch(client)
                    if call.method.answers_many:
                        call.renew = self._pipeline.renewal(call)
                    answer = handle(call, self._realm(call), self._retrying, request)
                    call.transferred(len(answer))
                    return answer
        except Exception as error:  # noqa: BLE001  (errors become statuses here)
            self._abort(call, error)

    def _realm(self, call: RpcCall) -> Realm:
        """Where the method runs: callers with the platform's permission act on all accounts, others in their own, or on a branch."""
        realm = self._pipeline.realm(call)
        if named := unquote(call.headers.get(BRANCH, "")):
            if call.method.rule.branch is None:
                raise PreconditionFailed(
                    f"{call.operation.full_name} works on main only: leave out the header {BRANCH}, or change the branch"
                    " over Airport or Iceberg REST",
                    key="branch.main_only",
                )
            return call.method.rule.branch(realm, named)
        acts_on_all = call.decision is not None and call.decision.everywhere(MANAGES_ACCOUNTS)
        return replace(realm, account_id=PLATFORM) if call.method.service.for_platform and acts_on_all else realm

    @contextlib.contextmanager
    def _stream_slot(self, method: Method) -> Iterator[None]:
        """Refuse a stream beyond the limit instead of queueing it: each one holds a thread."""
        if not method.streamed and not method.answers_many:
            yield
            return
        if not self._free_streams.acquire(blocking=False):
            raise LimitExceeded(
                f"{self._max_streams} calls stream to or from this server, which is its limit: try again in a moment",
                key="streams.limit",
                limit=str(self._max_streams),
            )
        try:
            yield
        finally:
            self._free_streams.release()

    def _abort(self, call: RpcCall, error: Exception) -> Never:
        locale = call.principal.locale if call.principal else ""
        spoken = language(call.headers.get(LANGUAGE, ""), locale)
        failure = failure_of(error, call.context, language=spoken, disclosure=self._disclosure)
        call.client.set_trailing_metadata((*echo_headers(call.context), (DETAILS, failure.details)))
        call.client.abort(failure.code, failure.message)


def _counted(call: RpcCall, messages: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of a stream, counted towards the quotas as they arrive."""
    for message in messages:
        call.transferred(len(message))
        yield message
