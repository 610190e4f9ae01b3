"""What doors rely on, whichever transport serves them. The client is that of grpcio, or a bare socket."""

from __future__ import annotations

import contextlib
import random
import resource
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import grpc
import pytest

from airport.certificates import Authority
from runtime.servers import eventually
from skiway.errors import Unsupported
from skiway.foundation import native, transport
from skiway.foundation.native import NATIVE, chosen, new_server
from skiway.foundation.threads import FairThreads, StreamWatch
from skiway.foundation.transport import Certificate, Method, Methods, Options

Code = grpc.StatusCode
MIB = 1024 * 1024
LONG_S = 200


TRANSPORTS = ("grpcio", "native") if find_spec(NATIVE) else ("grpcio",)
"""The native transport is tested where `make native` has built it."""


@pytest.fixture(params=TRANSPORTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Service:
    """A service with a method of every shape."""

    def __init__(self) -> None:
        self.threads = FairThreads(8, "test", per_lane=6, waiting=3)
        self.watch = StreamWatch(opening_s=0.3, idle_s=0.5)
        self.gone, self.go = threading.Event(), threading.Event()
        self.sent, self.called = 0, Counter[str]()
        self.errors: list[BaseException] = []

    def methods(self) -> Methods:
        one, many = (
            (self.echo, self.wait, self.fail, self.status, self.headers, self.left),
            (self.count, self.flood, self.pause),
        )
        methods = [Method(f"/t/{each.__name__}", each, self.threads) for each in one]
        methods += [Method(f"/t/{each.__name__}", each, self.threads, "many") for each in many]
        methods += [Method("/t/sends", self.sends, self.threads, "sends")]
        methods += [Method("/t/chat", self.chat, self.threads, "many", is_single=False)]
        methods += [Method("/t/total", self.total, self.threads, is_single=False)]
        return Methods(methods, lambda headers: str(headers.get("lane", "")))

    def echo(self, messages: Iterator[bytes], call: transport.Call) -> bytes:
        return next(messages)

    def wait(self, messages: Iterator[bytes], call: transport.Call) -> bytes:
        call.add_callback(self.gone.set)
        self.called["wait"] += 1
        self.go.wait(LONG_S)
        return b"waited"

    def fail(self, messages: Iterator[bytes], call: transport.Call) -> bytes:
        raise ValueError("a secret")

    def status(self, messages: Iterator[bytes], call: transport.Call) -> bytes:
        number = int(next(messages))
        code = next(each for each in Code if each.value[0] == number)
        call.set_trailing_metadata((("kind", "text"), ("kind-bin", b"\x00\xff\x01")))
        call.abort(code, "50% über\n")

    def headers(self, messages: Iterator[bytes], call: transport.Call) -> bytes:
        call.send_initial_metadata((("early", "1"),))
        call.set_trailing_metadata((("late", "2"), ("late", "3")))
        return repr(sorted((key, value) for key, value in call.invocation_metadata() if key[0] == "x")).encode()

    def left(self, messages: Iterator[bytes], call: transport.Call) -> bytes:
        left = call.time_remaining()
        return b"none" if left is None or left > 1e6 else b"some" if 0 < left <= 60 else b"wrong"

    def count(self, messages: Iterator[bytes], call: transport.Call) -> Iterator[bytes]:
        yield from (str(number).encode() for number in range(int(next(messages))))

    def pause(self, messages: Iterator[bytes], call: transport.Call) -> Iterator[bytes]:
        yield b"first"
        self.go.wait(LONG_S)
        yield b"second"

    def flood(self, messages: Iterator[bytes], call: transport.Call) -> Iterator[bytes]:
        message = bytes(MIB)
        self.called["flood"] += 1
        try:
            for _ in range(int(next(messages))):
                yield message
                self.sent += 1
        finally:
            self.gone.set()

    def sends(self, messages: Iterator[bytes], call: transport.Call, send: Any) -> None:
        first = next(messages)

        def later() -> None:
            send(first)
            send(b"")
            send(None)

        threading.Thread(target=later).start()

    def chat(self, messages: Iterator[bytes], call: transport.Call) -> Iterator[bytes]:
        try:
            with self.watch.watched(call) as client:  # type: ignore[arg-type]
                for message in client.received(messages):
                    yield message.upper()
            yield b"bye"
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            self.gone.set()

    def total(self, messages: Iterator[bytes], call: transport.Call) -> bytes:
        return str(sum(map(len, messages))).encode()


@contextlib.contextmanager
def serving(name: str, certificate: Certificate | None = None, **options: Any) -> Iterator[tuple[Service, str, Any]]:
    service, server = Service(), new_server(Options(**options), name)  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((service.methods(),))
    address = f"localhost:{server.listen('127.0.0.1:0', certificate)}"
    server.start()
    try:
        yield service, address, server
    finally:
        service.go.set()
        assert server.stop(0).wait(LONG_S)
        service.watch.close()
        assert service.threads.shutdown(wait_s=LONG_S)


@contextlib.contextmanager
def connected(name: str, **options: Any) -> Iterator[tuple[Service, grpc.Channel]]:
    with serving(name, **options) as (service, address, _), grpc.insecure_channel(address, CHANNEL) as channel:
        yield service, channel


CHANNEL = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]


