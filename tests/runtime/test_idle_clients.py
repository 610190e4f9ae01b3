"""Clients that open calls and send nothing block neither work nor health checks, and their calls end."""

from __future__ import annotations

import os
import resource
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from skiway.airport import AirportService, BearerAuth, CatalogBuilder, Limits
from skiway.config.server import Grpc, Http
from skiway.errors import Unauthorized
from skiway.metastore import Realm
from skiway.model import flight_pb2 as flight
from skiway.request_path import Access, Operators
from skiway.rpc import Door
from skiway.runtime.grpc.door import GrpcDoor, Health
from skiway.runtime.http.connections import Connections
from skiway.runtime.http.door import HttpDoor
from skiway.security import PermissionAuthorizer, Principal, Roles
from skiway.storage import open_stores

FLIGHT = "/arrow.flight.protocol.FlightService/"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"
CHECK = "/grpc.health.v1.Health/Check"
TOKEN = (("authorization", "Bearer secret"),)
Code = grpc.StatusCode


class ByToken:
    def authenticate(self, headers: Any) -> Principal:
        if headers.get("authorization") != "Bearer secret":
            raise Unauthorized("who are you?")
        return Principal("ada", "a1", frozenset({"administrator"}), Roles().permissions(["administrator"]))


@contextmanager
def served(*, opening_s: float = 30, idle_s: float = 30, **settings: Any) -> Iterator[str]:
    """All services of a process on one port, with few threads, and without a store behind them."""
    stores = open_stores("memory://")
    access = Access(lambda _: Realm(stores, "a1"), ByToken(), PermissionAuthorizer(Roles()))
    rpc = Door(access, opening_s=opening_s, idle_s=idle_s)
    limits = Limits(calls=4, scans=4, exchanges=4, handshakes=2, opening_s=opening_s, idle_s=idle_s)
    airport = AirportService(CatalogBuilder("demo").build(), auth=BearerAuth({"secret": "ada"}.get), limits=limits)
    health = Health()
    configured = Grpc(address="127.0.0.1:0", workers=4, drain_seconds=0, **settings)
    door = GrpcDoor({"rpc": ""}, [rpc, airport, health], configured, operators=Operators.of(access, ("127.0.0.1/32",)))
    try:
        with health.serving():
            yield door.start()["rpc"]
    finally:
        door.drain()
        door.close()
        for part in (rpc, airport, health):
            part.close()
        stores.close()


class IdleCalls:
    """Calls that are open and send nothing."""

    def __init__(self, address: str) -> None:
        self._address, self._stop = address, threading.Event()
        self._channels = ExitStack()
        self._calls: list[Any] = []  # a call that nobody refers to is cancelled

    def __enter__(self) -> IdleCalls:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._channels.close()

    def open(self, method: str, count: int, *, metadata: Any = (), timeout: float | None = None) -> list[Any]:
        channel = self._channels.enter_context(grpc.insecure_channel(self._address))
        calls = [
            channel.stream_stream(method)(self._nothing(), metadata=metadata, timeout=timeout) for _ in range(count)
        ]
        grpc.channel_ready_future(channel).result(timeout=200)
        self._calls += calls
        return calls

    def _nothing(self) -> Iterator[bytes]:
        self._stop.wait(200)
        yield from ()


def is_served(address: str) -> bool:
    """Whether a health check, a call of the metastore and one of Airport are answered."""
    with grpc.insecure_channel(address) as channel:
        answer = channel.unary_unary(CHECK)(b"", timeout=200)
        assert health_pb2.HealthCheckResponse.FromString(answer).status == health_pb2.HealthCheckResponse.SERVING
        channel.unary_unary("/skiway.v1.CatalogService/ListCatalogs")(b"", timeout=200, metadata=TOKEN)
        action = flight.Action(type="list_schemas", body=b"\x81\xaccatalog_name\xa4demo").SerializeToString()
        return len(list(channel.unary_stream(FLIGHT + "DoAction")(action, timeout=200, metadata=TOKEN))) == 1


