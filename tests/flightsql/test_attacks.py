"""Forged, foreign and broken messages of Flight SQL: each is refused with a reason, and nothing is read."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

import scope
from airport.raw import Raw
from lake.lakes import Lake
from runtime.servers import eventually
from skiway.airport.wire.frames import BatchReader, FrameWriter
from skiway.errors import PreconditionFailed
from skiway.flightsql import FlightSql
from skiway.flightsql.protocol import _Planned, _Prepared, encode, is_flight_sql
from skiway.metastore.platform import signing_key
from skiway.model import flight_pb2 as flight
from skiway.model import flight_sql_pb2 as sql
from skiway.sql import QueryEngine

QUERY = "SELECT name FROM s.people WHERE id = 1"


def as_(token: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


@pytest.fixture
def raw(lake: Lake) -> Iterator[Raw]:
    with Raw(lake.location, ()) as client:
        yield client


def descriptor(command: bytes) -> bytes:
    data: bytes = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=command).SerializeToString()
    return data


def info(raw: Raw, command: bytes, token: str = "reader", *more: tuple[str, str]) -> flight.FlightInfo:
    return flight.FlightInfo.FromString(raw.unary("GetFlightInfo", descriptor(command), as_(token), *more))


def planned(raw: Raw, text: str = QUERY, token: str = "reader") -> bytes:
    """The ticket of a query."""
    (endpoint,) = info(raw, encode(sql.CommandStatementQuery(query=text)), token).endpoint
    return endpoint.ticket.ticket


def read(raw: Raw, ticket: bytes, token: str = "reader") -> list[dict[str, Any]]:
    reader = BatchReader(iter(list(raw.get(ticket, as_(token)))))
    rows: list[dict[str, Any]] = pa.Table.from_batches(reader, reader.schema).to_pylist()
    return rows


def prepared(raw: Raw, text: str, token: str = "reader") -> bytes:
    (body,) = raw.action(
        "CreatePreparedStatement", encode(sql.ActionCreatePreparedStatementRequest(query=text)), as_(token)
    )
    packed = AnyMessage.FromString(body)
    return sql.ActionCreatePreparedStatementResult.FromString(packed.value).prepared_statement_handle


def bound(raw: Raw, handle: bytes, values: pa.RecordBatch, token: str = "reader") -> bytes:
    writer = FrameWriter(values.schema)
    command = encode(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle))
    messages = [writer.begin(descriptor=descriptor(command)), *writer.batch(values)]
    (answer,) = raw.exchange(messages, as_(token), method="DoPut")
    result = sql.DoPutPreparedStatementResult.FromString(flight.PutResult.FromString(answer).app_metadata)
    return result.prepared_statement_handle


def refusal(call: Any, *arguments: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments)
    error: Any = caught.value
    return error.code(), error.details()


def outcome(call: Any) -> tuple[grpc.StatusCode, str]:
    try:
        call()
    except grpc.RpcError as error:
        return error.code(), str(error.details())  # type: ignore[attr-defined]
    return grpc.StatusCode.OK, ""


def test_ticket_and_handle_work_for_their_caller(raw: Raw) -> None:
    assert read(raw, planned(raw)) == [{"name": "Ada"}]
    handle = bound(raw, prepared(raw, "SELECT name FROM s.people WHERE id = ?"), pa.record_batch({"a": [2]}))
    command = encode(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle))
    (endpoint,) = info(raw, command).endpoint
    assert read(raw, endpoint.ticket.ticket) == [{"name": "Grace"}]
    again = bound(raw, handle, pa.record_batch({"a": [1]}))  # a bound statement takes other values
    (endpoint,) = info(raw, encode(sql.CommandPreparedStatementQuery(prepared_statement_handle=again))).endpoint
    assert read(raw, endpoint.ticket.ticket) == [{"name": "Ada"}]


def test_ticket_of_another_caller(raw: Raw) -> None:
    """Even a caller who may read the table cannot use it, and one who may not least of all."""
    for token in ("writer", "nothing"):
        code, message = refusal(read, raw, planned(raw), token)
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "belongs to another caller" in message


def test_prepared_statement_of_another_caller(raw: Raw) -> None:
    handle = prepared(raw, "SELECT name FROM s.people WHERE id = ?")
    command = encode(sql.CommandPreparedStatementQuery(prepared_statement_handle=prepared(raw, QUERY)))
    close = encode(sql.ActionClosePreparedStatementRequest(prepared_statement_handle=handle))
    for call in (
        lambda: info(raw, command, "writer"),
        lambda: bound(raw, handle, pa.record_batch({"a": [2]}), "writer"),
        lambda: raw.action("ClosePreparedStatement", close, as_("writer")),
    ):
        assert refusal(call)[0] is grpc.StatusCode.PERMISSION_DENIED


def test_forged_tickets_and_handles(lake: Lake, raw: Raw) -> None:
    """Changed by one bit, of another server, of another purpose, or without a signature."""
    ticket = planned(raw)
    handle = sql.TicketStatementQuery.FromString(AnyMessage.FromString(ticket).value).statement_handle
    flipped = bytearray(handle)
    flipped[random.Random(1).randrange(1, len(flipped))] ^= 1
    foreign = FlightSql(None, key=b"another key")._tickets.issue(  # type: ignore[arg-type]
        FlightSql(None, key=signing_key(lake.stores, lake.secrets))._tickets.redeem(handle)  # type: ignore[arg-type]
    )
    for forged in (bytes(flipped), foreign, prepared(raw, QUERY), b"", b"SELECT 1"):
        code, message = refusal(read, raw, encode(sql.TicketStatementQuery(statement_handle=forged)))
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "the ticket was not issued by this server, or was modified" in message
        command = encode(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle))
        code, message = refusal(info, raw, command)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "the prepared statement handle was not issued by this server" in message
    code, _ = refusal(read, raw, handle)  # as a ticket of Airport
    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_tickets_and_handles_expire() -> None:
    now = [1000.0]
    door = FlightSql(None, key=b"k", clock=lambda: now[0])  # type: ignore[arg-type]
    ticket = door._tickets.issue(_Planned("c", "", "SELECT 1", ""))
    handle = door._handles.issue(_Prepared("c", "", "SELECT 1", None))
    now[0] += 3601
    with pytest.raises(PreconditionFailed, match="the ticket has expired: execute the statement again"):
        door._tickets.redeem(ticket)
    assert door._handles.redeem(handle).sql == "SELECT 1"
    now[0] += 24 * 3600
    with pytest.raises(PreconditionFailed, match="handle has expired: prepare the statement again"):
        door._handles.redeem(handle)


@pytest.mark.parametrize("seed", scope.sample(range(200), every=20))
def test_broken_messages(raw: Raw, seed: int) -> None:
    """Whatever is sent, the answer is an error of the caller, and the next call works."""
    random_ = random.Random(seed)
    commands = [
        encode(sql.CommandStatementQuery(query=QUERY)),
        encode(sql.CommandGetTables(catalog="managed", table_name_filter_pattern="%", include_schema=True)),
        encode(sql.CommandPreparedStatementQuery(prepared_statement_handle=b"x")),
        AnyMessage(type_url="type.googleapis.com/arrow.flight.protocol.sql.CommandUnknown").SerializeToString(),
        AnyMessage(type_url="type.googleapis.com/arrow.flight.protocol.sql.\n<b>").SerializeToString(),
        encode(sql.TicketStatementQuery(statement_handle=b"x")),
    ]
    broken = bytearray(random_.choice(commands))
    for _ in range(random_.randint(1, 4)):
        broken[random_.randrange(len(broken))] = random_.randrange(256)
    data = bytes(broken[: random_.randint(1, len(broken))])
    writer = FrameWriter(pa.schema({"a": pa.int64()}))
    calls = [
        lambda: info(raw, data),
        lambda: raw.unary("GetSchema", descriptor(data), as_("reader")),
        lambda: list(raw.get(data, as_("reader"))),
        lambda: raw.action("CreatePreparedStatement", data, as_("reader")),
        lambda: list(raw.exchange([writer.begin(descriptor=descriptor(data))], as_("reader"), method="DoPut")),
    ]
    faults = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
    assert not [found for call in calls if (found := outcome(call))[0] in faults]
    assert read(raw, planned(raw, "SELECT 1 AS a")) == [{"a": 1}]


def test_messages_in_the_wrong_call(raw: Raw) -> None:
    tables, query = encode(sql.CommandGetTables()), encode(sql.CommandStatementQuery(query=QUERY))
    create = encode(sql.ActionCreatePreparedStatementRequest(query=QUERY))
    for call in (
        lambda: list(raw.get(query, as_("reader"))),
        lambda: info(raw, create),
        lambda: raw.action("ClosePreparedStatement", create, as_("reader")),
        lambda: list(
            raw.exchange(
                [FrameWriter(pa.schema({})).begin(descriptor=descriptor(tables))], as_("reader"), method="DoPut"
            )
        ),
    ):
        code, message = refusal(call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "does not belong in this call" in message
    in_transaction = encode(sql.CommandStatementQuery(query=QUERY, transaction_id=b"x"))
    assert refusal(info, raw, in_transaction)[0] is grpc.StatusCode.UNIMPLEMENTED
    code, message = refusal(raw.action, "BeginTransaction", b"", as_("writer"))
    assert code is grpc.StatusCode.UNIMPLEMENTED
    assert "BeginTransaction is not supported: Flight SQL is read-only here" in message


def test_keys_are_listed_as_empty(raw: Raw) -> None:
    """Tables have no keys, and clients ask for them."""
    for command in (
        sql.CommandGetPrimaryKeys(table="people"),
        sql.CommandGetExportedKeys(table="people"),
        sql.CommandGetImportedKeys(table="people"),
        sql.CommandGetCrossReference(pk_table="people", fk_table="people"),
    ):
        found = info(raw, encode(command))
        assert pa.ipc.read_schema(pa.py_buffer(found.schema)).names
        assert read(raw, found.endpoint[0].ticket.ticket) == []


def test_facts_about_the_server(raw: Raw) -> None:
    facts = {each["info_name"]: each["value"] for each in read(raw, encode(sql.CommandGetSqlInfo()))}
    assert (facts[0], facts[3], facts[4], facts[504]) == ("Skiway", True, True, '"')
    assert read(raw, encode(sql.CommandGetSqlInfo(info=[3, 12345]))) == [{"info_name": 3, "value": True}]


def test_other_commands_are_text_of_queries(lake: Lake, raw: Raw) -> None:
    """The Flight service is shared with Airport, where the command is SQL."""
    assert not is_flight_sql(b"SELECT 1")
    found = pa.ipc.read_schema(pa.py_buffer(info(raw, b"\nSELECT 1 AS type_googleapis").schema))
    assert found.names == ["type_googleapis"]


def test_pattern_of_many_wildcards_takes_no_time(raw: Raw) -> None:
    command = sql.CommandGetTables(table_name_filter_pattern="%e" * 500 + "x", db_schema_filter_pattern="%")
    assert read(raw, encode(command)) == []


def test_actions_are_listed(raw: Raw) -> None:
    listed = {flight.ActionType.FromString(each).type for each in raw.stream("ListActions", b"", as_("reader"))}
    assert {"CreatePreparedStatement", "ClosePreparedStatement", "endpoints"} <= listed


MANY = ",".join(map(str, range(30_000)))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"SELECT id FROM s.people WHERE id IN ({MANY})", "names, constants and symbols, the maximum is 50000"),
        ("SELECT " + "1," * 30_000 + "1", "names, constants and symbols, the maximum is 50000"),
        ("SELECT id FROM s.people WHERE id = 1" + " OR id = 1" * 20_000, "the maximum is 50000"),
        ("SELECT '" + "''" * 400_000 + "'", "names, constants and symbols, the maximum is 50000"),
        ("SELECT '" + "x" * 3_000_000 + "'", "3000009 characters, the maximum is 1048576"),
        ("SELECT " + "(" * 40_000 + "1" + ")" * 40_000, "the maximum is 50000"),
        ("SELECT " + "[" * 20_000 + "1" + "]" * 20_000, "memory exhausted|Max expression depth"),
        ("SELECT " + "NOT " * 4_000 + "true", "Max expression depth"),
        (" UNION ALL ".join(["SELECT id FROM s.people"] * 1_001), "names tables 1001 times, the maximum is 1000"),
    ],
    ids=["values", "columns", "conditions", "quotes", "text", "parentheses", "lists", "not", "tables"],
)
def test_huge_query_is_rejected_before_work_begins(raw: Raw, text: str, reason: str) -> None:
    started = time.monotonic()
    for call in (lambda: planned(raw, text), lambda: prepared(raw, text)):
        code, message = refusal(call)
        assert code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT)
        assert re.search(reason, message)
        assert len(message) < 500
    assert time.monotonic() - started < 15  # most took longer than a minute


def test_huge_parameters_are_rejected_before_work_begins(raw: Raw) -> None:
    handle = prepared(raw, "SELECT name FROM s.people WHERE name = ?")
    value: Any
    for value, reason in (
        ("x" * 3_000_000, "the parameters have 300[0-9]+ bytes, the maximum is 65536"),
        ("'" * 100_000, "the parameters have 100[0-9]+ bytes, the maximum is 65536"),
        ("'" * 60_000, "names, constants and symbols, the maximum is 50000"),
        (list(range(100_000)), "the parameters have 800[0-9]+ bytes, the maximum is 65536"),
    ):
        code, message = refusal(bound, raw, handle, pa.record_batch({"a": [value]}))
        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert re.search(reason, message)
    code, message = refusal(bound, raw, handle, pa.record_batch({f"c{each}": [1] for each in range(2_000)}))
    assert "the query has 1 parameters, but 2000 values were bound" in message
    code, message = refusal(prepared, raw, "SELECT " + "?," * 10_000 + "?")
    assert "the query has 10001 parameters, the maximum is 1000" in message


def test_parameter_that_is_repeated_takes_no_time(raw: Raw) -> None:
    handle = prepared(raw, "SELECT " + "$1 + " * 200 + "$1 AS a")
    command = encode(
        sql.CommandPreparedStatementQuery(prepared_statement_handle=bound(raw, handle, pa.record_batch({"1": [2]})))
    )
    assert read(raw, info(raw, command).endpoint[0].ticket.ticket) == [{"a": 402}]


def test_huge_listings_take_no_time(raw: Raw) -> None:
    started = time.monotonic()
    for command, rows in (
        (sql.CommandGetTables(table_name_filter_pattern="%e" * 500_000, db_schema_filter_pattern="%"), 0),
        (sql.CommandGetTables(table_types=[f"TABLE {each}" for each in range(50_000)]), 0),
        (sql.CommandGetDbSchemas(db_schema_filter_pattern="_" * 1_000_000), 0),
        (sql.CommandGetSqlInfo(info=[3] * 300_000), 1),
        (sql.CommandGetPrimaryKeys(table="x" * 1_000_000), 0),
    ):
        assert len(read(raw, info(raw, encode(command)).endpoint[0].ticket.ticket)) == rows
    assert time.monotonic() - started < 10


def test_query_ends_when_its_client_disconnects(lake: Lake, queries: QueryEngine) -> None:
    text = "SELECT count(*) AS n FROM range(1000000000) a, range(1000000) b WHERE a.range % 7 <> b.range % 11"
    with Raw(lake.location, ()) as client:
        ticket = planned(client, text)
        leaving: Any = client.get(ticket, as_("reader"))
        eventually(lambda: queries._queries._used.total() == 1)
        leaving.cancel()
        eventually(lambda: queries._queries._used.total() == 0, within_s=10)
        assert read(client, planned(client, "SELECT 1 AS a")) == [{"a": 1}]