def ask(channel: grpc.Channel, method: str, message: bytes = b"", **options: Any) -> Any:
    return channel.unary_unary(f"/t/{method}")(message, timeout=LONG_S, **options)


def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as raised:
        call()
    return raised.value.code()  # type: ignore[no-any-return, attr-defined]


# -- shapes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 32 * 1024 + 1, 3 * MIB])
def test_message_of_any_size_arrives_and_returns(name: str, size: int) -> None:
    message = random.Random(size).randbytes(size)
    with connected(name) as (_, channel):
        assert ask(channel, "echo", message) == message


def test_streams(name: str) -> None:
    with connected(name) as (_, channel):
        assert b"".join(channel.unary_stream("/t/count")(b"12")) == b"01234567891011"
        assert list(channel.unary_stream("/t/count")(b"0")) == []
        assert list(channel.unary_stream("/t/sends")(b"x")) == [b"x", b""]
        assert channel.stream_unary("/t/total")(iter([b"ab", b"", bytes(MIB)])) == str(MIB + 2).encode()
        assert channel.stream_unary("/t/total")(iter(())) == b"0"


def test_message_arrives_before_there_is_a_next_one(name: str) -> None:
    with connected(name) as (service, channel):
        stream: Any = channel.unary_stream("/t/pause")(b"", timeout=LONG_S)
        assert next(stream) == b"first"
        service.go.set()
        assert list(stream) == [b"second"]


def test_half_closed_stream_is_answered(name: str) -> None:
    with connected(name) as (service, channel):
        said: list[bytes] = []

        def messages() -> Iterator[bytes]:
            yield b"a"
            while not said:
                time.sleep(0.01)
            yield b"b"

        for answer in channel.stream_stream("/t/chat")(messages(), timeout=LONG_S):
            said.append(answer)
        assert said == [b"A", b"B", b"bye"]
        assert service.errors == []


# -- statuses and metadata ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [each for each in Code if each is not Code.OK])
def test_every_status_arrives_with_its_message_and_trailers(name: str, code: grpc.StatusCode) -> None:
    with connected(name) as (_, channel), pytest.raises(grpc.RpcError) as raised:
        ask(channel, "status", str(code.value[0]).encode())
    failed: Any = raised.value
    assert (failed.code(), failed.details()) == (code, "50% über\n")
    trailers = dict(failed.trailing_metadata())
    assert (trailers["kind"], trailers["kind-bin"]) == ("text", b"\x00\xff\x01")


def test_metadata(name: str) -> None:
    sent = [("x-text", "a b"), ("x-bin", b"\x00\xfe\xff"), ("x-two", "1"), ("x-two", "2"), ("x-empty", "")]
    with connected(name) as (_, channel):
        answer, call = channel.unary_unary("/t/headers").with_call(b"", metadata=sent, timeout=LONG_S)
    assert answer == repr(sorted(sent)).encode()
    assert ("early", "1") in call.initial_metadata()
    assert [value for key, value in call.trailing_metadata() if key == "late"] == ["2", "3"]


def test_fault_of_a_handler_is_unknown(name: str) -> None:
    with connected(name) as (_, channel):
        assert code_of(lambda: ask(channel, "fail")) is Code.UNKNOWN
        assert ask(channel, "echo", b"x") == b"x"


