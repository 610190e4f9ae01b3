"""Every action, exchange, ticket and method of the lake's Airport server × callers.

An administrator prepares each call and makes all others that belong to it; the caller makes only the call of the row, with
the administrator's own request. So a ticket or a listing that somebody passed on does not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final

import grpc
import pyarrow as pa
import pytest
from google.protobuf.message import Message

from authorization.callers import RESTRICTED, ROLES_ONLY, SOME, Caller, Least
from authorization.worlds import RUNNING_QUERY, SCHEMA, Worlds, unchanged
from skiway.airport.server.actions import ACTIONS
from skiway.airport.server.call_handlers import METHODS
from skiway.airport.server.exchange import EXCHANGES
from skiway.airport.wire import protocol
from skiway.client import AirportClient
from skiway.client.connection import Connection, Duplex, Location, Stream
from skiway.errors import InvalidArgument, NotFound, PermissionDenied, SkiwayError, Unauthorized, Unsupported
from skiway.lake import Handles, Sources, airport_service
from skiway.lake.system.schema import SystemSchema
from skiway.model import flight_pb2 as flight
from skiway.model import v1
from skiway.security import MemorySecrets

ADMINISTRATOR = "administrator"
REFUSALS = (NotFound, PermissionDenied, Unauthorized)
READ_TABLE, WRITE_TABLE = Least("read", "table"), Least("write", "table")
WRITE_NAMESPACE, WRITE_CATALOG = Least("write", "namespace"), Least("write", "catalog")
ANYWHERE = Least("read")
READ, WRITE, SCHEMAS = "table.read", "table.write", "namespace.write"
PEOPLE = "sales.people"
PATH = flight.FlightDescriptor(type=flight.FlightDescriptor.PATH, path=["lake", "sales", "people"])
ROWS = pa.table({"id": [1, 2], "name": ["Ada", "Grace"], "small": [1, 2]}, SCHEMA)


@dataclass(frozen=True)
class Row:
    """A statement that makes the call, the role's permission and the least privilege for it.

    A call about `own` catalogs names none, so callers of other accounts may make it, and see nothing. What is not
    `supported` fails for everybody; a call that fails with `because` fails with this key for those who may make it.
    """

    run: Callable[[AirportClient], Any]
    permission: str = "catalog.read"
    least: Least | None = READ_TABLE
    changes: bool = False
    supported: bool = True
    for_everybody: bool = False
    own: bool = False
    with_rows: bool = False
    because: str = ""


def write(run: Callable[[AirportClient], Any], least: Least | None = WRITE_TABLE, **more: Any) -> Row:
    return Row(run, more.pop("permission", WRITE), least, changes=True, **more)


def read(run: Callable[[AirportClient], Any], **more: Any) -> Row:
    return Row(run, READ, **more)


def calls(db: AirportClient) -> Any:
    return db._session.calls


def get_schema(db: AirportClient) -> Any:
    return calls(db).connection.call("GetSchema", PATH, calls(db)._metadata(scan=True, in_catalog=True))


def handshake(db: AirportClient) -> list[bytes]:
    duplex = calls(db).connection.exchange("Handshake", calls(db)._metadata(scan=False, in_catalog=False))
    duplex.send(flight.HandshakeRequest(payload=b"hello").SerializeToString())
    duplex.half_close()
    return list(duplex)


def list_actions(db: AirportClient) -> list[bytes]:
    metadata = calls(db)._metadata(scan=True, in_catalog=False)
    return list(calls(db).connection.stream("ListActions", flight.Criteria(), metadata))  # an empty message


def status_of_own(db: AirportClient) -> Any:
    return calls(db).transaction_status(calls(db).create_transaction())


def row_ids(db: AirportClient) -> list[int]:
    return [1 << 40]


def function_info(db: AirportClient) -> Any:
    return calls(db).catalog_action("table_function_flight_info", b"\x80")


def command(db: AirportClient) -> Any:
    return db.take_flight("SELECT name FROM sales.people", headers={protocol.CATALOG: "lake"})


def exchange(operation: str) -> Callable[[AirportClient], list[bytes]]:
    def run(db: AirportClient) -> list[bytes]:
        duplex = calls(db).exchange(db._session.trace(PATH), operation, returning=False)
        duplex.half_close()
        return list(duplex)

    return run


ACTION_ROWS: Final[dict[str, Row]] = {
    "list_schemas": Row(lambda db: calls(db).list_schemas()),
    "catalog_version": Row(lambda db: db.version()),
    "endpoints": read(lambda db: db.endpoints(PEOPLE)),
    "flight_info": read(lambda db: db.bind(PEOPLE, at_timestamp="2100-01-01 00:00:00"), with_rows=True),
    "column_statistics": read(lambda db: db.statistics(PEOPLE, "id")),
    "table_function_flight_info": Row(function_info, supported=False),
    "create_transaction": Row(lambda db: calls(db).create_transaction()),
    "get_transaction_status": Row(status_of_own),
    "commit_transaction": Row(lambda db: calls(db).end_transaction("commit_transaction", "x"), supported=False),
    "rollback_transaction": Row(lambda db: calls(db).end_transaction("rollback_transaction", "x"), supported=False),
    "create_schema": write(lambda db: db.create_schema("new"), WRITE_CATALOG, permission=SCHEMAS),
    "drop_schema": write(lambda db: db.drop_schema("empty"), WRITE_CATALOG, permission=SCHEMAS),
    "create_table": write(lambda db: db.create_table("sales.new", SCHEMA), WRITE_NAMESPACE),
    "drop_table": write(lambda db: db.drop_table(PEOPLE)),
    "rename_table": write(lambda db: db.rename_table(PEOPLE, "persons")),
    "add_column": write(lambda db: db.add_column(PEOPLE, pa.field("x", pa.int64()))),
    "remove_column": write(lambda db: db.remove_column(PEOPLE, "name")),
    "rename_column": write(lambda db: db.rename_column(PEOPLE, "name", "title")),
    "change_column_type": write(lambda db: db.change_column_type(PEOPLE, "small", pa.int64())),
    "set_not_null": write(lambda db: db.set_not_null(PEOPLE, "id"), supported=False),
    "drop_not_null": write(lambda db: db.drop_not_null(PEOPLE, "id")),
    "set_default": write(lambda db: db.set_default(PEOPLE, "id", "1"), supported=False),
    "add_constraint": write(lambda db: db.add_constraint(PEOPLE, "CHECK (id > 0)"), supported=False),
    "add_field": write(lambda db: db.add_field(PEOPLE, ["name"], pa.field("x", pa.int64())), supported=False),
    "rename_field": write(lambda db: db.rename_field(PEOPLE, ["name", "x"], "y"), supported=False),
    "remove_field": write(lambda db: db.remove_field(PEOPLE, ["name", "x"]), supported=False),
    "delete": write(lambda db: db.json.delete(PEOPLE, row_ids(db)), supported=False),  # there is no such row
}
EXCHANGE_ROWS: Final[dict[str, Row]] = {
    "insert": write(lambda db: db.insert(PEOPLE, ROWS)),
    "update": write(lambda db: db.update(PEOPLE, pa.table({"rowid": row_ids(db), "id": [5]})), supported=False),
    "delete": write(lambda db: db.delete(PEOPLE, row_ids(db)), supported=False),
    "scalar_function": Row(exchange("scalar_function"), supported=False),
    "table_function_in_out": Row(exchange("table_function_in_out"), supported=False),
}
METHOD_ROWS: Final[dict[str, Row]] = {
    "Handshake": Row(handshake, for_everybody=True),
    "ListActions": Row(list_actions, for_everybody=True),
    "ListFlights": Row(lambda db: list(db.flights()), least=ANYWHERE, own=True),
    "GetFlightInfo": read(lambda db: db.take_flight(["lake", "sales", "people"])),
    "GetSchema": read(get_schema),
    "DoGet": read(lambda db: db.scan(PEOPLE).read_all(), with_rows=True),
    "DoPut": write(lambda db: db.json.insert(PEOPLE, ROWS)),
}


def current_snapshot(db: AirportClient) -> int:
    with AirportClient(calls(db).connection.location.text, db.catalog, token=ADMINISTRATOR) as administrator:
        return int(administrator.scan("skiway.snapshots").read_all()["snapshot_id"][0].as_py())


TICKET_ROWS: Final[dict[str, Row]] = {
    "table": read(lambda db: db.scan(PEOPLE).read_all(), with_rows=True),
    "databases": Row(lambda db: db.databases(), least=ANYWHERE, own=True),
    "command": read(lambda db: command(db).read_all(), with_rows=True),
}
FUNCTION_ROWS: Final[dict[str, Row]] = {
    "query": read(lambda db: db.call("skiway.query", "SELECT name FROM sales.people").read_all(), with_rows=True),
    "explain": read(lambda db: db.call("skiway.explain", "SELECT name FROM sales.people").read_all(), with_rows=True),
    "histogram": read(lambda db: db.call("skiway.histogram", PEOPLE, "name").read_all(), with_rows=True),
    "seen_by": Row(
        lambda db: db.call("skiway.seen_by", PEOPLE, "bob").read_all(), "policy.manage", ROLES_ONLY, with_rows=True
    ),
    "end_query": Row(
        lambda db: db.call("skiway.end_query", RUNNING_QUERY).read_all(), "grant.manage", ROLES_ONLY, changes=True
    ),
    "create_view": write(
        lambda db: db.call("skiway.create_view", "sales.v", "SELECT 1 AS a").read_all(),
        WRITE_NAMESPACE,
        permission="view.write",
    ),
    "drop_view": write(
        lambda db: db.call("skiway.drop_view", "sales.adults").read_all(), WRITE_NAMESPACE, permission="view.write"
    ),
    "rollback_to": write(
        lambda db: db.call("skiway.rollback_to", PEOPLE, current_snapshot(db)).read_all(), with_rows=True
    ),
    "tag": write(lambda db: db.call("skiway.tag", PEOPLE, "x").read_all(), with_rows=True),
    "branch": write(lambda db: db.call("skiway.branch", PEOPLE, "x").read_all(), with_rows=True),
    "undrop": write(lambda db: db.call("skiway.undrop", "sales.dropped").read_all(), WRITE_NAMESPACE),
    "partition_by": write(lambda db: db.call("skiway.partition_by", PEOPLE, "name").read_all()),
    "sort_by": write(lambda db: db.call("skiway.sort_by", PEOPLE, "name").read_all()),
    "comment_on": write(lambda db: db.call("skiway.comment_on", PEOPLE, "name", "x").read_all()),
    "merge": write(lambda db: db.call("skiway.merge", PEOPLE, "SELECT 'x' AS name", "false").read_all()),
    "refresh": write(
        lambda db: db.call("skiway.refresh", PEOPLE).read_all(),
        ROLES_ONLY,
        permission="connector.manage",
        supported=False,
        because="table.managed",
    ),
    "profile": write(
        lambda db: db.call("skiway.profile", PEOPLE).read_all(), ROLES_ONLY, permission="connector.manage"
    ),
    "create_branch": write(
        lambda db: db.call("skiway.create_branch", "new").read_all(), WRITE_CATALOG, permission=SCHEMAS
    ),
    "delete_branch": write(
        lambda db: db.call("skiway.delete_branch", "dev").read_all(),
        Least("manage", "catalog"),
        permission="catalog.write",
    ),
    "merge_branch": write(
        lambda db: db.call("skiway.merge_branch", "dev").read_all(), WRITE_CATALOG, permission=SCHEMAS
    ),
    "diff_branch": Row(lambda db: db.call("skiway.diff_branch", "dev").read_all()),
    "diff_statistics": Row(lambda db: db.call("skiway.diff_statistics", "dev").read_all()),
    "diff_rows": read(lambda db: db.call("skiway.diff_rows", "dev", PEOPLE).read_all(), with_rows=True),
}
SYSTEM_TABLES: Final = (
    *(
        "tables",
        "columns",
        "snapshots",
        "files",
        "column_stats",
        "column_history",
        "partitions",
        "views",
        "policies",
        "quality",
        "jobs",
        "queries",
        "settings",
    ),
    *("tokens", "audit", "usage", "lineage", "reports", "events", "plans", "branches", "query_history"),
)


def system_table(name: str) -> Row:
    return Row(lambda db: db.scan(f"skiway.{name}").read_all(), with_rows=True)


ROWS_BY_CALL: Final = {
    **{("DoAction", name): row for name, row in ACTION_ROWS.items()},
    **{("DoExchange", name): row for name, row in EXCHANGE_ROWS.items()},
    **{(name, ""): row for name, row in METHOD_ROWS.items()},
    ("GetFlightInfo", "command"): read(command),
    **{("DoGet", name): row for name, row in (TICKET_ROWS | FUNCTION_ROWS).items()},
    **{("DoGet", f"skiway.{name}"): system_table(name) for name in SYSTEM_TABLES},
}


class Disguise(Connection):
    """A connection of the administrator, on which another caller makes the calls of one row."""

    row: tuple[str, str] = ("", "")
    caller = ADMINISTRATOR

    def call(self, method: str, request: Message, metadata: Any) -> bytes:
        return super().call(method, request, self._as_caller(method, metadata))

    def stream(self, method: str, request: Message, metadata: Any) -> Stream:
        return super().stream(method, request, self._as_caller(method, metadata))

    def exchange(self, method: str, metadata: Any) -> Duplex:
        return super().exchange(method, self._as_caller(method, metadata))

    def _as_caller(self, method: str, metadata: Any) -> Any:
        given = dict(metadata)
        wanted, name = self.row
        named = {"DoAction": protocol.ACTION_NAME, "DoExchange": protocol.OPERATION}.get(method)
        if method != wanted or (named and given.get(named) != name):
            return metadata
        # A transaction belongs to whoever began it, and that was the administrator.
        dropped = (protocol.AUTHORIZATION, protocol.TRANSACTION_ID, protocol.JSON_TRANSACTION_ID)
        kept = [(key, value) for key, value in metadata if key not in dropped]
        return [*kept, (protocol.AUTHORIZATION, f"Bearer {self.caller}")]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    return Worlds(tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def location(worlds: Worlds) -> Iterator[str]:
    service = airport_service(worlds.access, handles=Handles(Sources(MemorySecrets()), worlds.warehouse), key=b"k" * 32)
    server = grpc.server(ThreadPoolExecutor(2))
    service.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"grpc://127.0.0.1:{port}"
    server.stop(0).wait()
    service.close()


@pytest.fixture(scope="module")
def connection(location: str) -> Iterator[Disguise]:
    found = Disguise(Location.parse(location), tls=None, timeout_s=20, max_message_bytes=2**26)
    yield found
    found.close()


def test_every_call_has_a_rule() -> None:
    assert ACTION_ROWS.keys() == ACTIONS.keys(), "add what the new action requires to ACTION_ROWS"
    assert EXCHANGE_ROWS.keys() == set(EXCHANGES), "add what the new exchange requires to EXCHANGE_ROWS"
    wrappers = {"DoAction", "DoExchange"}
    assert METHOD_ROWS.keys() | wrappers == METHODS.keys(), "add what the new method requires to METHOD_ROWS"


def test_every_function_and_system_table_has_a_rule() -> None:
    system: Any = SystemSchema(None, v1.Catalog(), None)  # type: ignore[arg-type]
    functions = {each.name for each in system.table_functions()}
    assert FUNCTION_ROWS.keys() == functions, "add what the new function requires to FUNCTION_ROWS"
    assert set(SYSTEM_TABLES) == {each.name for each in system.tables()}, "add the new table to SYSTEM_TABLES"


def prepared(connection: Disguise, catalog: str = "lake") -> AirportClient:
    """A client that has the listing of the administrator."""
    connection.row = ("", "")
    db = AirportClient(connection.location.text, catalog, token=ADMINISTRATOR)
    db._session.calls = replace(db._session.calls, connection=connection)
    db.schemas()
    for table in ("sales.people", *(f"skiway.{name}" for name in SYSTEM_TABLES)):
        db.table(table)
    return db


def content(found: Any) -> str:
    """Everything that a call returned."""
    return str(found.to_pylist() if isinstance(found, pa.Table) else found)


def is_allowed(row: Row, caller: Caller) -> bool:
    if row.for_everybody:
        return caller.name != "nobody"
    return (caller.account_id == "a1" or (row.own and bool(caller.account_id))) and (
        caller.has_role_for([row.permission]) or caller.has_grant_for(row.least)
    )


ON_MAIN_ONLY: Final = {
    "undrop",
    "refresh",
    "profile",
    "command",
    "GetFlightInfo",
    "GetSchema",
    "ListFlights",
    "databases",
}
"""The calls that need something which a branch does not have, or that name a catalog themselves."""
ON_BRANCHES: Final = [
    (which, "lake@dev")
    for which in ROWS_BY_CALL
    if not ON_MAIN_ONLY.intersection(which) and not any(part.endswith("_branch") for part in which)
]


@pytest.mark.parametrize(
    ("which", "catalog"),
    [*((which, "lake") for which in ROWS_BY_CALL), *ON_BRANCHES],
    ids=lambda each: each if isinstance(each, str) else " ".join(filter(None, each)),
)
def test_row(which: tuple[str, str], catalog: str, connection: Disguise, worlds: Worlds) -> None:
    row = ROWS_BY_CALL[which]
    db = prepared(connection, catalog)
    if row.with_rows:
        db.insert(PEOPLE, ROWS)
    for caller in SOME:
        allowed = is_allowed(row, caller)
        with unchanged(worlds, allowed=allowed, changes=row.changes and row.supported):
            connection.row, connection.caller = (which[0], "" if which[0] == "DoGet" else which[1]), caller.name
            error: SkiwayError | None = None
            try:
                shown = content(row.run(db))
                assert caller.account_id == "a1" or row.for_everybody or "lake" not in shown
                assert "hidden" not in shown or caller.has_role_for([READ]) or "elsewhere" in caller.grants
            except SkiwayError as raised:
                error = raised
            where = f"{which} by {caller}: {error!r}"
            if not row.supported:
                assert error is not None, where
                assert not row.because or (error.key == row.because) == allowed, where
                # A request that names no object is rejected before anybody is asked for permissions.
                assert allowed or isinstance(error, (*REFUSALS, Unsupported, InvalidArgument)), where
            elif allowed:
                assert error is None, where
            else:
                assert isinstance(error, REFUSALS), where
        if row.changes and row.supported and allowed:
            db = prepared(connection, catalog)
            if row.with_rows:
                db.insert(PEOPLE, ROWS)


REFUSED_BY_POLICIES: Final = {"seen_by"}
"""Functions that read, and that callers under policies may not call."""
ALLOWED_BY_POLICIES: Final = {
    "insert",
    "DoPut",
    "create_table",
    "create_schema",
    "drop_schema",
    "create_view",
    "undrop",
    "refresh",
    "profile",
    "end_query",
    "create_branch",
    "delete_branch",
    "merge_branch",
}
"""The changes that a caller can make whom policies restrict on the table."""


@pytest.mark.parametrize(
    ("which", "catalog"),
    [*((which, "lake") for which in ROWS_BY_CALL), *ON_BRANCHES],
    ids=lambda each: each if isinstance(each, str) else " ".join(filter(None, each)),
)
def test_restricted_caller(which: tuple[str, str], catalog: str, connection: Disguise, worlds: Worlds) -> None:
    row = ROWS_BY_CALL[which]
    db = prepared(connection, catalog)
    db.insert(PEOPLE, ROWS)
    before = worlds.now.state()
    connection.row, connection.caller = (which[0], "" if which[0] == "DoGet" else which[1]), RESTRICTED.name
    error: SkiwayError | None = None
    try:
        assert "Grace" not in content(row.run(db))
    except SkiwayError as raised:
        error = raised
    if row.changes and not ALLOWED_BY_POLICIES.intersection(which):
        assert isinstance(error, PermissionDenied | Unsupported), f"{which}: {error!r}"
        assert worlds.now.state() == before
    elif REFUSED_BY_POLICIES.intersection(which):
        assert isinstance(error, PermissionDenied), f"{which}: {error!r}"
    elif row.supported:
        assert error is None, f"{which}: {error!r}"
    worlds.renew()


@pytest.mark.parametrize(
    ("caller", "tables"),
    [
        ("read on table", {"people"}),
        ("read on namespace", {"people", "orders"}),
        ("manage on catalog", {"people", "orders"}),
        ("default", {"people", "orders"}),
    ],
)
def test_listing_shows_what_is_granted(caller: str, tables: set[str], location: str) -> None:
    views = set() if caller == "read on table" else {"adults"}
    with AirportClient(location, "lake", token=caller) as db:
        shown = {schema.name: {table.name for table in schema.tables} for schema in db.schemas()}
        assert shown["sales"] == tables | views
        assert set(db.scan("skiway.tables").read_all()["table_name"].to_pylist()) == tables
        others = {"other"} if caller == "default" else set()
        assert set(db.databases()[0].to_pylist()) == {"lake", *others}