@pytest.mark.parametrize(
    "method",
    [
        REFLECTION,
        REFLECTION.replace("v1alpha", "v1"),
        CHECK,
        CHECK.replace("Check", "Watch"),
        "/skiway.v1.CatalogService/ListCatalogs",
        "/skiway.v1.TableStatisticsService/PutTargetStats",
        *(
            FLIGHT + name
            for name in ("Handshake", "ListFlights", "GetFlightInfo", "DoGet", "DoAction", "DoExchange", "DoPut")
        ),
    ],
)
def test_idle_calls_without_a_token_block_nothing(method: str) -> None:
    with served() as address, IdleCalls(address) as idle:
        for _ in range(3):
            idle.open(method, 32)
        assert is_served(address)


def test_handshakes_never_share_threads_with_other_calls() -> None:
    with served() as address, IdleCalls(address) as idle:
        calls = idle.open(FLIGHT + "Handshake", 16, metadata=TOKEN)
        assert is_served(address)
        deadline = time.monotonic() + 200
        while sum(call.done() for call in calls) < 14 and time.monotonic() < deadline:
            time.sleep(0.01)
        ended = [call.code() for call in calls if call.done()]
        assert ended == [Code.RESOURCE_EXHAUSTED] * 14  # at most two may be open


def test_handshakes_and_exchanges_have_threads_of_their_own() -> None:
    threads: dict[str, str] = {}

    def owner(token: str) -> str:
        threads[token] = threading.current_thread().name.rpartition("_")[0]
        return "ada"

    service = AirportService(CatalogBuilder("demo").build(), auth=BearerAuth(owner))
    server = grpc.server(ThreadPoolExecutor(1, "common"))
    service.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name in ("Handshake", "DoExchange", "DoPut", "DoGet", "DoAction"):
            call = channel.stream_stream(FLIGHT + name)(iter([b""]), metadata=(("authorization", f"Bearer {name}"),))
            with suppress(grpc.RpcError):
                list(call)
    server.stop(0).wait()
    service.close()
    assert threads.keys() == {"Handshake", "DoExchange", "DoPut", "DoGet", "DoAction"}
    alone = threads.pop("Handshake")
    assert alone not in threads.values()
    assert "common" not in {alone, *threads.values()}
    assert threads["DoExchange"] == threads["DoPut"]
    assert len(set(threads.values())) == 3


@pytest.mark.parametrize(
    "method",
    [
        "/skiway.v1.CatalogService/ListCatalogs",
        *(FLIGHT + name for name in ("Handshake", "DoAction", "DoGet", "DoExchange")),
    ],
)
def test_call_without_a_request_ends(method: str) -> None:
    with served(opening_s=0.2) as address, IdleCalls(address) as idle:
        (call,) = idle.open(method, 1, metadata=(*TOKEN, ("airport-operation", "insert")), timeout=200)
        assert call.code() is Code.DEADLINE_EXCEEDED
        assert "sent no request for 0.2 s, which is the limit of this server" in call.details()


def test_stream_that_stays_idle_ends() -> None:
    with served(idle_s=0.2) as address, grpc.insecure_channel(address) as channel:
        sent, stop = flight.HandshakeRequest(payload=b"hello").SerializeToString(), threading.Event()

        def messages() -> Iterator[bytes]:
            yield sent
            stop.wait(200)

        call = channel.stream_stream(FLIGHT + "Handshake")(messages(), metadata=TOKEN, timeout=200)
        assert flight.HandshakeResponse.FromString(next(call)).payload == b"hello"
        assert call.code() is Code.DEADLINE_EXCEEDED
        assert "neither sent nor read anything for 0.2 s" in call.details()
        stop.set()


# -- HTTP -------------------------------------------------------------------------------------------------------------


async def read_all(request: Request) -> Response:
    return Response(str(len(await request.body())))


@pytest.fixture
def cut() -> list[bool]:
    """Whether each response of `/much` was cut: its client was gone when it had been sent."""
    return []


@pytest.fixture
def header_seconds() -> float:
    return 0.3