def test_unknown_method(name: str) -> None:
    with connected(name) as (_, channel):
        assert code_of(lambda: ask(channel, "nothing")) is Code.UNIMPLEMENTED


# -- ends -----------------------------------------------------------------------------------------------------------------


def test_deadline(name: str) -> None:
    with connected(name) as (service, channel):
        waiting = channel.unary_unary("/t/wait")
        assert code_of(lambda: waiting(b"", timeout=0.2)) is Code.DEADLINE_EXCEEDED
        while not service.gone.wait(2):  # on a busy machine, the deadline passed before the call arrived
            assert code_of(lambda: waiting(b"", timeout=2)) is Code.DEADLINE_EXCEEDED
        assert ask(channel, "left") == b"wrong"  # LONG_S is more than a minute
        assert channel.unary_unary("/t/left")(b"", timeout=50) == b"some"
        assert channel.unary_unary("/t/left")(b"") == b"none"


def test_cancelled_call_is_over(name: str) -> None:
    with connected(name) as (service, channel):
        call = channel.unary_unary("/t/wait").future(b"", timeout=LONG_S)
        time.sleep(0.1)
        call.cancel()
        assert service.gone.wait(LONG_S)
        stream: Any = channel.unary_stream("/t/flood")(b"1000")
        next(stream)
        service.gone.clear()
        stream.cancel()
        assert service.gone.wait(LONG_S)
        assert service.sent < 900


@pytest.mark.parametrize("method", ["flood", "wait"])
def test_client_process_that_is_killed_is_noticed(name: str, method: str) -> None:
    with serving(name) as (service, address, _):
        program = f"""import grpc, time
with grpc.insecure_channel({address!r}) as channel:
    call = channel.unary_stream("/t/{method}")(b"1000", timeout=600)
    print("called", flush=True)
    time.sleep(600)
"""
        client = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        assert client.stdout is not None
        with client, client.stdout:
            assert client.stdout.readline()
            eventually(lambda: service.called[method] > 0)
            client.kill()
        assert service.gone.wait(LONG_S)
        assert service.sent < 900


def test_killed_client_is_noticed_and_half_a_stream_is_an_error(name: str) -> None:
    with serving(name) as (service, address, _):
        channel = grpc.insecure_channel(address, CHANNEL)
        stop = threading.Event()

        def messages() -> Iterator[bytes]:
            yield b"a"
            stop.wait(LONG_S)

        stream: Any = channel.stream_stream("/t/chat")(messages())
        assert next(stream) == b"A"
        channel.close()
        stop.set()
        assert service.gone.wait(LONG_S)
        assert len(service.errors) == 1


def test_idle_stream_is_ended_with_the_reason(name: str) -> None:
    with connected(name) as (_, channel):
        stop = threading.Event()
        stream: Any = channel.stream_stream("/t/chat")(iter(lambda: stop.wait(LONG_S) or b"", b""), timeout=LONG_S)
        with pytest.raises(grpc.RpcError):
            next(stream)
        assert stream.code() is Code.DEADLINE_EXCEEDED
        assert "sent no request for 0.3 s" in stream.details()
        stop.set()


def test_native_call_without_a_request_takes_no_thread(name: str) -> None:
    if name == "grpcio":
        return  # there, each such call holds a thread until it ends
    with connected(name, opening_s=0.3) as (_, channel):
        stop = threading.Event()
        silent = [channel.stream_unary("/t/echo").future(iter(stop.wait, True), timeout=LONG_S) for _ in range(20)]
        assert ask(channel, "echo", b"x") == b"x"
        assert {call.code() for call in silent} == {Code.DEADLINE_EXCEEDED}
        assert "sent no request for 0.3 s" in silent[0].details()
        stop.set()
        threads = [each for each in threading.enumerate() if each.name.startswith("test_")]
        assert len(threads) <= 2  # that of the other call, and the next one


