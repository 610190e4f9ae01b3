"""Invalid input gets a clear error with the right code, leaks nothing, and does not stop the server."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airport.raw import AIRPORT, SERVICE, Raw, code_of, descriptor
from skiway import errors
from skiway.airport import BearerAuth, CatalogBuilder, ColumnStatistics, Limits, Server
from skiway.airport.memory import MemoryCatalog
from skiway.airport.server.tickets import Ticket, TicketOffice
from skiway.airport.wire.frames import FrameWriter, metadata_frame, varint
from skiway.airport.wire.protocol import (
    EndpointsRequest,
    ScanParameters,
    StatisticsRequest,
    TypedError,
    decode,
    encode,
    packed,
)
from skiway.client import AirportClient
from skiway.errors import InvalidArgument, LimitExceeded
from skiway.model import flight_pb2 as flight

Code = grpc.StatusCode
KEY = b"k" * 32
MESSAGE_LIMIT = 1024 * 1024


def catalog_named(name: str):
    builder = CatalogBuilder(name)
    schema = builder.schema("s")

    @schema.table(schema=pa.schema({"id": pa.int64()}), statistics=lambda *_: ColumnStatistics(min=1, max=2))
    def t(scan):
        return pa.table({"id": [1, 2]})

    @schema.table(schema=pa.schema({"id": pa.int64()}))
    def leaky(scan):
        raise RuntimeError(f"cannot open {Path(__file__).resolve()}:\nTraceback (most recent call last):\n  File x")

    @schema.table(schema=pa.schema({"id": pa.int64()}))
    def lost(scan):
        open("/no/such/place/secret.parquet")  # noqa: PTH123, SIM115

    return builder.build()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    quiet = logging.getLogger("test.quiet")
    quiet.disabled = True
    catalogs = [catalog_named("demo"), catalog_named("other")]
    with Server(catalogs, port=0, ticket_key=KEY, max_message_bytes=MESSAGE_LIMIT, logger=quiet) as running:
        yield running


@pytest.fixture
def raw(server: Server) -> Iterator[Raw]:
    with Raw(server.location) as client:
        yield client
        assert client.scan("demo", "s", "t").num_rows == 2, "the server must keep running"


def endpoints_body(path: bytes = b"", **parameters: object) -> bytes:
    return encode(EndpointsRequest(packed(path or descriptor("demo", "s", "t")), ScanParameters(**parameters)))


ACTIONS = ["list_schemas", "catalog_version", "endpoints", "flight_info", "column_statistics", "table_function_flight_info",
           "create_schema", "create_table", "drop_table", "add_column", "rename_table", "commit_transaction"]  # fmt: skip


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize(
    "body", [b"\x81", b"\xc1", b"\x81\xac", b"\x93\x01\x02\x03", b"\x2a", b"\xff" * 50, b"\x91" * 100_000]
)
@pytest.mark.parametrize("header", [False, True])
def test_truncated_and_wrong_messagepack(raw: Raw, action: str, body: bytes, header: bool) -> None:
    headers = [("airport-action-name", action)] if header else []
    code, message = code_of(lambda: raw.action(action, body, *headers))
    assert code is Code.INVALID_ARGUMENT
    assert action in message


HARMLESS = (Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.UNIMPLEMENTED)


def outcome(call) -> Code:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return Code.OK


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(action=st.sampled_from(ACTIONS), body=st.binary(max_size=300))
def test_random_bodies(raw: Raw, action: str, body: bytes) -> None:
    assert outcome(lambda: raw.action(action, body)) in HARMLESS


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.binary(max_size=200),
    method=st.sampled_from(["DoAction", "DoGet", "GetFlightInfo", "GetSchema", "ListFlights"]),
)
def test_random_messages(raw: Raw, data: bytes, method: str) -> None:
    call = (lambda: raw.unary(method, data)) if method.startswith("Get") else (lambda: list(raw.stream(method, data)))
    assert outcome(call) in HARMLESS


def test_an_unknown_action(raw: Raw) -> None:
    code, message = code_of(lambda: raw.action("no_such_action", b"body text"))
    assert code is Code.UNIMPLEMENTED
    assert "'no_such_action'" in message


def test_header_with_a_different_action_than_the_body(raw: Raw) -> None:
    code, message = code_of(lambda: raw.action("no_such_action", b"", ("airport-action-name", "endpoints")))
    assert code is Code.INVALID_ARGUMENT
    assert "no_such_action" in message


@pytest.mark.parametrize(
    ("path", "code", "word"),
    [
        (("demo", "s", "nope"), Code.NOT_FOUND, "'s.nope'"),
        (("demo", "nope", "t"), Code.NOT_FOUND, "'nope'"),
        (("nope", "s", "t"), Code.NOT_FOUND, "'nope'"),
        (("demo",), Code.INVALID_ARGUMENT, "[catalog, schema, table]"),
        (("demo", "s", "t", "x", "y"), Code.INVALID_ARGUMENT, "[catalog, schema, table]"),
        (("demo", "s", "t", "scalar_function", ""), Code.INVALID_ARGUMENT, "scalar function"),
        (("demo", "s", "f", "table_function", "int64"), Code.NOT_FOUND, "s.f(int64)"),
    ],
)
def test_unknown_objects(raw: Raw, path: tuple[str, ...], code: Code, word: str) -> None:
    found, message = code_of(lambda: raw.action("endpoints", endpoints_body(descriptor(*path))))
    assert found is code
    assert word in message


def test_a_descriptor_of_another_catalog(raw: Raw) -> None:
    code, message = code_of(lambda: raw.action("endpoints", endpoints_body(), ("airport-catalog", "other")))
    assert code is Code.INVALID_ARGUMENT
    assert "'demo'" in message
    assert "'other'" in message


def test_a_name_that_is_not_utf8(raw: Raw) -> None:
    path = b"\x08\x01\x1a\x04demo\x1a\x01s\x1a\x02\xff\xfe"
    code, message = code_of(lambda: raw.action("endpoints", endpoints_body(path)))
    assert code is Code.INVALID_ARGUMENT
    assert "UTF-8" in message
    code, _ = code_of(lambda: raw.action("list_schemas", b"\x81\xaccatalog_name\xa2\xff\xfe"))
    assert code is Code.INVALID_ARGUMENT


def test_statistics_of_an_unknown_column(raw: Raw) -> None:
    body = encode(StatisticsRequest(packed(descriptor("demo", "s", "t")), "nope", "BIGINT"))
    code, message = code_of(lambda: raw.action("column_statistics", body))
    assert code is Code.NOT_FOUND
    assert "'nope'" in message


def test_a_ticket_changed_by_one_bit(raw: Raw) -> None:
    (endpoint,) = raw.endpoints("demo", "s", "t")
    ticket = bytearray(endpoint.ticket.ticket)
    for position in (0, 1, len(ticket) // 2, len(ticket) - 1):
        damaged = bytes([*ticket[:position], ticket[position] ^ 1, *ticket[position + 1 :]])
        code, message = code_of(raw.get(damaged))
        assert code is Code.INVALID_ARGUMENT
        assert "ticket" in message


@pytest.mark.parametrize("ticket", [b"", b"{}", b"\x01", b"x" * 100, b'{"schema":"s","table":"t"}'])
def test_a_ticket_that_is_not_ours(raw: Raw, ticket: bytes) -> None:
    assert code_of(raw.get(ticket))[0] is Code.INVALID_ARGUMENT


def test_an_expired_ticket(raw: Raw) -> None:
    from skiway.airport.server.tickets import ObjectPath

    long_ago = TicketOffice(KEY, ttl_s=10, clock=lambda: 1_000_000.0)
    code, message = code_of(raw.get(long_ago.issue(Ticket(ObjectPath("demo", "s", "t")))))
    assert code is Code.FAILED_PRECONDITION
    assert "expired" in message


def test_a_message_over_the_limit(raw: Raw) -> None:
    code, _ = code_of(lambda: raw.action("list_schemas", b"x" * (MESSAGE_LIMIT + 1)))
    assert code is Code.RESOURCE_EXHAUSTED


def test_a_compressed_message_over_the_limit(raw: Raw) -> None:
    call = raw.channel.unary_stream(SERVICE + "DoAction")
    code, message = code_of(call(bytes(16 * MESSAGE_LIMIT), compression=grpc.Compression.Gzip, timeout=20))
    assert code is Code.RESOURCE_EXHAUSTED
    assert "Decompressed message larger than max" in message


def test_a_batch_that_is_too_large_when_decoded() -> None:
    catalog = MemoryCatalog("m", schemas=["s"])
    with (
        Server(catalog, port=0, limits=Limits(decoded_bytes=1000)) as server,
        AirportClient(server.location, "m") as db,
    ):
        db.create_table("s.t", pa.schema({"x": pa.int64()}))
        assert db.insert("s.t", pa.table({"x": range(100)})).count == 100
        with pytest.raises(LimitExceeded, match="a batch of 200 rows takes 1600 bytes when it is decoded"):
            db.insert("s.t", pa.table({"x": range(200)}))
        assert db.scan("s.t").read_all().num_rows == 100


@pytest.mark.parametrize(
    "body",
    [
        b"\x81\xaccatalog_name\xdb" + (1 << 30).to_bytes(4, "big") + b"demo",  # a string
        b"\xdf" + (1 << 30).to_bytes(4, "big") + b"\xa1a\x01",  # a map
        b"\x81\xaccatalog_name\xdd" + (1 << 30).to_bytes(4, "big"),  # a list
    ],
)
def test_declared_length_of_a_gibibyte(raw: Raw, body: bytes) -> None:
    assert code_of(lambda: raw.action("list_schemas", body))[0] is Code.INVALID_ARGUMENT


def test_frame_that_declares_a_gibibyte(raw: Raw) -> None:
    frame = b"\x0a" + varint(1 << 30) + b"short"
    code, message = code_of(raw.exchange([frame], ("airport-operation", "insert")))
    assert code is Code.INVALID_ARGUMENT
    assert str(1 << 30) in message


def test_arrow_message_that_declares_a_gibibyte(raw: Raw) -> None:
    path = descriptor("demo", "s", "t")
    header = b"\xff" * 8 + b"\x00" * 8
    schema = b"\x12" + varint(len(header)) + header
    code, _ = code_of(raw.exchange([metadata_frame(descriptor=path), schema], ("airport-operation", "insert")))
    assert code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "text", ["[" * 10_000, '{"filters":' * 10_000, '{"filters":[' + '{"child":' * 10_000 + "1" + "}" * 10_000 + "]}"]
)
def test_filters_nested_ten_thousand_deep(raw: Raw, text: str) -> None:
    code, message = code_of(lambda: raw.action("endpoints", endpoints_body(json_filters=text)))
    assert code is Code.INVALID_ARGUMENT
    assert "filter" in message.lower()


@pytest.mark.parametrize("text", ["{", "null", "[]", "42", '{"filters":{}}', '{"filters":[1]}', "\x00"])
def test_filters_that_are_not_filters(raw: Raw, text: str) -> None:
    assert code_of(lambda: raw.action("endpoints", endpoints_body(json_filters=text)))[0] is Code.INVALID_ARGUMENT


def test_a_time_point_of_an_unknown_unit(raw: Raw) -> None:
    code, message = code_of(lambda: raw.action("endpoints", endpoints_body(at_unit="EPOCH", at_value="1")))
    assert code is Code.INVALID_ARGUMENT
    assert "EPOCH" in message


def test_time_travel_on_a_table_without_history(raw: Raw) -> None:
    code, message = code_of(lambda: raw.action("endpoints", endpoints_body(at_unit="VERSION", at_value="1")))
    assert code is Code.UNIMPLEMENTED
    assert "history" in message


@pytest.mark.parametrize("messages", [[], [b""], [metadata_frame(b"only metadata")], [b"\xff\xff"]])
def test_exchanges_without_a_descriptor(raw: Raw, messages: list[bytes]) -> None:
    assert code_of(raw.exchange(messages, ("airport-operation", "insert")))[0] is Code.INVALID_ARGUMENT


def test_an_exchange_of_an_unknown_operation(raw: Raw) -> None:
    frame = FrameWriter(pa.schema({"id": pa.int64()})).begin(descriptor=descriptor("demo", "s", "t"))
    code, message = code_of(raw.exchange([frame], ("airport-operation", "upsert")))
    assert code is Code.INVALID_ARGUMENT
    assert "'upsert'" in message


def test_an_exchange_without_operation(raw: Raw) -> None:
    assert code_of(raw.exchange([]))[0] is Code.UNIMPLEMENTED


def test_a_put_that_is_not_json(raw: Raw) -> None:
    frame = FrameWriter(pa.schema({"id": pa.int64()})).begin(descriptor=descriptor("demo", "s", "t"))
    assert code_of(raw.exchange([frame], method="DoPut"))[0] is Code.UNIMPLEMENTED


# -- credentials ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    with Server(catalog_named("demo"), port=0, auth=BearerAuth({"right": "ada"}.get)) as running:
        yield running


CALLS = {
    "DoAction": lambda raw: raw.action("list_schemas", encode({"catalog_name": "demo"})),
    "DoGet": lambda raw: list(raw.get(b"x")),
    "GetFlightInfo": lambda raw: raw.unary("GetFlightInfo", descriptor("demo", "s", "t")),
    "GetSchema": lambda raw: raw.unary("GetSchema", descriptor("demo", "s", "t")),
    "ListFlights": lambda raw: list(raw.stream("ListFlights", b"")),
    "ListActions": lambda raw: list(raw.stream("ListActions", b"")),
    "DoExchange": lambda raw: list(raw.exchange([], ("airport-operation", "insert"))),
    "DoPut": lambda raw: list(raw.exchange([], method="DoPut")),
    "Handshake": lambda raw: list(raw.exchange([b""], method="Handshake")),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer ", "Basic cmlnaHQ=", "right", ""])
def test_every_call_without_a_valid_token_is_rejected(guarded: Server, call: str, authorization: str | None) -> None:
    headers = AIRPORT if authorization is None else (*AIRPORT, ("authorization", authorization))
    with Raw(guarded.location, headers) as raw:
        code, message = code_of(lambda: CALLS[call](raw))
    assert code is Code.UNAUTHENTICATED
    if authorization != "Bearer wrong":
        assert "CREATE SECRET" in message
    assert "right" not in message


# -- what the server sends --------------------------------------------------------------------------------------------


def everything_sent(error: grpc.RpcError) -> bytes:
    metadata: Any = error.trailing_metadata()
    trailers = b"\n".join(
        key.encode() + b"=" + (value if isinstance(value, bytes) else value.encode()) for key, value in metadata
    )
    return error.details().encode() + b"\n" + trailers


@pytest.mark.parametrize("airport", [True, False])
@pytest.mark.parametrize("table", ["leaky", "lost"])
def test_no_response_contains_a_path_or_a_traceback(server: Server, table: str, airport: bool) -> None:
    with Raw(server.location, AIRPORT if airport else ()) as raw:
        (endpoint,) = raw.endpoints("demo", "s", table)
        with pytest.raises(grpc.RpcError) as failed:
            list(raw.get(endpoint.ticket.ticket))
    sent = everything_sent(failed.value)
    assert failed.value.code() is Code.INTERNAL
    assert not re.search(rb"Traceback|File \"|\.py\b|/no/such|/tests/", sent), sent
    trailers = dict(failed.value.trailing_metadata())
    expected = f"internal error; see the server log, correlation id {trailers['x-correlation-id']}"
    assert failed.value.details() == expected


@pytest.mark.parametrize("table", ["leaky", "lost"])
def test_in_debug_mode_callers_see_the_text_of_an_exception_without_paths_and_tracebacks(table: str) -> None:
    quiet = logging.getLogger("test.quiet")
    with Server(catalog_named("demo"), port=0, debug=True, logger=quiet) as server, Raw(server.location) as raw:
        (endpoint,) = raw.endpoints("demo", "s", table)
        with pytest.raises(grpc.RpcError) as failed:
            list(raw.get(endpoint.ticket.ticket))
    expected = {"leaky": "cannot open <path>:", "lost": "[Errno 2] No such file or directory: '<path>'"}
    assert failed.value.details() == expected[table]
    assert not re.search(rb"Traceback|File \"|\.py\b|/no/such|/tests/", everything_sent(failed.value))


def test_all_errors_of_actions_reach_duckdb_without_its_three_second_retry(raw: Raw) -> None:
    for body in (b"\x81", encode({"catalog_name": "nope"})):
        with pytest.raises(grpc.RpcError) as failed:
            raw.action("list_schemas", body, ("airport-catalog", "nope"))
        trailers = dict(failed.value.trailing_metadata())
        assert trailers["x-arrow-status"] != "5", "5 is IOError, which the client retries"
        assert trailers["x-arrow-status-message-bin"].decode() == failed.value.details()
        assert all(isinstance(value, str) for value in json.loads(trailers["grpc-status-details-bin"]).values())


def test_errors_that_airport_action_shows_are_typed_errors_or_have_no_details() -> None:
    def fail(body: bytes) -> bytes:
        raise getattr(errors, body.decode())("no", key="a.key", row="7")

    with Server(CatalogBuilder("demo").build(), port=0, actions={"fail": fail}) as server, Raw(server.location) as raw:
        for name, body, typed in [
            ("fail", b"ConstraintViolation", "ConstraintException"),
            ("fail", b"PermissionDenied", "PermissionException"),
            ("fail", b"InvalidArgument", "InvalidInputException"),
            ("fail", b"NotFound", None),
            ("no_such", b"", None),
            ("list_schemas", b"\x81", None),  # airport_action can call it too, and does not name a catalog
        ]:
            with pytest.raises(grpc.RpcError) as failed:
                raw.action(name, body, ("airport-action-name", name))
            trailers = dict(failed.value.trailing_metadata())
            details = trailers.get("grpc-status-details-bin")
            if typed is None:
                assert details is None, "anything but a typed error would hide the message"
            else:
                assert decode(details, TypedError, "") == TypedError(exception_type=typed, message="no")
            if name == "fail":
                assert json.loads(trailers["skiway-error-bin"]) == {
                    "code": getattr(errors, body.decode()).code,
                    "key": "a.key",
                    "row": "7",
                }


def test_other_flight_clients_get_no_details_that_would_hide_the_error_class(server: Server) -> None:
    with Raw(server.location, ()) as raw:
        with pytest.raises(grpc.RpcError) as failed:
            raw.action("list_schemas", encode({"catalog_name": "nope"}))
        assert "grpc-status-details-bin" not in dict(failed.value.trailing_metadata())


def test_very_long_message_is_truncated_to_the_header_limit(server: Server) -> None:
    with Raw(server.location) as raw:
        code, message = code_of(lambda: raw.action("ü" * 20_000))
    assert code is Code.UNIMPLEMENTED
    assert message.endswith("…")
    assert len(message.encode()) <= 1_000


def test_a_flight_descriptor_of_kind_command(raw: Raw) -> None:
    command = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=b"SELECT 1").SerializeToString()
    code, text = code_of(lambda: raw.unary("GetFlightInfo", command))
    assert code is Code.NOT_FOUND
    assert "the call names no catalog" in text


def broken_lists() -> pa.Array:
    """Two lists, of which the first ends far beyond the values; the last offset is valid."""
    offsets = pa.py_buffer(np.array([0, 2**30, 1], np.int32))
    return pa.Array.from_buffers(pa.list_(pa.int32()), 2, [None, offsets], children=[pa.array([7], pa.int32())])


def broken_texts() -> pa.Array:
    offsets = pa.py_buffer(np.array([0, 2**30, 1], np.int32))
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"x")])


@pytest.mark.parametrize("broken", [broken_lists, broken_texts])
def test_rows_with_offsets_out_of_bounds_do_not_crash_the_server(broken: Callable[[], pa.Array]) -> None:
    column = broken()
    with Server(MemoryCatalog("c"), port=0) as server, AirportClient(server.location, "c") as db:
        db.create_schema("s")
        db.create_table("s.t", pa.schema({"x": column.type}))
        with pytest.raises(InvalidArgument, match="invalid record batch in the stream"):
            db.insert("s.t", [pa.RecordBatch.from_arrays([column], names=["x"])])
        assert db.count("s.t") == 0