@pytest.fixture
def http(cut: list[bool], header_seconds: float) -> Iterator[tuple[str, int]]:
    async def much(request: Request) -> Response:
        async def parts() -> AsyncIterator[bytes]:
            yield b"x" * 16_000_000
            yield b"waits until the client has read the rest"
            cut.append(await request.is_disconnected())

        return StreamingResponse(parts())

    app = Starlette(routes=[Route("/read", read_all, methods=["POST"]), Route("/much", much)])
    settings = Http(address="127.0.0.1:0", header_seconds=header_seconds, body_seconds=0.3, max_connections=20)
    door = HttpDoor(app, settings, drain_s=0.1)
    host, _, port = door.start()["http"].removeprefix("http://").partition(":")
    yield host, int(port)
    door.drain()
    door.close()


def closed(client: socket.socket) -> bool:
    client.settimeout(10)
    with suppress(ConnectionResetError):
        while client.recv(1 << 20):
            pass
    return True


@pytest.mark.parametrize("start", [b"", b"POST /read HTTP/1.1\r\nhost: x\r\n"])
def test_connection_whose_headers_do_not_arrive_is_closed(http: tuple[str, int], start: bytes) -> None:
    with socket.create_connection(http) as client:
        client.sendall(start)
        assert closed(client)


def test_headers_byte_by_byte_do_not_extend_the_deadline(http: tuple[str, int]) -> None:
    with socket.create_connection(http) as client:
        started = time.monotonic()
        with suppress(ConnectionError):
            for byte in b"GET /read HTTP/1.1\r\nhost: x\r\n" + b"a" * 500:
                client.sendall(bytes([byte]))
                time.sleep(0.02)
        assert time.monotonic() - started < 5


COMPLETE = b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab"


@pytest.mark.parametrize("header_seconds", [60.0])  # no other limit closes them
@pytest.mark.parametrize("before", [b"", COMPLETE], ids=["first request", "second request"])
@pytest.mark.parametrize("more", [b"a" * 1000, b"name: value\r\n" * 100], ids=["one header", "many headers"])
def test_endless_headers_are_rejected(http: tuple[str, int], before: bytes, more: bytes) -> None:
    with socket.create_connection(http) as client:
        client.sendall(before + b"GET /read HTTP/1.1\r\nhost: ")
        sent = 0
        with suppress(ConnectionError):
            while sent < 100_000_000:
                client.sendall(more)
                sent += len(more)
        assert sent < 10_000_000


def test_connection_whose_response_is_not_read_is_closed(http: tuple[str, int], cut: list[bool]) -> None:
    with socket.create_connection(http) as client:
        client.sendall(b"GET /much HTTP/1.1\r\nhost: x\r\n\r\n")
        deadline = time.monotonic() + 200
        while not cut and time.monotonic() < deadline:
            time.sleep(0.01)
    assert cut == [True]


def test_requests_on_one_connection_have_a_deadline_each(http: tuple[str, int]) -> None:
    with socket.create_connection(http) as client:
        for _ in range(3):
            client.sendall(b"POST /read HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\nab")
            response = client.makefile("rb")
            assert b"200" in response.readline()
            while response.readline().strip():
                pass
            assert response.read(1) == b"2"
            time.sleep(0.2)


def answered(client: socket.socket) -> bool:
    client.settimeout(10)
    client.sendall(COMPLETE)
    received = b""
    while not received.endswith(b"\r\n\r\n2"):
        received += (part := client.recv(1000))
        if not part:
            return False
    return received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("header_seconds", [60.0])  # no other limit closes them
def test_connection_beyond_the_limit_replaces_the_oldest_unfinished_one(http: tuple[str, int]) -> None:
    with ExitStack() as stack:
        serving = stack.enter_context(socket.create_connection(http))
        assert answered(serving)
        clients = [stack.enter_context(socket.create_connection(http)) for _ in range(20)]
        assert closed(clients[0])
        assert answered(clients[-1])
        assert answered(serving)


