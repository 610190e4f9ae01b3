"""The gRPC door: all services of the metastore, each call through the request pipeline."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Never

import grpc

from skiway.config.server import Errors
from skiway.errors import LimitExceeded
from skiway.fairness import FairThreads, lane_share
from skiway.metastore import PLATFORM, Realm
from skiway.metastore.records.realm import random_id
from skiway.requests import Access, Lanes, Observers, Pipeline, Retries, echo_headers, read_context
from skiway.rpc.handlers import RpcCall, handle
from skiway.rpc.methods import Method, Service
from skiway.rpc.services import all_services
from skiway.rpc.status import DETAILS, code_of, failure_of, language
from skiway.security.principals import MANAGES_ACCOUNTS
from skiway.streams import IDLE_S, OPENING_S, StreamWatch

__all__ = ["Door"]

LANGUAGE: Final = "accept-language"


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

    def add_to(self, server: grpc.Server) -> None:
        """Serve on `server`, next to its other services."""
        for service in self.services:
            handlers = {f"/{service.full_name}/{method.name}": self._handler(method) for method in service.methods()}
            server.add_generic_rpc_handlers((_Handlers(handlers, self._threads, self._pipeline.access.lanes),))

    def close(self) -> None:
        """End the threads, once no calls run."""
        self._watch.close()
        self._threads.shutdown()

    def _handler(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of a method.

        All methods are served as if clients streamed their requests: gRPC would occupy a thread until the request arrives,
        before anybody knows who calls. There are no codecs, so that a request that cannot be decoded is an error like any
        other.
        """
        if method.answers_many:
            return self._sender(method)

        def serve(messages: Iterator[bytes], client: grpc.ServicerContext) -> bytes:
            return self._serve(self._open(method, client), messages)

        return grpc.stream_unary_rpc_method_handler(serve)

    def _sender(self, method: Method) -> grpc.RpcMethodHandler[Any, Any]:
        """A handler that sends messages while it runs, so that the whole response is inside the pipeline."""

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

        serve.experimental_non_blocking = True  # type: ignore[attr-defined]  # tells gRPC that the handler sends itself
        return grpc.stream_stream_rpc_method_handler(serve)

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
        """Where the method runs: callers with the platform's permission act on all accounts, others in their own."""
        realm = self._pipeline.realm(call)
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


class _Handlers(grpc.GenericRpcHandler):
    """Finds the handler of a call, which runs in the lane of its caller."""

    def __init__(
        self, handlers: Mapping[str, grpc.RpcMethodHandler[Any, Any]], threads: FairThreads, lanes: Lanes
    ) -> None:
        self._handlers, self._threads, self._lanes = handlers, threads, lanes

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any] | None:
        handler = self._handlers.get(handler_call_details.method)
        if handler is None:
            return None
        lane = self._lanes.of(dict(handler_call_details.invocation_metadata))
        found: grpc.RpcMethodHandler[Any, Any] = self._threads.serve(handler, lane)
        return found
