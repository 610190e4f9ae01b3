"""A server as users run it: a process with a home that handles signals."""

from __future__ import annotations

import json
import queue
import signal
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from runtime.servers import Caller, calling, columns, eventually, skiway, started, starting, wait_until_ready
from skiway import __version__
from skiway.model import v1
from skiway.storage import open_stores
from storage.homes import running_postgres

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


class Stream:
    """Requests that are sent on demand."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[v1.PutColumnStatsRequest | None] = queue.SimpleQueue()

    def send(self, message: v1.PutColumnStatsRequest) -> None:
        self._messages.put(message)

    def end(self) -> None:
        self._messages.put(None)

    def __iter__(self) -> Iterator[v1.PutColumnStatsRequest]:
        return iter(self._messages.get, None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_server_writes_its_ready_file_and_stops_on_a_signal(home, tmp_path, number):
    ready = tmp_path / "ready.json"
    with started(home, ready_file=ready, fresh=True) as server:
        assert json.loads(ready.read_text()) == {
            "rpc": server.address,
            "airport": f"grpc://{server.address}",
            "http": server.addresses["http"],
            "pid": server.process.pid,
            "version": __version__,
        }
        host, _, port = server.address.rpartition(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)
        with calling(server.address) as caller:
            assert caller.catalogs() == ["lake"]
        assert server.stop(number) == 0
        assert not ready.exists()
        assert "Traceback" not in server.output()


def test_new_home_is_accessible_only_to_its_owner(home):
    with started(home):
        assert home.stat().st_mode & 0o077 == 0


def test_restarted_server_keeps_its_data(home):
    with started(home) as server:
        with calling(server.address) as caller:
            made = caller.create_catalog("kept")
        assert server.stop() == 0
    with started(home) as server, calling(server.address) as caller:
        request = v1.GetCatalogRequest(catalog_id=made.resource_id)
        assert caller.call("CatalogService/GetCatalog", request, v1.GetCatalogResponse).catalog == made
        assert caller.catalogs() == ["kept", "lake"]


def test_killed_server_loses_no_acknowledged_changes(home, tmp_path):
    ready = tmp_path / "ready.json"
    with started(home, ready_file=ready) as server:
        with calling(server.address) as caller:
            for number in range(10):
                caller.create_catalog(f"c{number}")
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    stale = ready.read_text()  # left behind by the killed server; the new one removes it before it is ready
    with starting(home, ready_file=ready) as server:
        eventually(lambda: not ready.exists() or ready.read_text() != stale)
        wait_until_ready(server)
        with calling(server.address) as caller:
            assert caller.catalogs() == [*(f"c{number}" for number in range(10)), "lake"]


def test_running_call_finishes_while_new_calls_are_refused(home):
    with started(home, "--set", "server.grpc.drain_seconds=60") as server, calling(server.address) as caller:
        table_id, stream = caller.create_table(), Stream()
        running = caller.put_columns(iter(stream))
        stream.send(columns(table_id, 1))
        with calling(server.address) as other:
            assert other.catalogs() == ["lake", "made"]
            server.send_signal()
            eventually(lambda: not server.ready_file.exists())
            eventually(lambda: _refused(other))
        assert not running.done()
        stream.send(columns(table_id, 2))
        stream.end()
        assert running.result(200).upserted == 2
        assert server.ended() == 0
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        stored = [each for each in stores.pointers.scan() if each.key.endswith("/stats/columns")]
        assert len(stored) == 1


def test_call_that_exceeds_the_drain_time_is_cancelled(home):
    with started(home, "--set", "server.grpc.drain_seconds=0.2") as server, calling(server.address) as caller:
        table_id, stream = caller.create_table(), Stream()
        running = caller.put_columns(iter(stream))
        stream.send(columns(table_id, 1))
        assert not running.done()
        assert server.stop() == 0
        assert running.exception(30).code() in (grpc.StatusCode.CANCELLED, grpc.StatusCode.UNAVAILABLE)
        stream.end()


def test_second_signal_stops_the_server_immediately(home):
    with started(home, "--set", "server.grpc.drain_seconds=600") as server, calling(server.address) as caller:
        table_id, stream = caller.create_table(), Stream()
        running = caller.put_columns(iter(stream))
        stream.send(columns(table_id, 1))
        server.send_signal()
        eventually(lambda: not server.ready_file.exists())
        assert not running.done()
        assert server.stop() == -signal.SIGTERM
        assert running.exception(30).code() is grpc.StatusCode.UNAVAILABLE
        stream.end()


def test_health_is_reported_for_the_server_and_each_service(home):
    with started(home) as server, grpc.insecure_channel(server.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", "skiway.v1.CatalogService", "skiway.v1.DirectoryService"):
            assert stub.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
        with pytest.raises(grpc.RpcError) as unknown:
            stub.Check(health_pb2.HealthCheckRequest(service="skiway.v1.NoService"))
        assert unknown.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_watchers_are_notified_of_shutdown_and_do_not_delay_it(home):
    with (
        started(home, "--set", "server.grpc.drain_seconds=600") as server,
        grpc.insecure_channel(server.address) as channel,
    ):
        stub = health_pb2_grpc.HealthStub(channel)
        watches = [stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", "", "unknown")]
        assert [next(watch).status == SERVING for watch in watches] == [True, True, False]
        server.send_signal()
        assert [[each.status for each in watch] for watch in watches] == [[NOT_SERVING], [NOT_SERVING], []]
        assert server.ended() == 0


def test_reflection_lists_services_and_their_messages(home):
    with started(home) as server, grpc.insecure_channel(server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        services = database.get_services()
        assert {"skiway.v1.TableService", "grpc.health.v1.Health"} <= set(services)
        service = DescriptorPool(database).FindServiceByName("skiway.v1.TableService")
        assert service.methods_by_name["GetTable"].input_type.full_name == "skiway.v1.GetTableRequest"


def test_reflection_v1_answers_like_v1alpha(home):
    with started(home) as server, grpc.insecure_channel(server.address) as channel:
        call = channel.stream_stream(
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        listed, described = call(
            iter(
                [
                    reflection_pb2.ServerReflectionRequest(list_services=""),
                    reflection_pb2.ServerReflectionRequest(
                        file_containing_symbol="grpc.reflection.v1.ServerReflection"
                    ),
                ]
            )
        )
        names = {each.name for each in listed.list_services_response.service}
        assert names == set(ProtoReflectionDescriptorDatabase(channel).get_services())
        assert "skiway.v1.TableService" in names
        assert {name for name in names if not name.startswith("skiway.v1.")} == {
            "arrow.flight.protocol.FlightService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection",
        }, "another service needs rules of its own, like those in tests/authorization"
        file = FileDescriptorProto.FromString(described.file_descriptor_response.file_descriptor_proto[0])
        assert file.service[0].method[0].input_type == ".grpc.reflection.v1.ServerReflectionRequest"


def test_reflection_can_be_disabled(home):
    with started(home, "--set", "server.grpc.reflection=false") as server:
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as refused:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_two_servers_on_one_home_serve_the_same_lake(home):
    with starting(home, "--set", "seed.enabled=true") as first, starting(home, "--set", "seed.enabled=true") as second:
        for server in (first, second):
            wait_until_ready(server)
        assert first.address != second.address
        with calling(first.address) as here, calling(second.address) as there:
            for number in range(5):
                here.create_catalog(f"here{number}")
                there.create_catalog(f"there{number}")
                assert here.catalogs() == there.catalogs()
            assert len(here.catalogs()) == 12
            with pytest.raises(grpc.RpcError) as taken:
                there.create_catalog("here0")
            assert taken.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert first.stop() == 0
        with calling(second.address) as there:
            assert "here0" in there.catalogs()
        assert second.stop() == 0


@pytest.mark.needs("postgres")
@pytest.mark.full
def test_servers_with_separate_homes_share_a_postgresql_database(tmp_path):
    with running_postgres() as url:
        shared = ("--set", f"kv.url={url}", "--set", f"blob.url={(tmp_path / 'blobs').as_uri()}")
        with started(tmp_path / "one", *shared) as first, started(tmp_path / "two", *shared) as second:
            with calling(first.address) as here, calling(second.address) as there:
                here.create_catalog("here")
                there.create_catalog("there")
                assert here.catalogs() == there.catalogs() == ["here", "lake", "there"]
            assert (first.stop(), second.stop()) == (0, 0)
        assert not (tmp_path / "one" / "pointers.db").exists()


def test_gc_runs_inside_the_server_and_in_another_process(home):
    with started(home) as server:
        separate = skiway("gc", "--home", home, "--dry-run")
        assert (separate.returncode, separate.stdout) == (0, "")
        with calling(server.address) as caller:
            assert caller.catalogs() == ["lake"]
        assert server.stop() == 0
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        states = {each.key: json.loads(each.blob_uri) for each in stores.pointers.scan("/platform/gc/")}
    assert {"/platform/gc/cas", "/platform/gc/idempotency", "/platform/gc/pointer"} <= states.keys()
    assert {state["token"] for state in states.values()} == {None}


def _refused(caller: Caller) -> bool:
    try:
        caller.catalogs()
    except grpc.RpcError as error:
        return error.code() is grpc.StatusCode.UNAVAILABLE
    return False