def test_drain_lets_calls_end_and_cancels_the_rest(name: str) -> None:
    with serving(name) as (service, address, server), grpc.insecure_channel(address, CHANNEL) as channel:
        running = channel.unary_unary("/t/wait").future(b"", timeout=LONG_S)
        stuck = channel.unary_stream("/t/flood")(b"1000")
        next(stuck)
        time.sleep(0.2)
        ended = server.stop(1)
        time.sleep(0.1)
        with grpc.insecure_channel(address, CHANNEL) as other:
            assert code_of(lambda: ask(other, "echo")) is Code.UNAVAILABLE
        service.go.set()
        assert running.result() == b"waited"
        assert ended.wait(LONG_S)
        with pytest.raises(grpc.RpcError):
            list(stuck)


# -- limits ---------------------------------------------------------------------------------------------------------------


def test_large_message_is_rejected(name: str) -> None:
    with connected(name, max_message_bytes=100_000) as (_, channel):
        for size in (100_001, 5 * MIB):
            assert code_of(lambda size=size: ask(channel, "echo", bytes(size))) is Code.RESOURCE_EXHAUSTED  # type: ignore[misc]
        assert len(ask(channel, "echo", bytes(100_000))) == 100_000


def test_large_headers_are_rejected(name: str) -> None:
    with connected(name) as (_, channel):
        assert code_of(lambda: ask(channel, "echo", metadata=(("x", "y" * 200_000),))) is not Code.OK
        assert ask(channel, "echo", b"x", metadata=(("x", "y" * 30_000),)) == b"x"


def test_slow_reader_stops_the_sender(name: str) -> None:
    with connected(name) as (service, channel):
        stream: Any = channel.unary_stream("/t/flood")(b"200", timeout=LONG_S)
        next(stream)
        time.sleep(0.5)
        assert service.sent < 100
        assert sum(1 for _ in stream) == 199
        assert service.gone.wait(LONG_S)


def test_full_lane_rejects_calls_and_others_are_served(name: str) -> None:
    with connected(name) as (_, channel):
        busy = [
            channel.unary_unary("/t/wait").future(b"", metadata=(("lane", "busy"),), timeout=LONG_S) for _ in range(20)
        ]
        assert ask(channel, "echo", b"x", metadata=(("lane", "quiet"),)) == b"x"
        eventually(lambda: sum(call.done() for call in busy) >= 11)  # six run and three wait
        assert [call.code() for call in busy if call.done()] == [Code.RESOURCE_EXHAUSTED] * 11


