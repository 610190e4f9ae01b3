"""A gRPC server on loopback for tests, callers with tokens, and a client that returns status, headers and message."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc import status_pb2

from metastore.resource_factory import ResourceFactory
from rpc.requests import warehouse
from skiway.errors import Unauthorized
from skiway.metastore import Realm
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.table_maintenance import MaintenanceArea
from skiway.metastore.transactions import StagingArea
from skiway.model import v1
from skiway.request_path import Access, Observers, Retries
from skiway.rpc import Door, Method, Rule, Service, all_services
from skiway.security import Authenticator, MemorySecrets, PermissionAuthorizer, Principal
from skiway.security.authentication import MANAGES_ACCOUNTS, READ
from skiway.storage import Stores, utc_now
from skiway.telemetry.audit import AuditLog
from skiway.telemetry.definitions import RPC_REQUESTS
from skiway.telemetry.metrics import Metrics
from skiway.telemetry.traces import Traces

behavior = pytest.mark.behavior

SERVICES = all_services(
    reconciler=Reconciler(MemorySecrets(), warehouse=warehouse()),
    staging=StagingArea(warehouse()),
    maintenance=MaintenanceArea(warehouse()),
)
METHODS = {method.operation.full_name: method for service in SERVICES for method in service.methods()}
EVERYTHING = frozenset(
    permission for service in SERVICES for rule in service.rules.values() for permission in rule.permissions
)


def principal(subject: str, *permissions: str, account_id: str = "a1", locale: str = "") -> Principal:
    return Principal(subject, account_id, frozenset({"tester"}), frozenset(permissions), locale=locale)


class Callers:
    """An authenticator whose tokens are the names of callers."""

    def __init__(self, *known: Principal) -> None:
        self._known = {each.subject: each for each in known}

    def add(self, caller: Principal, *, name: str = "") -> None:
        self._known[name or caller.subject] = caller

    def forget(self, name: str) -> None:
        del self._known[name]

    def authenticate(self, headers: Mapping[str, str]) -> Principal:
        name = headers.get("authorization", "").removeprefix("Bearer ")
        if name not in self._known:
            raise Unauthorized("this call has no token that is known here: send one", key="token.missing")
        return self._known[name]


class RecordedSleep:
    """A sleep function that returns immediately and records the durations."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


@dataclass(frozen=True)
class Answer:
    """Everything that a call returned."""

    code: grpc.StatusCode
    text: str
    message: Any
    headers: dict[str, str]
    trailers: dict[str, str | bytes]

    @property
    def status(self) -> status_pb2.Status:
        details = self.trailers["grpc-status-details-bin"]
        assert isinstance(details, bytes)
        return status_pb2.Status.FromString(details)

    @property
    def error(self) -> v1.Error:
        return self.detail(v1.Error)

    def detail(self, kind: type[Any]) -> Any:
        found = [each for each in self.status.details if each.Is(kind.DESCRIPTOR)]
        assert len(found) == 1, f"{len(found)} details of {kind.__name__} in {self.status}"
        unpacked = kind()
        found[0].Unpack(unpacked)
        return unpacked

    def has(self, kind: type[Any]) -> bool:
        return any(each.Is(kind.DESCRIPTOR) for each in self.status.details)


@dataclass(frozen=True)
class Client:
    """Calls methods by name and returns the complete answer, including that of errors."""

    channel: grpc.Channel
    caller: str = "everybody"

    def as_(self, caller: str) -> Client:
        return Client(self.channel, caller)

    def __call__(self, operation: str, request: Any = None, *, timeout: float | None = 200, **headers: str) -> Answer:
        """`request` is a message, or bytes, or a list of either for a client-streaming method."""
        call = self.begin(operation, request, timeout=timeout, **headers)
        try:
            message = call.result()
        except grpc.RpcError:
            message = None
        return Answer(
            call.code(),
            call.details() or "",
            message,
            _plain(call.initial_metadata()),
            _plain(call.trailing_metadata()),
        )

    def begin(self, operation: str, request: Any = None, *, timeout: float | None = 200, **headers: str) -> Any:
        """Start the call without waiting for its result."""
        service, name = operation.split("/")
        path = f"/{service if '.' in service else f'skiway.v1.{service}'}/{name}"
        metadata = [(key.replace("_", "-"), value) for key, value in headers.items()]
        if self.caller:
            metadata.append(("authorization", f"Bearer {self.caller}"))
        method = METHODS.get(operation)
        if method is not None and method.streamed:
            stub = self.channel.stream_unary(path, _encoded, _answer_of(method).FromString)
            sent = request if isinstance(request, Iterable) and not isinstance(request, bytes) else [request]
            return stub.future(iter(sent), metadata=metadata, timeout=timeout)
        if method is not None and method.answers_many:
            return Streamed(
                self.channel.unary_stream(path, _encoded, _answer_of(method).FromString), request, metadata, timeout
            )
        decode = _answer_of(method).FromString if method else None
        if request is None and method is not None:
            request = method.request()
        stub = self.channel.unary_unary(path, _encoded, decode)
        return stub.future(request or b"", metadata=metadata, timeout=timeout)


