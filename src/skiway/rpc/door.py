"""The gRPC door to the metastore: all services, each call through the same layers.

in_context    what the call is known by; its ids go back to the caller
told          errors become statuses
observed      metrics, a span, the audit trail
admitted      who calls, and may they
acted         decode, call one function of the metastore, encode
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import grpc

from skiway.metastore.records.realm import Realm, random_id
from skiway.rpc.acting import Patience, acted
from skiway.rpc.admission import admitted, streaming_few
from skiway.rpc.answering import in_context, told
from skiway.rpc.calls import open_call
from skiway.rpc.methods import Method, Service
from skiway.rpc.observing import audited, counted, logged, retry_counter, traced
from skiway.rpc.services import all_services
from skiway.rpc.status import Disclosure
from skiway.security import Authenticator, Authorizer, Principal
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces

__all__ = ["Door"]


class Door:
    """Serves `services`, by default all, for callers that `authenticator` knows, each in the realm that `realm_of` gives them.

    `credentials` are the headers callers authenticate with, to be sent on to services called on their behalf.
    `max_streams` calls may stream at a time, as each holds a thread of the server while its client sends.
    """

    def __init__(
        self,
        realm_of: Callable[[Principal], Realm],
        authenticator: Authenticator,
        authorizer: Authorizer,
        *,
        services: Iterable[Service] | None = None,
        metrics: Metrics | None = None,
        traces: Traces | None = None,
        audit: AuditLog | None = None,
        disclosure: Disclosure | None = None,
        patience: Patience | None = None,
        credentials: tuple[str, ...] = ("authorization",),
        ids: Callable[[], str] = random_id,
        max_streams: int = 8,
    ) -> None:
        self.services = all_services() if services is None else tuple(services)
        self._ids = ids
        metrics = metrics or Metrics(enabled=False)
        layers = acted(realm_of, patience or Patience(), on_retry=retry_counter(metrics))
        layers = streaming_few(layers, max_streams)
        layers = admitted(layers, authenticator, authorizer, credentials=credentials)
        layers = audited(layers, audit)
        layers = counted(layers, metrics)
        layers = logged(layers, logging.getLogger("skiway.rpc"))
        layers = traced(layers, traces)
        layers = told(layers, disclosure or Disclosure())
        self._handle = in_context(layers)

    @property
    def service_names(self) -> tuple[str, ...]:
        """What is served, by full names: for health and reflection."""
        return tuple(service.full_name for service in self.services)

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`, beside whatever else it serves."""
        for service in self.services:
            handlers = {method.name: self._handler(method) for method in service.methods()}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        if method.answers_many:
            return self._sender(method)
        make = grpc.stream_unary_rpc_method_handler if method.streamed else grpc.unary_unary_rpc_method_handler

        def serve(request: Any, client: grpc.ServicerContext) -> bytes:
            return self._handle(open_call(method, client, ids=self._ids), request)

        return make(serve)  # no codecs: the layers see bytes, so that what cannot be decoded is told like other errors

    def _sender(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that sends messages while it is called, so that all layers are around all of them."""

        def serve(request: Any, client: grpc.ServicerContext, send: Callable[[bytes | None], None]) -> None:
            call = open_call(method, client, ids=self._ids)
            call.send = send
            self._handle(call, request)
            send(None)  # which ends the answer

        serve.experimental_non_blocking = True  # type: ignore[attr-defined]  # how gRPC knows that it sends by itself
        return grpc.unary_stream_rpc_method_handler(serve)
