"""Every message of Flight SQL × callers, over the lake of the other matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pyarrow as pa
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage

from airport.raw import Raw
from authorization.callers import RESTRICTED, SOME, Caller, Least
from authorization.worlds import SCHEMA, Worlds
from skiway.airport.wire.frames import BatchReader, FrameWriter
from skiway.client import AirportClient
from skiway.flightsql.protocol import _KNOWN, ACTIONS, encode
from skiway.lake import Handles, Sources, airport_service
from skiway.model import flight_pb2 as flight
from skiway.model import flight_sql_pb2 as sql
from skiway.security import MemorySecrets

ADMINISTRATOR: Final = "administrator"
READ_TABLE: Final = Least("read", "table")
QUERY: Final = "SELECT name FROM lake.sales.people"
REFUSALS: Final = {
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.INVALID_ARGUMENT,  # a statement in which a table does not exist, for this caller
}


class Client:
    """The calls of one caller."""

    def __init__(self, raw: Raw, token: str) -> None:
        self._raw, self._header = raw, ("authorization", f"Bearer {token}")

    def ticket(self, command: Any) -> bytes:
        found = flight.FlightInfo.FromString(self._raw.unary("GetFlightInfo", _descriptor(command), self._header))
        ticket: bytes = found.endpoint[0].ticket.ticket
        return ticket

    def rows(self, ticket: bytes) -> str:
        reader = BatchReader(iter(list(self._raw.get(ticket, self._header))))
        return str(pa.Table.from_batches(reader, reader.schema).to_pylist())

    def prepare(self, text: str = QUERY) -> bytes:
        body = encode(sql.ActionCreatePreparedStatementRequest(query=text))
        (answer,) = self._raw.action("CreatePreparedStatement", body, self._header)
        result = sql.ActionCreatePreparedStatementResult.FromString(AnyMessage.FromString(answer).value)
        handle: bytes = result.prepared_statement_handle
        return handle

    def bind(self, handle: bytes) -> bytes:
        values = pa.record_batch({"a": ["Ada"]})
        writer = FrameWriter(values.schema)
        command = sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)
        messages = [writer.begin(descriptor=_descriptor(command)), *writer.batch(values)]
        (answer,) = self._raw.exchange(messages, self._header, method="DoPut")
        result = sql.DoPutPreparedStatementResult.FromString(flight.PutResult.FromString(answer).app_metadata)
        bound: bytes = result.prepared_statement_handle
        return bound

    def execute(self, handle: bytes) -> str:
        return self.rows(self.ticket(sql.CommandPreparedStatementQuery(prepared_statement_handle=handle)))

    def choose(self, action: str) -> str:
        values = {"catalog": flight.SessionOptionValue(string_value="lake")}
        body = flight.SetSessionOptionsRequest(session_options=values) if action == "SetSessionOptions" else None
        (answer,) = self._raw.action(action, body.SerializeToString() if body else b"", self._header)
        return repr(answer)

    def close(self, handle: bytes) -> None:
        body = encode(sql.ActionClosePreparedStatementRequest(prepared_statement_handle=handle))
        self._raw.action("ClosePreparedStatement", body, self._header)


def _descriptor(command: Any) -> bytes:
    data: bytes = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=encode(command)).SerializeToString()
    return data


Run = Callable[[Client, Client], str | bytes | None]


@dataclass(frozen=True)
class Row:
    """A call, made by the caller. The second client is that of the administrator, whose handles some rows steal.

    Listings are about `own` catalogs, so callers of other accounts may make the call, and see nothing. Some calls are
    `for_everybody` with a valid token, and what is `stolen` is refused to everybody but the administrator.
    """

    run: Run
    permission: str = "table.read"
    least: Least | None = READ_TABLE
    own: bool = False
    for_everybody: bool = False
    stolen: bool = False


def listing(command: Any) -> Row:
    return Row(lambda me, _: me.rows(me.ticket(command)), "catalog.read", Least("read"), own=True)


def fact(command: Any) -> Row:
    return Row(lambda me, _: me.rows(me.ticket(command)), for_everybody=True)


def statement(text: str) -> Row:
    return listing(sql.CommandStatementQuery(query=text))


ROWS: Final[dict[str, Row]] = {
    "CommandStatementQuery": Row(lambda me, _: me.ticket(sql.CommandStatementQuery(query=QUERY))),
    "TicketStatementQuery": Row(lambda me, _: me.rows(me.ticket(sql.CommandStatementQuery(query=QUERY)))),
    "ActionCreatePreparedStatementRequest": Row(lambda me, _: me.prepare()),
    "CommandPreparedStatementQuery": Row(lambda me, _: me.execute(me.bind(me.prepare(f"{QUERY} WHERE name = ?")))),
    "ActionClosePreparedStatementRequest": Row(lambda me, _: me.close(me.prepare())),
    "CommandGetCatalogs": listing(sql.CommandGetCatalogs()),
    "CommandGetDbSchemas": listing(sql.CommandGetDbSchemas()),
    "CommandGetTables": listing(sql.CommandGetTables(include_schema=True)),
    "CommandGetTableTypes": fact(sql.CommandGetTableTypes()),
    "CommandGetSqlInfo": fact(sql.CommandGetSqlInfo()),
    "CommandGetXdbcTypeInfo": fact(sql.CommandGetXdbcTypeInfo()),
    "CommandGetPrimaryKeys": fact(sql.CommandGetPrimaryKeys(table="people")),
    "CommandGetExportedKeys": fact(sql.CommandGetExportedKeys(table="people")),
    "CommandGetImportedKeys": fact(sql.CommandGetImportedKeys(table="people")),
    "CommandGetCrossReference": fact(sql.CommandGetCrossReference(pk_table="people", fk_table="people")),
}
SESSIONS: Final[dict[str, Row]] = {
    "action SetSessionOptions": Row(
        lambda me, _: me.choose("SetSessionOptions"), "catalog.read", Least("read"), own=True
    ),
    "action GetSessionOptions": Row(
        lambda me, _: me.choose("GetSessionOptions"), "catalog.read", Least("read"), own=True
    ),
    "action CloseSession": Row(lambda me, _: me.choose("CloseSession"), for_everybody=True),
    "USE": Row(lambda me, _: me.rows(me.ticket(sql.CommandStatementQuery(query="USE lake.sales")))),
    "information schema": statement("SELECT * FROM lake.information_schema.columns"),
    "SHOW": statement("SHOW ALL TABLES"),
    "EXPLAIN": Row(lambda me, _: me.rows(me.ticket(sql.CommandStatementQuery(query=f"EXPLAIN {QUERY}")))),
}
STOLEN: Final[dict[str, Row]] = {
    "ticket": Row(lambda me, other: me.rows(other.ticket(sql.CommandStatementQuery(query=QUERY))), stolen=True),
    "prepared statement": Row(lambda me, other: me.execute(other.prepare()), stolen=True),
    "unbound statement": Row(lambda me, other: me.bind(other.prepare(f"{QUERY} WHERE name = ?")), stolen=True),
    "closed statement": Row(lambda me, other: me.close(other.prepare()), stolen=True),
}


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Raw]:
    worlds = Worlds(tmp_path_factory.mktemp("matrix"))
    service = airport_service(worlds.access, handles=Handles(Sources(MemorySecrets()), worlds.warehouse), key=b"k" * 32)
    server = grpc.server(ThreadPoolExecutor(2))
    service.add_to(server)
    location = f"grpc://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    with AirportClient(location, "lake", token=ADMINISTRATOR) as owner:
        owner.insert("sales.people", pa.table({"id": [1, 2], "name": ["Ada", "Grace"], "small": [1, 2]}, SCHEMA))
    with Raw(location, ()) as client:
        yield client
    server.stop(0).wait()
    service.close()


def test_every_message_has_a_rule() -> None:
    assert ROWS.keys() == {name for name in _KNOWN if not name.endswith("Result")}, "add what the new message requires"
    refused = {"BeginTransaction", "EndTransaction", "BeginSavepoint", "EndSavepoint"}
    of_sessions = {"SetSessionOptions", "GetSessionOptions", "CloseSession"}
    assert of_sessions == {name.removeprefix("action ") for name in SESSIONS if name.startswith("action ")}
    assert ACTIONS.keys() - refused == {"CreatePreparedStatement", "ClosePreparedStatement", *of_sessions}


def is_allowed(row: Row, caller: Caller) -> bool:
    if row.stolen:
        return caller.name == ADMINISTRATOR
    if row.for_everybody:
        return caller.name != "nobody"
    return (caller.account_id == "a1" or (row.own and bool(caller.account_id))) and (
        caller.has_role_for([row.permission]) or caller.has_grant_for(row.least)
    )


@pytest.mark.parametrize("name", [*ROWS, *SESSIONS, *STOLEN])
def test_row(name: str, raw: Raw) -> None:
    row = (ROWS | SESSIONS | STOLEN)[name]
    for caller in SOME:
        code, shown = grpc.StatusCode.OK, ""
        try:
            shown = str(row.run(Client(raw, caller.name), Client(raw, ADMINISTRATOR)))
        except grpc.RpcError as error:
            found: Any = error
            code = found.code()
        where = f"{name} by {caller}: {code}"
        assert (code is grpc.StatusCode.OK) == is_allowed(row, caller), where
        assert code in REFUSALS or code is grpc.StatusCode.OK, where
        assert caller.account_id == "a1" or "sales" not in shown, where
        assert "hidden" not in shown or caller.has_role_for(["table.read"]) or "elsewhere" in caller.grants, where


@pytest.mark.parametrize("name", [*ROWS, *SESSIONS])
def test_restricted_caller(name: str, raw: Raw) -> None:
    """A policy hides the row of Grace."""
    assert "Grace" not in str((ROWS | SESSIONS)[name].run(Client(raw, RESTRICTED.name), Client(raw, ADMINISTRATOR)))
