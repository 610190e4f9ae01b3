"""Servers that send malformed responses: a clear error, never a hang, never a huge allocation."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Iterator

import pyarrow as pa
import pytest

from client.recorder import Scripted, endpoints, frames, ordinary, result, root, table_info
from skiway.airport.wire.frames import FrameWriter, metadata_frame
from skiway.airport.wire.protocol import Contents, encode, seal
from skiway.client import AirportClient
from skiway.errors import Internal, InvalidArgument, LimitExceeded, TimedOut
from skiway.model import flight_pb2 as flight

TABLE = pa.table({"a": [1, 2], "b": ["x", "y"]})
STATISTICS = TABLE.schema.with_metadata({"can_produce_statistics": "1"})


@pytest.fixture
def server() -> Scripted:
    return Scripted(ordinary(TABLE))


@pytest.fixture
def db(server: Scripted) -> Iterator[AirportClient]:
    with server.serving() as location, AirportClient(location, "c", timeout_s=20) as client:
        yield client


def test_valid_responses_are_read(db: AirportClient) -> None:
    assert db.scan("s.t").read_all() == TABLE


LISTINGS = {
    "no envelope": b"\x81\xa1a\x01",
    "not msgpack": b"\xc1",
    "truncated": root(table_info(TABLE.schema))[:-20],
    "empty": b"",
    "a length too small": encode([3, pa.compress(b"abcdef", codec="zstd", asbytes=True)]),
    "a length too large": encode([9, pa.compress(b"abcdef", codec="zstd", asbytes=True)]),
    "a gigabyte announced": encode([1 << 30, pa.compress(b"abcdef", codec="zstd", asbytes=True)]),
    "a negative length": encode([-1, b""]),
    "no compression": encode([6, b"abcdef"]),
    "no version": seal({"contents": Contents(), "schemas": []}),
    "another shape inside": seal([1, 2, 3]),
}


@pytest.mark.parametrize("listing", LISTINGS.values(), ids=LISTINGS.keys())
def test_malformed_listing_is_a_server_error(server: Scripted, db: AirportClient, listing: bytes) -> None:
    server.answers["list_schemas"] = [result(listing)]
    with pytest.raises(Internal, match="sent a malformed response to list_schemas"):
        db.schemas()


def test_declared_gigabyte_is_not_allocated(server: Scripted, db: AirportClient) -> None:
    server.answers["list_schemas"] = [result(LISTINGS["a gigabyte announced"])]
    tracemalloc.start()
    try:
        with pytest.raises(Internal, match="announces 1073741824 bytes"):
            db.schemas()
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


CONTENTS = {
    "another catalog": (root(table_info(TABLE.schema, catalog="other")), "claims to be in 'other'"),
    "another schema": (root(table_info(TABLE.schema, schema="other")), "claims to be in 'c'.'other'"),
    "a kind that nobody knows": (root(table_info(TABLE.schema, type="view")), "is a 'view'"),
    "a function without parameters": (
        root(table_info(TABLE.schema, type="scalar_function")),
        "no valid Arrow schema",
    ),
    "no columns": (root(flight.FlightInfo(app_metadata=encode({"type": "table"})).SerializeToString()), "missing"),
    "not a FlightInfo": (root(b"\xff\xff"), "not a FlightInfo"),
    "another hash": (root(contents=Contents(sha256="0" * 64, serialized=seal([]))), "sent data with hash"),
    "a hash that no bundle holds": (root(contents=Contents(sha256="0" * 64)), "its bundle does not contain them"),
    "a file as address": (
        root(contents=Contents(sha256="0" * 64, url="file:///etc/passwd")),
        "not an http or https URL",
    ),
    "an address without hash": (root(contents=Contents(url="http://127.0.0.1:1/x")), "without a hash"),
}


@pytest.mark.parametrize(("listing", "complaint"), CONTENTS.values(), ids=CONTENTS.keys())
def test_malformed_contents_are_a_server_error(
    server: Scripted, db: AirportClient, listing: bytes, complaint: str
) -> None:
    server.answers["list_schemas"] = [result(listing)]
    with pytest.raises(Internal, match=complaint):
        db.table("s.t")


def test_flight_that_is_not_an_object_is_ignored(server: Scripted, db: AirportClient) -> None:
    nothing = flight.FlightInfo(schema=b"?").SerializeToString()
    server.answers["list_schemas"] = [result(root(nothing, table_info(TABLE.schema)))]
    assert [table.name for table in db.schemas()[0].tables] == ["t"]


@pytest.mark.parametrize(
    "action", ["create_transaction", "list_schemas", "catalog_version", "endpoints", "flight_info"]
)
def test_action_without_a_result_is_a_server_error(server: Scripted, db: AirportClient, action: str) -> None:
    server.answers[action] = []
    with pytest.raises(Internal, match=f"sent no result for {action}"):
        db.scan("s.t", at_version=1 if action == "flight_info" else None)


@pytest.mark.parametrize("action", ["create_transaction", "catalog_version", "endpoints"])
@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", b"\x81\xa1", b"\xdd\xff\xff\xff\xff"], ids=repr)
def test_malformed_response_is_a_server_error(server: Scripted, db: AirportClient, action: str, body: bytes) -> None:
    server.answers[action] = [result(body)]
    with pytest.raises(Internal, match=f"sent a malformed response to {action}"):
        db.scan("s.t")


def test_response_that_is_not_a_result_message_is_a_server_error(server: Scripted, db: AirportClient) -> None:
    server.answers["create_transaction"] = [b"\xff\xff\xff"]
    with pytest.raises(Internal, match="not a Result"):
        db.scan("s.t")


def test_endless_results_are_ignored(server: Scripted, db: AirportClient) -> None:
    def endless(_data: bytes) -> Iterator[bytes]:
        while True:
            yield result(encode({"identifier": None}))

    server.answers["create_transaction"] = endless
    assert db.scan("s.t").read_all() == TABLE


def test_error_after_the_result_is_raised(server: Scripted, db: AirportClient) -> None:
    def broken(_data: bytes) -> Iterator[bytes]:
        yield result(encode({"catalog_version": 1, "is_fixed": False}))
        raise RuntimeError("on second thought")

    server.answers["catalog_version"] = broken
    with pytest.raises(Internal, match="on second thought"):
        db.version()


def other_descriptor() -> bytes:
    info = flight.FlightInfo.FromString(table_info(TABLE.schema))
    info.flight_descriptor.path[1] = "other"
    return info.SerializeToString()


def test_info_about_another_flight_is_a_server_error(server: Scripted, db: AirportClient) -> None:
    server.answers["GetFlightInfo"] = [other_descriptor()]
    with pytest.raises(Internal, match="was asked for 's/t' but described 's/other'"):
        db.take_flight(["s", "t"])


def test_time_travel_without_a_schema_is_a_server_error(server: Scripted, db: AirportClient) -> None:
    server.answers["flight_info"] = [result(flight.FlightInfo().SerializeToString())]
    with pytest.raises(Internal, match="no valid Arrow schema"):
        db.scan("s.t", at_version=1)


STREAMS: dict[str, list[bytes]] = {
    "no message at all": [],
    "no schema": frames(TABLE)[1:],
    "only metadata": [metadata_frame(b"\x80")],
    "not protobuf": [b"\xff\xff\xff"],
    "a truncated frame": [frames(TABLE)[0], frames(TABLE)[1][:-9]],
    "a frame that announces a gigabyte": [frames(TABLE)[0], b"\x12\x80\x80\x80\x80\x04abc"],
    "a batch of another schema": [frames(TABLE)[0], frames(pa.table({"z": [1.5]}))[1]],
    "another schema": frames(pa.table({"a": [1], "b": [2]})),
    "fewer columns": frames(TABLE.select(["a"])),
    "garbage in place of a batch": [frames(TABLE)[0], b"\x12\x04abcd"],
    "the end of an IPC stream": [frames(TABLE)[0], b"\x12\x08" + b"\xff\xff\xff\xff" + bytes(4)],
}


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS.keys())
def test_malformed_stream_is_a_server_error(server: Scripted, db: AirportClient, stream: list[bytes]) -> None:
    server.answers["DoGet"] = stream
    with pytest.raises(Internal, match="sent a malformed response to DoGet"):
        db.scan("s.t").read_all()


def test_stream_without_batches_has_no_rows(server: Scripted, db: AirportClient) -> None:
    server.answers["DoGet"] = [FrameWriter(TABLE.schema).begin()]
    assert db.scan("s.t").read_all() == TABLE.slice(0, 0)


def test_metadata_between_batches_loses_no_rows(server: Scripted, db: AirportClient) -> None:
    opening, batch = frames(TABLE)
    server.answers["DoGet"] = [metadata_frame(b"early"), opening, batch, metadata_frame(b"\x80"), batch]
    assert db.count("s.t") == 4


ENDPOINTS: dict[str, list[bytes]] = {
    "no location": [result(encode([flight.FlightEndpoint().SerializeToString()]))],
    "no address": endpoints("nowhere"),
    "not base64": endpoints("data:application/msgpack;base64,***"),
    "no comma": endpoints("data:application/msgpack"),
    "an unknown type": endpoints("data:text/plain;base64,YQ=="),
    "no function call": endpoints("data:application/x-msgpack-duckdb-function-call;base64,YQ=="),
}


@pytest.mark.parametrize("answer", ENDPOINTS.values(), ids=ENDPOINTS.keys())
def test_malformed_endpoint_is_a_server_error(server: Scripted, db: AirportClient, answer: list[bytes]) -> None:
    server.answers["endpoints"] = answer
    with pytest.raises(Internal, match="sent a malformed response to endpoints"):
        db.scan("s.t").read_all()


def test_endpoint_that_is_not_a_message_is_a_server_error(server: Scripted, db: AirportClient) -> None:
    server.answers["endpoints"] = [result(encode([b"\xff"]))]
    with pytest.raises(Internal, match="not a FlightEndpoint"):
        db.scan("s.t")


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "not an Arrow stream of one row"),
        (b"\xff" * 40, "not an Arrow stream of one row"),
        (bytes(TABLE.schema.serialize()), "not an Arrow stream of one row"),
    ],
)
def test_malformed_statistics_are_a_server_error(
    server: Scripted, db: AirportClient, body: bytes, complaint: str
) -> None:
    server.answers["list_schemas"] = [result(root(table_info(STATISTICS)))]
    server.answers["column_statistics"] = [result(body)]
    with pytest.raises(Internal, match=complaint):
        db.statistics("s.t", "a")


def test_statistics_with_a_missing_member_are_a_server_error(server: Scripted, db: AirportClient) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("min", pa.int64())])) as writer:
        writer.write_batch(pa.record_batch({"min": [1]}))
    server.answers["column_statistics"] = [result(sink.getvalue().to_pybytes())]
    with pytest.raises(Internal, match="lack 'distinct_count'"):
        db.statistics("s.t", "a")


def test_message_over_the_limit_is_refused(server: Scripted) -> None:
    server.answers["list_schemas"] = [result(b"x" * 200_000)]
    with (
        server.serving() as location,
        AirportClient(location, "c", max_message_bytes=100_000) as db,
        pytest.raises(LimitExceeded, match="larger than max"),
    ):
        db.schemas()


def test_silent_server_times_out(server: Scripted) -> None:
    def silent(_data: bytes) -> Iterator[bytes]:
        released.wait(200)
        yield from ()

    released = threading.Event()
    server.answers["list_schemas"] = silent
    with server.serving() as location, AirportClient(location, "c", timeout_s=0.2) as db:
        with pytest.raises(TimedOut, match="timeout_s"):
            db.schemas()
        released.set()


def test_frame_of_a_stream_cannot_be_read_after_close(server: Scripted, db: AirportClient) -> None:
    rows = db.scan("s.t")
    rows.read_next_batch()
    rows.close()
    assert list(rows) == []


def test_using_a_closed_client_is_a_clear_error(server: Scripted) -> None:
    with server.serving() as location:
        db = AirportClient(location, "c")
        db.schemas()
        db.close()
        with pytest.raises(InvalidArgument, match="is closed; create a new one"):
            db.version()