class Streamed:
    """A server-streaming call with the interface of a unary one: its result is the list of all messages."""

    def __init__(self, stub: Any, request: Any, metadata: list[tuple[str, str]], timeout: float | None) -> None:
        self._call = stub(request, metadata=metadata, timeout=timeout)

    def result(self) -> Messages:
        return Messages(self._call)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._call, name)


class Messages(list[Any]):
    """All messages of a streamed answer."""

    def ByteSize(self) -> int:
        return sum(each.ByteSize() for each in self)


def _encoded(request: Message | bytes) -> bytes:
    return request if isinstance(request, bytes) else request.SerializeToString()


def _answer_of(method: Method) -> type[Message]:
    return GetMessageClass(method.service.descriptor.methods_by_name[method.name].output_type)


def _plain(metadata: Any) -> dict[str, Any]:
    return dict(metadata or ())


class Watch(grpc.ServerInterceptor):
    """Records the server's side of each call."""

    def __init__(self) -> None:
        self.contexts: list[grpc.ServicerContext] = []

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if handler is None or handler.response_streaming:
            return handler

        def serve(messages: Any, context: grpc.ServicerContext) -> Any:
            self.contexts.append(context)
            return handler.stream_unary(messages, context)

        return grpc.stream_unary_rpc_method_handler(serve)


@dataclass
class RpcServer:
    """A gRPC server over one store, with callers; `client` has all permissions in account `a1`."""

    factory: ResourceFactory
    callers: Callers
    client: Client
    sleeps: RecordedSleep
    door: Door
    watch: Watch
    address: str

    @property
    def active(self) -> bool:
        """Whether the server still considers any call active."""
        return any(context.is_active() for context in self.watch.contexts)


@contextmanager
def opened(
    stores: Stores,
    *,
    services: Iterable[Service] = SERVICES,
    realm_of: Callable[[ResourceFactory, Principal], Realm] | None = None,
    options: tuple[tuple[str, Any], ...] = (),
    workers: int = 4,
    authenticator: Authenticator | None = None,
    retries: Retries | None = None,
    credentials: tuple[str, ...] = ("authorization",),
    metrics: Metrics | None = None,
    traces: Traces | None = None,
    audit: AuditLog | None = None,
    **arguments: Any,
) -> Iterator[RpcServer]:
    """Start a server whose door gets `arguments`."""
    factory = ResourceFactory(stores, utc_now)
    sleeps = RecordedSleep()
    callers = Callers(
        principal("everybody", *EVERYTHING, MANAGES_ACCOUNTS),
        principal("member", *EVERYTHING),
        principal("reader", *READ),
        principal("stranger", *EVERYTHING, account_id="a2"),
        principal("platform", *EVERYTHING, MANAGES_ACCOUNTS, account_id=""),
    )
    find = realm_of or (lambda factory, caller: factory.realm(caller.account_id))
    door = Door(
        Access(lambda caller: find(factory, caller), authenticator or callers, PermissionAuthorizer(), credentials),
        Observers(metrics or Metrics(enabled=False), traces or Traces(), audit),
        services=services,
        retries=retries or Retries(sleep=sleeps, random=lambda: 0.5),
        **arguments,
    )
    threads = ThreadPoolExecutor(workers)
    watch = Watch()
    server = grpc.server(threads, options=options, interceptors=(watch,))
    door.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield RpcServer(factory, callers, Client(channel), sleeps, door, watch, f"127.0.0.1:{port}")
    finally:
        server.stop(None).wait()
        threads.shutdown()  # wait for running calls
        door.close()


def until(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    """Poll until the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition never became true"


def counted(metrics: Metrics) -> dict[str, str]:
    """The last outcome of each method, according to the metrics."""
    families = [each for each in metrics.collect() if each.metric is RPC_REQUESTS]
    return {point.tags[2]: point.tags[3] for family in families for point in family.points}


def serving(operation: str, act: Callable[[Realm, Any], Message]) -> tuple[Service, ...]:
    """All services, with one method replaced."""
    service_name, name = operation.split("/")

    def replaced(service: Service) -> Service:
        if service.name != service_name:
            return service
        rule = service.rules[name]
        rules = {**service.rules, name: Rule(act, rule.permissions, rule.changes)}
        return Service(service.descriptor, service.category, rules, service.for_platform)

    return tuple(map(replaced, SERVICES))


def raising(error: Exception, operation: str = "CatalogService/ListCatalogs") -> tuple[Service, ...]:
    """All services, one method of which raises."""

    def act(realm: Realm, request: Any) -> Message:
        raise error

    return serving(operation, act)
