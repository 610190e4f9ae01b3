"""The server: addresses, adding and removing catalogs, routing, TLS, limits and clean shutdown."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pyarrow as pa
import pytest

from airport.certificates import Authority
from airport.raw import AIRPORT, Raw, code_of, descriptor
from ports import free_port
from skiway.airport import (
    AirportService,
    BearerAuth,
    Catalog,
    CatalogAuthorizer,
    CatalogBuilder,
    Limits,
    Request,
    Server,
    Tls,
    current_request,
    serve,
)
from skiway.airport.wire.frames import FrameWriter, metadata_frame
from skiway.airport.wire.protocol import CatalogRequest, CatalogRoot, encode, unseal
from skiway.errors import AlreadyExists, InvalidArgument, NotFound, PermissionDenied, Unsupported
from skiway.model import flight_pb2 as flight

Code = grpc.StatusCode


def catalog_named(name: str, scan=None) -> Catalog:
    builder = CatalogBuilder(name)
    table = builder.schema("s").table(schema=pa.schema({"where": pa.string()}), name="t")
    table(scan or (lambda _: pa.table({"where": [name]})))
    return builder.build()


def where(raw: Raw, *path: str) -> str:
    return raw.scan(*(path or ("", "s", "t")))["where"][0].as_py()


# -- addresses --------------------------------------------------------------------------------------------------------


def test_port_zero_picks_a_free_port_and_location_reports_it() -> None:
    with Server(catalog_named("demo"), port=0) as one, Server(catalog_named("demo"), port=0) as two:
        assert one.port != two.port > 0
        assert one.location == f"grpc://127.0.0.1:{one.port}"


def test_a_port_in_use_is_an_error() -> None:
    with Server(catalog_named("a"), port=0) as first, pytest.raises(OSError, match=str(first.port)):
        Server(catalog_named("b"), port=first.port).start()


def test_port_can_be_shared_on_request() -> None:
    shared = {"port": 0, "share_port": True, "ticket_key": b"k" * 32}
    with Server(catalog_named("a"), **shared) as first:
        again = {**shared, "port": first.port}
        with Server(catalog_named("a"), **again) as second:
            assert second.port == first.port


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_only_loopback_is_served_without_tls_by_default(host: str) -> None:
    with pytest.raises(InvalidArgument, match="insecure=True"):
        Server(catalog_named("demo"), host=host)


def test_all_interfaces_can_be_served_without_tls_explicitly() -> None:
    with Server(catalog_named("demo"), host="0.0.0.0", port=0, insecure=True) as server:
        assert where(Raw(f"grpc://127.0.0.1:{server.port}"), "demo", "s", "t") == "demo"


def test_ipv6_loopback() -> None:
    with Server(catalog_named("demo"), host="::1", port=0) as server:
        assert server.location == f"grpc://[::1]:{server.port}"
        with Raw(server.location) as raw:
            assert where(raw, "demo", "s", "t") == "demo"


def test_a_unix_socket(tmp_path: Path) -> None:
    with Server(catalog_named("demo"), host=f"unix:{tmp_path}/s.sock") as server:
        assert server.location == f"grpc+unix://{tmp_path}/s.sock"
        with Raw(f"x://unix:{tmp_path}/s.sock") as raw:
            assert where(raw, "demo", "s", "t") == "demo"


def test_server_can_only_be_started_once() -> None:
    with Server(catalog_named("demo"), port=0) as server, pytest.raises(InvalidArgument, match="already started"):
        server.start()


def test_endpoints_reuse_the_connection_unless_a_public_location_is_given() -> None:
    with Server(catalog_named("demo"), port=0) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", "t")
        assert [place.uri for place in endpoint.location] == ["arrow-flight-reuse-connection://?"]
    with (
        Server(catalog_named("demo"), port=0, public_location="grpc+tls://lake.example:443") as server,
        Raw(server.location) as raw,
    ):
        (endpoint,) = raw.endpoints("demo", "s", "t")
        assert [place.uri for place in endpoint.location] == ["grpc+tls://lake.example:443"]


@pytest.mark.parametrize("location", ["127.0.0.1:1", "http://h:1", "grpc://h", "grpc://", "grpc+tls://h"])
def test_serve_rejects_an_invalid_location(location: str) -> None:
    with pytest.raises(InvalidArgument, match="grpc://host:port"):
        serve(catalog_named("demo"), location)


def test_serve_rejects_tls_without_a_certificate() -> None:
    with pytest.raises(InvalidArgument, match="Tls"):
        serve(catalog_named("demo"), "grpc+tls://127.0.0.1:1")


# -- catalogs ---------------------------------------------------------------------------------------------------------


def test_calls_are_routed_by_header_then_body_then_descriptor_then_default() -> None:
    with Server([catalog_named(""), catalog_named("a"), catalog_named("b")], port=0) as server:
        with Raw(server.location, (*AIRPORT, ("airport-catalog", "b"))) as raw:
            assert where(raw, "b", "s", "t") == "b"
            assert where(raw, "s", "t") == "b"
            assert listed_schema_catalog(raw, "a") == "b"
        with Raw(server.location) as raw:
            assert listed_schema_catalog(raw, "a") == "a"
            assert where(raw, "a", "s", "t") == "a"
            assert where(raw) == ""
            assert where(raw, "s", "t") == ""


def listed_schema_catalog(raw: Raw, named: str) -> str:
    (body,) = raw.action("list_schemas", encode(CatalogRequest(named)))
    root = unseal(body, CatalogRoot, "listing")
    assert root.schemas[0].contents.serialized is not None
    (info,) = unseal(root.schemas[0].contents.serialized, list[bytes], "schema")
    return flight.FlightInfo.FromString(info).flight_descriptor.path[0]


def test_only_catalog_is_the_default_under_the_name_the_client_used() -> None:
    with Server(catalog_named("demo"), port=0) as server, Raw(server.location) as raw:
        assert listed_schema_catalog(raw, "") == ""
        assert where(raw) == "demo"


def test_catalog_names_are_unique_including_the_empty_one() -> None:
    with pytest.raises(AlreadyExists, match="'demo'"):
        Server([catalog_named("demo"), catalog_named("demo")])
    with pytest.raises(AlreadyExists, match="''"):
        Server([catalog_named(""), catalog_named("")])


def test_catalogs_can_be_added_and_removed_while_calls_are_running() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(scan):
        yield pa.record_batch({"where": ["begun"]})
        begun.set()
        go_on.wait(200)
        yield pa.record_batch({"where": ["finished"]})

    with Server(port=0) as server, Raw(server.location) as raw:
        assert code_of(lambda: where(raw, "demo", "s", "t"))[0] is Code.NOT_FOUND
        server.add_catalog(catalog_named("demo", slow))
        with ThreadPoolExecutor() as pool:
            running = pool.submit(raw.scan, "demo", "s", "t")
            assert begun.wait(200)
            ticket = raw.endpoints("demo", "s", "t")[0].ticket.ticket
            server.remove_catalog("demo")
            assert code_of(lambda: raw.endpoints("demo", "s", "t"))[0] is Code.NOT_FOUND
            assert code_of(raw.get(ticket))[0] is Code.NOT_FOUND
            go_on.set()
            assert running.result()["where"].to_pylist() == ["begun", "finished"]
        with pytest.raises(NotFound):
            server.remove_catalog("demo")
        server.add_catalog(catalog_named("demo"))
        assert where(raw, "demo", "s", "t") == "demo"


def test_a_resolver_finds_catalogs_per_request() -> None:
    def resolve(name: str) -> Catalog | None:
        return catalog_named(f"{current_request().identity}'s {name}") if name == "home" else None

    auth = BearerAuth(lambda token: token)
    with Server(catalogs=resolve, port=0, auth=auth) as server:
        for user in ("ada", "grace"):
            with Raw(server.location, (*AIRPORT, ("authorization", f"Bearer {user}"))) as raw:
                assert where(raw, "home", "s", "t") == f"{user}'s home"
                assert code_of(lambda: where(raw, "other", "s", "t"))[0] is Code.NOT_FOUND
        with pytest.raises(Unsupported):
            server.add_catalog(catalog_named("x"))


def test_airport_databases_lists_the_catalogs_that_the_caller_may_use() -> None:
    class Auth(CatalogAuthorizer):
        def authenticate(self, token: str | None) -> str:
            return token or "nobody"

        def authorize_catalog(self, request: Request, catalog: str) -> Request:
            if catalog == "secret":
                raise PermissionDenied("not for you")
            return request

    with (
        Server([catalog_named("open"), catalog_named("secret")], port=0, auth=Auth()) as server,
        Raw(server.location) as raw,
    ):
        info = flight.FlightInfo.FromString(raw.unary("GetFlightInfo", descriptor("__databases")))
        assert list(info.flight_descriptor.path) == ["__databases"]
        assert raw.scan("__databases").to_pylist() == [{"name": "open"}]


# -- raw actions, listings --------------------------------------------------------------------------------------------


def test_custom_actions() -> None:
    got: list[tuple[bytes, str]] = []

    def reset(body: bytes) -> None:
        """Forget everything."""
        got.append((body, current_request().identity))

    actions = {"reset": reset, "twice": lambda body: [body, body.decode()], "once": lambda body: b"1"}
    ada = (*AIRPORT, ("authorization", "Bearer ada"))
    auth = BearerAuth(lambda token: token)
    with Server(catalog_named("demo"), port=0, actions=actions, auth=auth) as server, Raw(server.location, ada) as raw:
        assert raw.action("reset", b"all", ("airport-action-name", "reset")) == []
        assert raw.action("twice", b"x") == [b"x", b"x"]
        assert raw.action("once") == [b"1"]
        types = [flight.ActionType.FromString(data) for data in raw.stream("ListActions", b"")]
    assert got == [(b"all", "ada")]
    described = {kind.type: kind.description for kind in types}
    assert described["reset"] == "Forget everything."
    assert described["endpoints"]


def test_custom_action_cannot_use_a_reserved_name() -> None:
    with pytest.raises(AlreadyExists, match="endpoints"):
        Server(catalog_named("demo"), actions={"endpoints": lambda body: None})


def test_list_flights_lists_all_or_what_its_headers_select() -> None:
    with Server([catalog_named("a"), catalog_named("b")], port=0) as server, Raw(server.location) as raw:
        flights = [flight.FlightInfo.FromString(data) for data in raw.stream("ListFlights", b"")]
        headers = (("airport-list-flights-filter-catalog", "b"), ("airport-list-flights-filter-schema", "s"))
        some = [flight.FlightInfo.FromString(data) for data in raw.stream("ListFlights", b"", *headers)]
        none = list(raw.stream("ListFlights", b"", headers[0], ("airport-list-flights-filter-schema", "x")))
    assert [list(info.flight_descriptor.path) for info in flights] == [["a", "s", "t"], ["b", "s", "t"]]
    assert [list(info.flight_descriptor.path)[:4] for info in some] == [["b", "s", "t", "table"]], "as in list_schemas"
    assert none == []


def test_get_flight_info_and_get_schema_return_the_schema_and_the_descriptor() -> None:
    with (
        Server(catalog_named("demo"), port=0) as server,
        Raw(server.location, (*AIRPORT, ("airport-catalog", "demo"))) as raw,
    ):
        info = flight.FlightInfo.FromString(raw.unary("GetFlightInfo", descriptor("s", "t")))
        schema = flight.SchemaResult.FromString(raw.unary("GetSchema", descriptor("s", "t")))
    assert list(info.flight_descriptor.path) == ["s", "t"]
    assert pa.ipc.read_schema(pa.py_buffer(info.schema)) == pa.schema({"where": pa.string()})
    assert schema.schema == info.schema


def test_a_handshake_is_answered() -> None:
    with Server(catalog_named("demo"), port=0) as server, Raw(server.location) as raw:
        (answer,) = raw.exchange([flight.HandshakeRequest(payload=b"hi").SerializeToString()], method="Handshake")
    assert flight.HandshakeResponse.FromString(answer).payload == b"hi"


# -- TLS --------------------------------------------------------------------------------------------------------------


def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    with Server(catalog_named("demo"), port=0, tls=Tls(pair.certificate, pair.key)) as server:
        assert server.location.startswith("grpc+tls://")
        trusting = grpc.ssl_channel_credentials(authority.certificate.read_bytes())
        with Raw(server.location, credentials=trusting) as raw:
            assert where(raw, "demo", "s", "t") == "demo"
        stranger = Authority(tmp_path, "stranger")
        with Raw(server.location, credentials=grpc.ssl_channel_credentials(stranger.certificate.read_bytes())) as raw:
            assert code_of(lambda: where(raw, "demo", "s", "t"))[0] is Code.UNAVAILABLE
        with Raw(server.location) as raw:
            assert code_of(lambda: where(raw, "demo", "s", "t"))[0] is Code.UNAVAILABLE


def test_mutual_tls_requires_a_certificate_from_the_right_authority(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    pair, ada, eve = authority.issue("server"), authority.issue("ada"), stranger.issue("eve")
    root = authority.certificate.read_bytes()
    with Server(
        catalog_named("demo"), port=0, tls=Tls(pair.certificate, pair.key, client_ca=authority.certificate)
    ) as server:
        credentials = grpc.ssl_channel_credentials(root, ada.key.read_bytes(), ada.certificate.read_bytes())
        with Raw(server.location, credentials=credentials) as raw:
            assert where(raw, "demo", "s", "t") == "demo"
        foreign = grpc.ssl_channel_credentials(root, eve.key.read_bytes(), eve.certificate.read_bytes())
        for credentials in (foreign, grpc.ssl_channel_credentials(root)):
            with Raw(server.location, credentials=credentials) as raw:
                assert code_of(lambda: where(raw, "demo", "s", "t"))[0] is Code.UNAVAILABLE


def test_other_interfaces_can_be_served_with_tls(tmp_path: Path) -> None:
    pair = Authority(tmp_path).issue("server")
    with Server(catalog_named("demo"), host="0.0.0.0", port=0, tls=Tls(pair.certificate, pair.key)) as server:
        assert server.port


# -- limits -----------------------------------------------------------------------------------------------------------


def test_exchanges_do_not_use_scan_threads_and_are_rejected_beyond_their_limit() -> None:
    builder = CatalogBuilder("demo")
    schema = builder.schema("s")
    schema.table(schema=pa.schema({"where": pa.string()}), name="t")(lambda scan: pa.table({"where": ["here"]}))

    @schema.scalar_function
    def same(text: pa.StringArray) -> pa.StringArray:
        return text

    opening = metadata_frame(descriptor=descriptor("demo", "s", "same", "scalar_function", "string"))
    header = ("airport-operation", "scalar_function")
    with (
        Server(builder.build(), port=0, limits=Limits(calls=1, scans=1, exchanges=3)) as server,
        Raw(server.location) as raw,
    ):
        hold = threading.Event()

        def held_open():
            yield opening
            hold.wait(200)
            yield FrameWriter(pa.schema({"text": pa.string()})).begin()

        held = [raw.exchange(held_open(), header) for _ in range(3)]
        for call in held:
            next(call)  # its schema arrived, so it is running
        code, message = code_of(raw.exchange([opening], header))
        assert code is Code.RESOURCE_EXHAUSTED
        assert "3 exchanges" in message
        assert where(raw, "demo", "s", "t") == "here"
        hold.set()
        for call in held:
            assert list(call) == []
        assert len(list(raw.exchange([opening, FrameWriter(pa.schema({"text": pa.string()})).begin()], header))) == 1


def test_scans_beyond_the_number_of_threads_are_queued() -> None:
    few = Limits(calls=2, scans=2)
    with (
        Server(catalog_named("demo"), port=0, limits=few) as server,
        Raw(server.location) as raw,
        ThreadPoolExecutor(16) as pool,
    ):
        assert list(pool.map(lambda _: where(raw, "demo", "s", "t"), range(100))) == ["demo"] * 100


def test_given_arrow_memory_pool_is_used() -> None:
    pool = pa.system_memory_pool()
    before = pool.total_bytes_allocated() if hasattr(pool, "total_bytes_allocated") else 0
    with Server(catalog_named("demo"), port=0, memory_pool=pool) as server, Raw(server.location) as raw:
        where(raw, "demo", "s", "t")
    assert pool.max_memory() > before


# -- with other services ----------------------------------------------------------------------------------------------


def test_service_can_share_a_grpcio_server_with_others() -> None:
    host = grpc.server(ThreadPoolExecutor(2))
    AirportService(catalog_named("demo")).add_to(host)
    echo = grpc.unary_unary_rpc_method_handler(lambda data, context: data)
    host.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", {"Say": echo}),))
    port = host.add_insecure_port("127.0.0.1:0")
    host.start()
    try:
        with Raw(f"grpc://127.0.0.1:{port}") as raw:
            assert where(raw, "demo", "s", "t") == "demo"
            assert raw.channel.unary_unary("/test.Echo/Say")(b"hello") == b"hello"
            assert code_of(lambda: raw.unary("PollFlightInfo", b""))[0] is Code.UNIMPLEMENTED
    finally:
        host.stop(0).wait()


# -- shutdown ---------------------------------------------------------------------------------------------------------


def test_stop_lets_running_calls_finish() -> None:
    begun = threading.Event()

    def slow(scan):
        yield pa.record_batch({"where": ["begun"]})
        begun.set()
        time.sleep(0.3)  # the call itself takes this long
        yield pa.record_batch({"where": ["finished"]})

    server = Server(catalog_named("demo", slow), port=0).start()
    with Raw(server.location) as raw, ThreadPoolExecutor() as pool:
        running = pool.submit(raw.scan, "demo", "s", "t")
        assert begun.wait(200)
        server.stop(drain_s=10)
        assert running.result()["where"].to_pylist() == ["begun", "finished"]
        assert code_of(lambda: where(raw, "demo", "s", "t"))[0] is Code.UNAVAILABLE


def test_stop_cancels_calls_that_do_not_finish_in_time() -> None:
    begun, closed = threading.Event(), threading.Event()

    def endless(scan):
        try:
            while current_request().is_active():
                yield pa.record_batch({"where": ["again"]})
                begun.set()
        finally:
            closed.set()

    server = Server(catalog_named("demo", endless), port=0).start()
    with Raw(server.location) as raw:
        frames = raw.get(raw.endpoints("demo", "s", "t")[0].ticket.ticket)
        assert next(frames)
        assert begun.wait(200)
        started = time.monotonic()
        server.stop(drain_s=0.2)
        assert time.monotonic() - started < 5
        assert code_of(frames)[0] in (Code.CANCELLED, Code.UNAVAILABLE)
        assert closed.wait(200)


def test_internal_errors_are_logged_with_their_traceback(caplog: pytest.LogCaptureFixture) -> None:
    def broken(scan):
        raise ZeroDivisionError("oops")

    logger = logging.getLogger("test.own")
    with (
        Server(catalog_named("demo", broken), port=0, logger=logger, log_level="INFO") as server,
        Raw(server.location) as raw,
    ):
        code_of(lambda: where(raw, "demo", "s", "t"))
        code_of(lambda: where(raw, "nope", "s", "t"))
    assert logger.level == logging.INFO
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.name for record in errors] == ["test.own"]
    assert errors[0].exc_info is not None
    assert any("serving Airport at" in record.getMessage() for record in caplog.records)


SCRIPT = """
import pyarrow as pa
from skiway.airport import CatalogBuilder, serve
import os, sys
demo = CatalogBuilder("demo")
demo.schema("s").table(schema=pa.schema({"pid": pa.int64()}), name="t")(lambda scan: pa.table({"pid": [os.getpid()]}))
serve(demo.build(), sys.argv[1], processes=int(sys.argv[2]))
"""


@contextlib.contextmanager
def script_running(folder: Path, processes: int) -> Iterator[tuple[subprocess.Popen[str], str, set[int]]]:
    """Run the script in its own process; also yields its location and the processes that serve it."""
    (folder / "server.py").write_text(SCRIPT)
    location = f"grpc://127.0.0.1:{free_port()}"
    command = [sys.executable, str(folder / "server.py"), location, str(processes)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as running:
        try:
            assert running.stderr is not None
            lines = [running.stderr.readline() for _ in range(1 + processes)]
            assert sum(f"ATTACH 'demo' (TYPE airport, LOCATION '{location}');" in line for line in lines) == 1
            pids = set()
            for _ in range(40):
                with Raw(location) as raw:  # a new connection may reach another process
                    pids.add(raw.scan("demo", "s", "t")["pid"][0].as_py())
            yield running, location, pids
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)])
@pytest.mark.parametrize("processes", [1, 2])
def test_serve_runs_until_it_is_stopped(processes: int, number: signal.Signals, tmp_path: Path) -> None:
    with script_running(tmp_path, processes) as (running, _, pids):
        assert len(pids) == processes
        running.send_signal(number)
        assert running.wait(200) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_signal_at_any_moment_ends_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even while the main thread is starting to wait: a lock acquired in a signal handler would deadlock there."""
    from skiway.airport.server import server as serving

    def signal_immediately(server: Server) -> None:
        sys.settrace(interrupting)

    sent: list[int] = []

    def interrupting(frame, event, argument):
        waiting = frame.f_code.co_qualname == "Condition.wait"  # within Event.wait, which holds its lock
        if waiting and not sent and signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
            sent.append(1)
            sys.settrace(None)
            os.kill(os.getpid(), signal.SIGINT)
        return interrupting

    monkeypatch.setattr(serving, "_log_duckdb_commands", signal_immediately)
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    later = threading.Timer(1, os.kill, (os.getpid(), signal.SIGTERM))
    later.start()
    try:
        serve(catalog_named("demo"), "grpc://127.0.0.1:0")
    finally:
        sys.settrace(None)
        later.cancel()
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.full
def test_serve_exits_when_one_of_its_processes_exits(tmp_path: Path) -> None:
    with script_running(tmp_path, 2) as (running, _, pids):
        os.kill(min(pids), signal.SIGKILL)
        assert running.wait(200) == 1
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_serve_reports_a_port_in_use_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with Server(catalog_named("demo"), port=0) as server:
        for processes in (1, 2):
            with pytest.raises(SystemExit) as ended:
                serve(catalog_named("demo"), server.location, processes=processes)
            assert ended.value.code == 1
    assert sum("in use" in record.getMessage() for record in caplog.records) == 2


def test_serve_needs_the_main_thread() -> None:
    with ThreadPoolExecutor() as pool, pytest.raises(InvalidArgument, match="main thread"):
        pool.submit(serve, catalog_named("demo"), "grpc://127.0.0.1:0").result()


def test_missing_certificate_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"key of Tls at nowhere\.key"):
        Server(catalog_named("demo"), port=0, tls=Tls("nowhere.pem", "nowhere.key")).start()