@pytest.mark.parametrize("header_seconds", [60.0])
def test_connection_beyond_the_limit_replaces_an_idle_one_if_no_request_is_unfinished(http: tuple[str, int]) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(http)) for _ in range(20)]
        assert all(answered(client) for client in clients)
        assert answered(stack.enter_context(socket.create_connection(http)))
        assert closed(clients[0])
        assert answered(clients[1])


def test_unfinished_connections_of_one_address_are_limited() -> None:
    now = [0.0]
    connections = Connections(Http(max_connections=100, max_unfinished_per_address=3), lambda: now[0])
    theirs: list[Any] = [FakeConnection("10.0.0.2") for _ in range(2)]
    mine: list[Any] = [FakeConnection("10.0.0.1") for _ in range(5)]
    assert all(connections.opened(each) for each in [*theirs, *mine])
    assert not any(each.transport.aborted for each in mine)  # they have just been opened
    now[0] = 5.0
    late: list[Any] = [FakeConnection("10.0.0.1") for _ in range(2)]
    assert all(connections.opened(each) for each in late)
    assert [each.transport.aborted for each in mine] == [True, True, False, False, False]
    connections.serving(mine[2])
    assert connections.shed(1) == 1
    assert [each.transport.aborted for each in [*theirs, *mine[2:]]] == [False, False, False, True, False]


class FakeConnection:
    def __init__(self, address: str) -> None:
        self.address, self.transport = address, self  # what `Connections` uses
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True


def test_many_unfinished_headers_do_not_close_the_door() -> None:
    """1,100 connections, more than the default limit, while another client sends requests."""
    door = HttpDoor(
        Starlette(routes=[Route("/read", read_all, methods=["POST"])]), Http(address="127.0.0.1:0"), drain_s=0.1
    )
    host, _, port = door.start()["http"].removeprefix("http://").partition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))  # both ends are in this process
    try:
        with ExitStack() as stack:
            for _ in range(1100):
                stack.enter_context(socket.create_connection((host, int(port)))).sendall(b"GET / HTTP/1.1\r\nhost: ")
            started = time.monotonic()
            for _ in range(10):
                with socket.create_connection((host, int(port))) as client:
                    assert answered(client)
            assert time.monotonic() - started < 5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        door.drain()
        door.close()


@pytest.mark.parametrize(("keep_alive_seconds", "stays_open"), [(75.0, True), (0.1, False)])
def test_idle_connection_stays_open_as_long_as_configured(keep_alive_seconds: float, stays_open: bool) -> None:
    app = Starlette(routes=[Route("/read", read_all, methods=["POST"])])
    settings = Http(address="127.0.0.1:0", keep_alive_seconds=keep_alive_seconds)
    assert stays_open is (settings.keep_alive_seconds == Http().keep_alive_seconds)
    door = HttpDoor(app, settings, drain_s=0.1)
    host, _, port = door.start()["http"].removeprefix("http://").partition(":")
    try:
        with socket.create_connection((host, int(port))) as client:
            assert answered(client)
            if stays_open:
                time.sleep(5.5)  # uvicorn's own limit is 5 seconds
                assert answered(client)
            else:
                assert closed(client)
    finally:
        door.drain()
        door.close()


def test_too_many_open_files_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    door = HttpDoor(
        Starlette(routes=[Route("/read", read_all, methods=["POST"])]), Http(address="127.0.0.1:0"), drain_s=0.1
    )
    host, _, port = door.start()["http"].removeprefix("http://").partition(":")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    fillers: list[int] = []
    with ExitStack() as stack:
        stack.callback(door.close)
        stack.callback(door.drain)
        clients = [stack.enter_context(socket.socket()) for _ in range(5)]
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        resource.setrlimit(resource.RLIMIT_NOFILE, (clients[-1].fileno() + 10, hard))
        with suppress(OSError):
            while True:
                fillers.append(os.dup(clients[0].fileno()))
        for client in clients:
            client.connect((host, int(port)))
        time.sleep(2.5)  # asyncio tries again every second
        for filler in fillers:
            os.close(filler)
        logged = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
        assert len(logged) == 1
        assert "too many open files" in logged[0]
        assert "ulimit -n" in logged[0]
        assert all(answered(client) for client in clients)
