"""The gRPC door: all services of the metastore, each call through the request pipeline."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Never

import grpc

from skiway.config.server import Errors
from skiway.errors import LimitExceeded
from skiway.metastore.records.realm import random_id
from skiway.requests import Access, Observers, Pipeline, Retries, echo_headers, read_context
from skiway.rpc.handlers import RpcCall, handle
from skiway.rpc.methods import Method, Service
from skiway.rpc.services import all_services
from skiway.rpc.status import DETAILS, code_of, failure_of, language

__all__ = ["Door"]

LANGUAGE: Final = "accept-language"


class Door:
    """Serves `services`, by default all, to the callers that `access` admits.

    `max_streams` calls may stream at a time, because each holds a thread of the server while its client sends.
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
        max_streams: int = 8,
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

    @property
    def service_names(self) -> tuple[str, ...]:
        """The full names of the services, for health and reflection."""
        return tuple(service.full_name for service in self.services)

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`, next to its other services."""
        for service in self.services:
            handlers = {method.name: self._handler(method) for method in service.methods()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        if method.answers_many:
            return self._sender(method)
        make = grpc.stream_unary_rpc_method_handler if method.streamed else grpc.unary_unary_rpc_method_handler

        def serve(request: Any, client: grpc.ServicerContext) -> bytes:
            return self._serve(self._open(method, client), request)

        return make(serve)  # no codecs: a request that cannot be decoded is an error like any other

    def _sender(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that sends messages while it runs, so that the whole response is inside the pipeline."""

        def serve(request: Any, client: grpc.ServicerContext, send: Callable[[bytes | None], None]) -> None:
            call = self._open(method, client)
            call.send = send
            self._serve(call, request)
            send(None)  # ends the response

        serve.experimental_non_blocking = True  # type: ignore[attr-defined]  # tells gRPC that the handler sends itself
        return grpc.unary_stream_rpc_method_handler(serve)

    def _open(self, method: Method, client: grpc.ServicerContext) -> RpcCall:
        headers = {name: value for name, value in client.invocation_metadata() if isinstance(value, str)}
        context, invalid = read_context(headers, method.operation.full_name, ids=self._ids)
        return RpcCall(method.operation, headers, context, invalid, method=method, client=client)

    def _serve(self, call: RpcCall, request: object) -> bytes:
        echoed = echo_headers(call.context)
        with contextlib.suppress(grpc.RpcError):  # the client may be gone already; `require_client` finds out
            call.client.send_initial_metadata(echoed)
        call.client.set_trailing_metadata(echoed)
        try:
            with self._pipeline.observe(call):
                self._pipeline.admit(call)
                with self._stream_slot(call.method):
                    return handle(call, self._pipeline.access.realm_of, self._retrying, request)
        except Exception as error:  # noqa: BLE001  (errors become statuses here)
            self._abort(call, error)

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