def test_slow_writer_is_served_and_delays_nobody(name: str) -> None:
    with serving(name) as (_, address, _server), grpc.insecure_channel(address, CHANNEL) as channel:
        port = int(address.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as slow:
            data = OPEN + request(1) + frame(0, 1, 1, b"\0\0\0\0\5hello")
            for place in range(0, len(data), 3):
                slow.sendall(data[place : place + 3])
                if not place % 60:
                    assert ask(channel, "echo", b"x") == b"x"
            slow.settimeout(LONG_S)
            found = b""
            while b"hello" not in found:
                chunk = slow.recv(65536)
                assert chunk, found
                found += chunk


@pytest.mark.parametrize("has_begun", [False, True], ids=["silent", "HTTP/2"])
def test_ten_thousand_idle_connections(name: str, has_begun: bool) -> None:
    """They cost little memory, and calls are served as if they were not there."""
    with serving(name) as (_, address, _server):
        port = int(address.rpartition(":")[2])
        before = memory_bytes()
        with (
            idle_connections(port, IDLE, OPEN if has_begun else b""),
            grpc.insecure_channel(address, CHANNEL) as channel,
        ):
            for _ in range(20):
                assert ask(channel, "echo", b"x") == b"x"
            assert memory_bytes() - before < 64 * 1024 * IDLE


IDLE = 10_000


@contextlib.contextmanager
def idle_connections(port: int, count: int, data: bytes) -> Iterator[None]:
    """Connections of another process, which have sent `data`."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    program = f"""import resource, socket, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
opened = []
for number in range({count}):
    opened.append(socket.create_connection(("127.0.0.1", {port})))
    opened[-1].sendall({data!r})
    if {bool(data)}:
        assert opened[-1].recv(9)
print("connected", flush=True)
sys.stdin.read()
"""
    client = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdin is not None
    assert client.stdout is not None
    with client:
        assert client.stdout.readline(), "the connections were not accepted"
        yield
        client.stdin.close()


def memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


# -- TLS ------------------------------------------------------------------------------------------------------------------


def test_tls_with_client_certificates(name: str, tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair, ada, eve = authority.issue("server"), authority.issue("ada"), stranger.issue("eve")
    root = authority.certificate.read_bytes()
    certificate = Certificate(pair.certificate.read_bytes(), pair.key.read_bytes(), root)
    with serving(name, certificate) as (_, address, _server):
        for client, is_admitted in ((ada, True), (eve, False), (None, False)):
            keys = (client.key.read_bytes(), client.certificate.read_bytes()) if client else (None, None)
            credentials = grpc.ssl_channel_credentials(root, *keys)
            with grpc.secure_channel(address, credentials, CHANNEL) as channel:
                if is_admitted:
                    assert ask(channel, "echo", b"x") == b"x"
                else:
                    assert code_of(lambda channel=channel: ask(channel, "echo")) is Code.UNAVAILABLE  # type: ignore[misc]
        with grpc.insecure_channel(address, CHANNEL) as plain:
            assert code_of(lambda: ask(plain, "echo")) is Code.UNAVAILABLE


def test_port_in_use_is_an_error(name: str) -> None:
    with serving(name) as (_, address, _server), pytest.raises(OSError, match="cannot listen"):
        new_server(Options(), name).listen(f"127.0.0.1:{address.rpartition(':')[2]}")  # type: ignore[arg-type]


def test_shared_port(name: str) -> None:
    first, second = (new_server(Options(share_port=True), name) for _ in range(2))  # type: ignore[arg-type]
    port = first.listen("127.0.0.1:0")
    assert second.listen(f"127.0.0.1:{port}") == port


def test_unix_socket(name: str, tmp_path: Path) -> None:
    service, server = Service(), new_server(Options(), name)  # type: ignore[arg-type]
    server.add_generic_rpc_handlers((service.methods(),))
    server.listen(f"unix:{tmp_path}/socket")
    server.start()
    with grpc.insecure_channel(f"unix:{tmp_path}/socket", [("grpc.default_authority", "localhost")]) as channel:
        assert ask(channel, "echo", b"x") == b"x"
    assert server.stop(0).wait(LONG_S)


# -- broken clients -------------------------------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def request(stream: int, path: bytes = b"/t/echo", **more: bytes) -> bytes:
    fields = {b":method": b"POST", b":scheme": b"http", b":path": path, b":authority": b"x", b"te": b"trailers"}
    fields |= {b"content-type": b"application/grpc"} | {
        key.replace("_", "-").encode(): value for key, value in more.items()
    }
    block = b"".join(b"\x00" + bytes((len(key),)) + key + bytes((len(value),)) + value for key, value in fields.items())
    return frame(1, 4, stream, block)


def answered(port: int, data: bytes) -> bytes:
    """What the server sends, until it closes the connection or has nothing more to say."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.3)
        found = b""
        with contextlib.suppress(OSError):
            connection.sendall(data)
            while chunk := connection.recv(65536):
                found += chunk
        return found


OPEN = PREFACE + frame(4, 0, 0)
MALFORMED = {
    "unknown flags of a message": OPEN + request(1) + frame(0, 1, 1, b"\x07\0\0\0\1x"),
    "compressed message": OPEN + request(1) + frame(0, 1, 1, b"\x01\0\0\0\1x"),
    "half a prefix": OPEN + request(1) + frame(0, 1, 1, b"\0\0"),
    "half a message": OPEN + request(1) + frame(0, 1, 1, b"\0\0\0\0\x09half"),
    "huge message": OPEN + request(1) + frame(0, 1, 1, b"\0\xff\xff\xff\xffx"),
    "wrong timeout": OPEN + request(1, grpc_timeout=b"soon") + frame(0, 1, 1, b"\0\0\0\0\1x"),
    "wrong content type": OPEN + request(1, content_type=b"text/html") + frame(0, 1, 1, b"\0\0\0\0\1x"),
    "no request": OPEN + request(1, b"/t/headers") + frame(0, 1, 1),
    "wrong stream": OPEN + frame(0, 1, 7, b"data"),
    "huge frame": OPEN + b"\xff\xff\xff\0\0\0\0\0\1",
    "wrong header block": OPEN + frame(1, 5, 1, b"\xff\xff\xff\xff\xff\xff"),
    "not HTTP/2": b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_request_harms_nobody_else(name: str, case: str) -> None:
    with serving(name) as (_, address, _server), grpc.insecure_channel(address, CHANNEL) as channel:
        found = answered(int(address.rpartition(":")[2]), MALFORMED[case])
        assert b"x" * 5 not in found
        assert ask(channel, "echo", b"x") == b"x"


def test_random_bytes_harm_nobody(name: str) -> None:
    dice = random.Random(7)
    with serving(name) as (_, address, _server), grpc.insecure_channel(address, CHANNEL) as channel:
        port = int(address.rpartition(":")[2])
        for _ in range(60):
            data = bytearray(
                OPEN + request(1) + frame(0, 1, 1, b"\0\0\0\0\5hello") + request(3) + frame(3, 0, 3, bytes(4))
            )
            for _ in range(dice.randrange(1, 12)):
                data[dice.randrange(24 if dice.random() < 0.9 else 0, len(data))] = dice.randrange(256)
            with socket.create_connection(("127.0.0.1", port)) as connection, contextlib.suppress(OSError):
                connection.sendall(data[: dice.randrange(len(data))] if dice.random() < 0.3 else data)
        assert ask(channel, "echo", b"x") == b"x"


def test_streams_that_are_reset_at_once_harm_nobody(name: str) -> None:
    """A server that works on each of them could be kept busy by few clients."""
    flood = OPEN + b"".join(request(n) + frame(3, 0, n, bytes(3) + b"\x08") for n in range(1, 8001, 2))
    with serving(name) as (_, address, _server), grpc.insecure_channel(address, CHANNEL) as channel:
        answered(int(address.rpartition(":")[2]), flood)
        assert ask(channel, "echo", b"x") == b"x"


def test_native_headers_without_an_end_are_not_collected(name: str) -> None:
    if name == "grpcio":
        return
    with serving(name) as (_, address, _server), grpc.insecure_channel(address, CHANNEL) as channel:
        assert ask(channel, "echo", b"x") == b"x"
        before = memory_bytes()
        field = b"\0\1x\x7f\xc1\x3d" + b"y" * 8000
        first = request(1).replace(b"\1\4", b"\1\0", 1)  # without the flag that ends the headers
        answered(int(address.rpartition(":")[2]), OPEN + first + frame(9, 0, 1, field) * 8000)
        assert memory_bytes() - before < 20 * MIB
        assert ask(channel, "echo", b"x") == b"x"


@pytest.mark.parametrize("method", [b"/t/count", b"/t/echo", b"/t/sends"])
def test_native_short_response_is_one_write_with_its_status(name: str, method: bytes) -> None:
    if name == "grpcio":
        return
    with (
        serving(name) as (_, address, _server),
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2]))) as connection,
    ):
        connection.settimeout(LONG_S)
        connection.sendall(OPEN)
        for stream in (1, 3, 5):
            connection.sendall(request(stream, method) + frame(0, 1, stream, b"\0\0\0\0\x013"))
            found = b""
            while not any(number == stream for number, _ in frames_of(found)):
                found = connection.recv(65536)
        assert (stream, True) in frames_of(found)


def frames_of(data: bytes) -> list[tuple[int, bool]]:
    """The streams of HTTP/2 frames, and whether each frame ends its stream."""
    found = []
    while data:
        kind, flags = data[3], data[4]
        found.append((int.from_bytes(data[5:9], "big"), kind in (0, 1) and bool(flags & 1)))
        data = data[9 + int.from_bytes(data[:3], "big") :]
    return found


# -- the choice -----------------------------------------------------------------------------------------------------------


def test_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(native.VARIABLE, raising=False)
    monkeypatch.setattr(native, "find_spec", lambda _: None)
    assert chosen("auto") == chosen("grpcio") == "grpcio"
    with pytest.raises(Unsupported, match="make native"):
        chosen("native")
    monkeypatch.setattr(native, "find_spec", lambda _: object())
    assert chosen("auto") == chosen("native") == "native"
    monkeypatch.setenv(native.VARIABLE, "grpcio")
    assert (chosen("auto"), chosen("native")) == ("grpcio", "native")
