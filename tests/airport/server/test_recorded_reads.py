"""The recorded conversations of DuckDB's Airport extension, replayed: its requests against our server, and the same
statements with our client, which must make the same requests."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airport.recorded import (
    conversations,
    listing,
    meaning,
    ours,
    plain,
    renamed_body,
    result_of,
    table_of,
    theirs,
    without_unused_transaction,
)
from client.recorded_catalog import KEYED, WRITTEN, RecordedCatalog, service
from client.recorder import Recorder, recording
from skiway.airport.wire import protocol
from skiway.airport.wire.frames import BatchReader
from skiway.airport.wire.protocol import ROWID_COLUMN, EndpointsRequest, TransactionInfo, VersionInfo, decode
from skiway.client import AirportClient, col
from skiway.errors import NotFound, SkiwayError, Unauthorized, Unsupported
from skiway.model import flight_pb2 as flight
from skiway.testing import Call, Conversation

READS = {
    "create_transaction",
    "list_schemas",
    "catalog_version",
    "column_statistics",
    "endpoints",
    "flight_info",
    "table_function_flight_info",
    "reset",
    "create_database",
    "no_such_action",
    "DoGet",
    "GetFlightInfo",
    "ListFlights",
}

# Where the recorded server did not send its best response.
BETTER = {
    "SELECT * FROM airport_databases('grpc://127.0.0.1:50777')": "OK",
    "CALL airport_action('grpc://127.0.0.1:50777','no_such_action','body text')": "UNIMPLEMENTED",
    "SELECT * FROM d.tt.v AT (TIMESTAMP => TIMESTAMP '2025-01-01 10:00:00')": "UNIMPLEMENTED",
}


@pytest.fixture(scope="module")
def catalog() -> RecordedCatalog:
    return RecordedCatalog()


@pytest.fixture(scope="module")
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def location(catalog: RecordedCatalog, recorder: Recorder) -> Iterator[str]:
    with recording(service(catalog), recorder) as address:
        yield address


# -- recorded requests, our server --------------------------------------------------------------------------------------


def reads() -> list[Conversation]:
    return [conversation for conversation in conversations() if any(call.name in READS for call in conversation.calls)]


@dataclass
class Replay:
    """One conversation replayed with our server: the requests of each scan, and the tickets issued."""

    channel: grpc.Channel
    descriptors: dict[tuple[str, ...], flight.FlightDescriptor]
    tickets: dict[str, bytes] = field(default_factory=dict)
    columns: dict[str, list[int]] = field(default_factory=dict)

    def ours(self, descriptor: flight.FlightDescriptor) -> flight.FlightDescriptor:
        return self.descriptors.get(tuple(theirs(descriptor).path), descriptor)

    def request(self, call: Call) -> bytes:
        """The recorded bytes, except the descriptor or ticket, which must be our server's own."""
        data = call.requests[0] if call.requests else b""
        if call.method == "DoGet":
            return flight.Ticket(ticket=self.tickets[call.header("airport-trace-id")]).SerializeToString()
        if call.method == "GetFlightInfo":
            return self.ours(flight.FlightDescriptor.FromString(data)).SerializeToString()
        if call.method == "DoAction":
            action = flight.Action.FromString(data)
            action.body = renamed_body(action, self.ours, keep_arguments=True)
            return action.SerializeToString()
        return data

    def answers(self, call: Call) -> tuple[str, list[bytes]]:
        metadata = [(key, self._header(key, value)) for key, value in call.headers]
        invoke: Any = self.channel.unary_stream(f"/{protocol.SERVICE}/{call.method}")
        if call.method == "GetFlightInfo":
            unary: Any = self.channel.unary_unary(f"/{protocol.SERVICE}/{call.method}")
            invoke = lambda *args, **named: iter([unary(*args, **named)])  # noqa: E731
        try:
            return "OK", list(invoke(self.request(call), metadata=metadata, timeout=200))
        except grpc.RpcError as error:
            status: Any = error
            return status.code().name, []

    def _header(self, key: str, value: str) -> str:
        return "/".join(self.ours(plain(value.split("/"))).path) if key == "airport-flight-path" else value

    def check(self, call: Call, answers: list[bytes]) -> None:
        """Check that our response has the same meaning as the recorded one."""
        if call.method == "DoGet":
            self.check_rows(call, answers)
        elif call.method == "GetFlightInfo":
            self.check_info(call, answers[0], call.answers[0])
        elif call.method == "ListFlights":
            assert len(answers) >= len(call.answers)
        elif call.action in ("reset", "create_database"):
            assert answers == []
        else:
            assert len(answers) == 1, f"{call.action} must have one result, or DuckDB crashes"
            body = flight.Result.FromString(answers[0]).body
            getattr(self, f"check_{call.action}")(call, body)

    def check_create_transaction(self, call: Call, body: bytes) -> None:
        assert decode(body, TransactionInfo, "").identifier is None

    def check_catalog_version(self, call: Call, body: bytes) -> None:
        assert decode(body, VersionInfo, "").is_fixed is False

    def check_list_schemas(self, call: Call, body: bytes) -> None:
        recorded, actual = listing(result_of(call)), listing(body)
        expected = {key: facts for key, facts in recorded.items() if key in actual or key[0] not in ("s1", "w", "ty")}
        assert {key: actual.get(key) for key in expected} == expected

    def check_column_statistics(self, call: Call, body: bytes) -> None:
        actual = pa.ipc.open_stream(body).read_all()
        recorded = pa.ipc.open_stream(result_of(call)).read_all()
        for name in ("min", "max", "has_null", "has_not_null", "distinct_count"):
            assert actual.column(name).to_pylist() == recorded.column(name).to_pylist()
            assert actual.schema.field(name).type == recorded.schema.field(name).type, "DuckDB crashes on another type"

    def check_endpoints(self, call: Call, body: bytes) -> None:
        (part,) = decode(body, list[bytes], "")
        endpoint = flight.FlightEndpoint.FromString(part)
        assert [place.uri for place in endpoint.location] == ["arrow-flight-reuse-connection://?"]
        trace = call.header("airport-trace-id")
        self.tickets[trace] = endpoint.ticket.ticket
        request = decode(flight.Action.FromString(call.requests[0]).body, EndpointsRequest, "")
        self.columns[trace] = request.parameters.column_ids

    def check_flight_info(self, call: Call, body: bytes) -> None:
        self.check_info(call, body, result_of(call))

    check_table_function_flight_info = check_flight_info

    def check_info(self, call: Call, ours: bytes, recorded: bytes) -> None:
        actual, expected = flight.FlightInfo.FromString(ours), flight.FlightInfo.FromString(recorded)
        assert actual.flight_descriptor == self.ours(expected.flight_descriptor), (
            "DuckDB compares it with the one it sent"
        )
        schemas = [pa.ipc.read_schema(pa.py_buffer(info.schema)) for info in (actual, expected)]
        assert schemas[0].equals(schemas[1], check_metadata=False)
        assert [sorted(f.metadata or {}) for f in schemas[0]] == [sorted(f.metadata or {}) for f in schemas[1]]

    def check_rows(self, call: Call, answers: list[bytes]) -> None:
        reader = BatchReader(iter(answers))
        actual = pa.Table.from_batches(list(reader), reader.schema)
        expected = BatchReader(iter(call.answers)).schema if call.cut else table_of(call)
        assert actual.schema.names == (expected.names if call.cut else expected.schema.names)
        for number in self.columns[call.header("airport-trace-id")]:
            column = actual.column(_position(actual.schema, number))
            if isinstance(expected, pa.Table):
                assert column.to_pylist() == expected.column(_position(actual.schema, number)).to_pylist()
            else:
                assert column.null_count == 0
        for position, name in enumerate(actual.schema.names):
            if _number(actual.schema, position) not in self.columns[call.header("airport-trace-id")]:
                assert actual.column(name).null_count == actual.num_rows, (
                    "a column that was not requested costs nothing"
                )


def _position(schema: pa.Schema, number: int) -> int:
    rowid = schema.get_field_index("rowid")
    return rowid if number == ROWID_COLUMN else number if rowid < 0 or number < rowid else number + 1


def _number(schema: pa.Schema, position: int) -> int:
    rowid = schema.get_field_index("rowid")
    return ROWID_COLUMN if position == rowid else position if rowid < 0 or position < rowid else position - 1


def many_rows() -> pa.Table:
    """`w.t` after inserts of 2048, 2049 and 5000 rows in addition to the four remaining ones; truncated in the recording."""
    ids = [1, 2, 7, 8, *range(2048), *range(2049), *range(5000)]
    return pa.table(
        {"id": ids, "name": [f"n{i}" for i in ids], "v": [i / 3 for i in ids], "rowid": range(len(ids))}, WRITTEN
    )


def restore_state(catalog: RecordedCatalog, conversation: Conversation) -> None:
    """Put the written tables into the state that the statement read."""
    for call in conversation.calls:
        path = call.header("airport-flight-path")
        if call.method == "DoGet" and path.startswith("demo/w/"):
            table, schema = (catalog.written, WRITTEN) if path.endswith("/t") else (catalog.keyed, KEYED)
            table.rows = many_rows() if call.cut else table_of(call).cast(schema)


@pytest.fixture(scope="module")
def descriptors(location: str) -> dict[tuple[str, ...], flight.FlightDescriptor]:
    """Our descriptors by the canonical names of objects."""
    with AirportClient(location, "demo", token="replay") as db:
        objects = [item for schema in db.schemas() for item in (*schema.tables, *schema.functions)]
        return {tuple(ours(item.descriptor).path): item.descriptor for item in objects}  # type: ignore[attr-defined]


@pytest.mark.parametrize("conversation", reads(), ids=str)
def test_responses_to_recorded_reads_have_the_recorded_meaning(
    conversation: Conversation,
    catalog: RecordedCatalog,
    location: str,
    descriptors: dict[tuple[str, ...], flight.FlightDescriptor],
) -> None:
    restore_state(catalog, conversation)
    with grpc.insecure_channel(location.removeprefix("grpc://")) as channel:
        replay = Replay(channel, descriptors)
        for call in conversation.calls:
            if call.name in READS:
                status, answers = replay.answers(call)
                as_recorded = call.status in ("OK", "UNAUTHENTICATED")
                assert status == (call.status if as_recorded else BETTER[conversation.sql])
                if call.status == "OK":
                    replay.check(call, answers)


def test_every_kind_of_recorded_read_is_covered() -> None:
    names = {call.name for conversation in conversations() for call in conversation.calls}
    assert names >= READS
    written = {"DoExchange"} | {
        name for name in names if name.startswith(("create_s", "create_ta", "drop_", "rename_"))
    }
    written |= {"add_column", "add_field", "remove_column", "remove_field", "change_column_type", "set_default"}
    written |= {"set_not_null"}
    assert names - READS == written


# -- recorded statements, our client ------------------------------------------------------------------------------------

Rows = list[list[str]]


EMPLOYEES, CHUNK = "static_data.employees", "static_data.big_chunk"
HERE = "'grpc://127.0.0.1:50777'"


def text(table: pa.Table) -> Rows:
    return [[str(value) for value in values.values()] for values in table.to_pylist()]


def one(*values: object) -> Rows:
    return [[str(value) for value in values]]


def done(results: list[bytes]) -> Rows:
    assert results == []
    return []


def join(db: AirportClient) -> Rows:
    """DuckDB binds both tables, plans both, then reads the build side before the other."""
    with db.transaction():
        people = db.bind(EMPLOYEES, columns=["age", "name"])
        numbers = db.bind(CHUNK, columns=["id"])
        people.plan()
        numbers.plan()
        ids = set(numbers.read().read_all().column("id").to_pylist())
        rows = people.read().read_all()
    return [[name, str(age)] for age, name in zip(*rows.to_pydict().values(), strict=True) if age in ids]


def least_and_greatest(db: AirportClient) -> Rows:
    rows = db.scan(EMPLOYEES, columns=["age", "salary", "start_date"], plan=True).read_all()
    return one(*(pc.min_max(rows.column(i))[end].as_py() for i, end in enumerate(("min", "max", "min"))))


def prepare(db: AirportClient) -> Rows:
    """PREPARE binds and plans without reading."""
    db.bind(EMPLOYEES, columns=["age", "name"]).plan()
    return []


def count_and_sum(db: AirportClient) -> Rows:
    ids = db.scan("w.t", columns=["id"]).read_all().column("id")
    return one(len(ids), pc.sum(ids))


def refused(kind: type[SkiwayError], statement: Callable[[], object]) -> Rows:
    with pytest.raises(kind):
        statement()
    return []


STATEMENTS: dict[str, Callable[[AirportClient], Rows]] = {
    f"CALL airport_action({HERE},'reset')": lambda db: done(db.action("reset")),
    f"CALL airport_action({HERE},'create_database','demo')": lambda db: done(db.action("create_database", b"demo")),
    f"CALL airport_action({HERE},'no_such_action','body text')": lambda db: refused(
        Unsupported, lambda: db.action("no_such_action", "body text")
    ),
    "SELECT * FROM d.static_data.employees": lambda db: text(db.scan(EMPLOYEES, plan=True).read_all()),
    "SELECT name FROM d.static_data.employees WHERE age > 30": lambda db: text(
        db.scan(EMPLOYEES, columns=["name"], where=col("age") > 30, plan=True).read_all()
    ),
    "SELECT count(*) FROM d.static_data.employees": lambda db: one(
        db.scan(EMPLOYEES, columns=(), plan=True).read_all().num_rows
    ),
    "SELECT count(DISTINCT id) FROM d.static_data.big_chunk": lambda db: one(
        pc.count_distinct(db.scan(CHUNK, columns=["id"]).read_all().column("id"))
    ),
    "SELECT sum(id) FROM d.static_data.big_chunk WHERE id BETWEEN 10 AND 20": lambda db: one(
        pc.sum(db.scan(CHUNK, columns=["id"], where=col("id").between(10, 20)).read_all().column("id"))
    ),
    "SELECT id FROM d.static_data.big_chunk LIMIT 3": lambda db: text(
        db.scan(CHUNK, columns=["id"]).read_all().slice(0, 3)
    ),
    "SELECT a.name, b.id FROM d.static_data.employees a JOIN d.static_data.big_chunk b ON a.age=b.id": join,
    "SELECT max(age) FROM d.static_data.employees": lambda db: one(
        pc.max(db.scan(EMPLOYEES, columns=["age"], plan=True).read_all().column("age"))
    ),
    "SELECT * FROM d.static_data.nope": lambda db: refused(NotFound, lambda: db.scan("static_data.nope")),
    "PREPARE p AS SELECT name FROM d.static_data.employees WHERE age = ?": prepare,
    **{
        f"EXECUTE p({age})": lambda db, age=age: text(  # type: ignore[misc]
            db.scan(EMPLOYEES, columns=["name"], where=col("age") == age, plan=True).read_all()
        )
        for age in (30, 32)
    },
    "SELECT min(age), max(salary), min(start_date) FROM d.static_data.employees": least_and_greatest,
    f"SELECT * FROM airport_take_flight({HERE},['demo/static_data/table/employees'])": lambda db: text(
        db.take_flight(["demo", "static_data", "employees"]).read_all()
    ),
    "SELECT rowid, * FROM d.w.t ORDER BY id": lambda db: text(
        db.scan("w.t", columns=["rowid", "id", "name", "v"]).read_all().sort_by("id")
    ),
    "SELECT count(*), sum(id) FROM d.w.t": count_and_sum,
    "SELECT count(*) FROM d.w.t": lambda db: one(db.scan("w.t", columns=(), plan=True).read_all().num_rows),
    "SELECT count(*) FROM d.w.k": lambda db: one(db.scan("w.k", columns=(), plan=True).read_all().num_rows),
    "SELECT * FROM d.utils.test_echo('hi')": lambda db: text(db.call("utils.test_echo", "hi").read_all()),
    "SELECT * FROM d.utils.test_repeat('x',3)": lambda db: text(db.call("utils.test_repeat", "x", 3).read_all()),
    "SELECT result_1, result_5 FROM d.utils.test_wide(4) WHERE result_3 = 3": lambda db: text(
        db.call("utils.test_wide", 4, columns=["result_1", "result_5"], where=col("result_3") == 3).read_all()
    ),
    "SELECT * FROM d.utils.test_dynamic_schema({'a':1,'b':'x'})": lambda db: text(
        db.call("utils.test_dynamic_schema", {"a": 1, "b": "x"}).read_all()
    ),
    "SELECT * FROM d.utils.test_dynamic_schema_named_parameters('n', 5, 'c', location='l')": lambda db: text(
        db.call("utils.test_dynamic_schema_named_parameters", "n", 5, "c", named={"location": "l"}).read_all()
    ),
    **{
        f"SELECT * FROM d.tt.v AT (VERSION => {version})": lambda db, version=version: text(  # type: ignore[misc]
            db.scan("tt.v", at_version=version).read_all()
        )
        for version in (1, 2, 3)
    },
    "SELECT b FROM d.tt.v AT (VERSION => 2)": lambda db: refused(
        NotFound, lambda: db.scan("tt.v", columns=["b"], at_version=2)
    ),
    "SELECT * FROM d.tt.v AT (TIMESTAMP => TIMESTAMP '2025-01-01 10:00:00')": lambda db: refused(
        Unsupported, lambda: db.scan("tt.v", at_timestamp="2025-01-01 10:00:00")
    ),
}

# Statements that do not concern this client, or that have their own tests below.
OTHERWISE = {
    "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name='d' ORDER BY ALL",
    f"SELECT * FROM airport_flights({HERE})",
    f"SELECT * FROM airport_databases({HERE})",
}


def covered() -> list[Conversation]:
    return [
        conversation
        for conversation in conversations()
        if conversation.sql in STATEMENTS and _has_a_token(conversation)
    ]


def _has_a_token(conversation: Conversation) -> bool:
    return conversation.session not in ("no token", "token in ATTACH only")


@contextlib.contextmanager
def attached(location: str, conversation: Conversation, *, loaded: bool) -> Iterator[AirportClient]:
    """The client with the configuration of the session, including its token."""
    token = conversation.calls[0].header("authorization").removeprefix("Bearer ")
    with AirportClient(location, "demo", token=token) as db:
        if loaded:
            db.schemas()
        yield db


@pytest.mark.parametrize("conversation", covered(), ids=str)
def test_client_makes_the_same_requests_and_returns_the_same_rows_as_duckdb(
    conversation: Conversation, catalog: RecordedCatalog, location: str, recorder: Recorder
) -> None:
    restore_state(catalog, conversation)
    actions = {call.action for call in conversation.calls}
    begun = "catalog_version" in actions and "create_transaction" not in actions  # by an earlier statement
    with attached(location, conversation, loaded="list_schemas" not in actions) as db, contextlib.ExitStack() as stack:
        if begun:
            stack.enter_context(db.transaction())
            db.scan("w.k", columns=(), plan=True).read_all()
        recorder.calls.clear()
        rows = STATEMENTS[conversation.sql](db)
    assert meaning(recorder.calls, ours) == meaning(without_unused_transaction(conversation.calls), theirs)
    assert rows == [list(values) for values in conversation.rows]


def test_every_statement_that_reads_is_covered() -> None:
    reading = {
        conversation.sql
        for conversation in conversations()
        if conversation.calls and {call.name for call in conversation.calls} <= READS and _has_a_token(conversation)
    }
    only_bound = {sql for sql in reading if sql.startswith(("CREATE", "DROP", "ALTER", "COMMENT", "MERGE", "INSERT"))}
    assert reading - only_bound - OTHERWISE == set(STATEMENTS)


def test_discovery_is_one_call_and_lists_what_duckdb_listed(location: str, recorder: Recorder) -> None:
    session = conversations("discovery and reading")
    tables = next(conversation for conversation in session if "duckdb_tables()" in conversation.sql)
    functions = next(conversation for conversation in session if "duckdb_functions()" in conversation.sql)
    with attached(location, tables, loaded=False) as db:
        recorder.calls.clear()
        schemas = [schema for schema in db.schemas() if schema.name not in ("w", "tt")]
        again = db.schemas()
    assert meaning(recorder.calls, ours) == meaning(tables.calls, theirs)
    assert len(again) == len(schemas) + 2
    listed = sorted([schema.name, table.name] for schema in schemas for table in schema.tables)
    assert listed == [list(values) for values in tables.rows]
    kinds = {"scalar_function": "scalar", "table_function": "table"}
    named = sorted([function.name, kinds[function.kind]] for schema in schemas for function in schema.functions)
    assert named == [list(values) for values in functions.rows]


def test_flights_are_listed_as_in_duckdb(location: str, recorder: Recorder) -> None:
    (conversation,) = [
        conversation for conversation in conversations() if conversation.sql == f"SELECT * FROM airport_flights({HERE})"
    ]
    with attached(location, conversation, loaded=False) as db:
        recorder.calls.clear()
        flights = list(db.flights())
    assert meaning(recorder.calls, ours) == meaning(conversation.calls, theirs)
    assert ("demo", "static_data", "employees") in [flight.path for flight in flights]


def test_databases_are_listed_as_in_duckdb(location: str, recorder: Recorder) -> None:
    (conversation,) = [
        conversation
        for conversation in conversations()
        if conversation.sql == f"SELECT * FROM airport_databases({HERE})"
    ]
    with attached(location, conversation, loaded=False) as db:
        recorder.calls.clear()
        names = db.databases().column("name").to_pylist()
    assert meaning(recorder.calls[:1], ours) == meaning(conversation.calls, theirs)
    assert recorder.names() == ["GetFlightInfo", "endpoints", "DoGet"]
    assert names == ["demo"]


def test_first_call_without_a_token_is_rejected(location: str, recorder: Recorder) -> None:
    (conversation,) = [conversation for conversation in conversations("no token") if conversation.calls]
    recorder.calls.clear()
    with AirportClient(location, "demo") as db, pytest.raises(Unauthorized, match="CREATE SECRET"):
        db.scan(EMPLOYEES)
    assert meaning(recorder.calls, ours) == meaning(conversation.calls, theirs)


def test_token_given_only_to_attach_is_not_sent_with_scans(location: str, recorder: Recorder) -> None:
    (conversation,) = [conversation for conversation in conversations("token in ATTACH only") if conversation.calls]
    recorder.calls.clear()
    with (
        AirportClient(location, "demo", token="tok-in-attach", token_on_scans=False) as db,
        pytest.raises(Unauthorized),
    ):
        db.scan(EMPLOYEES, columns=(), plan=True)
    assert meaning(recorder.calls, ours) == meaning(conversation.calls, theirs)


def test_recorded_filters_are_not_empty() -> None:
    """The comparison above would be meaningless if all filters were empty."""
    filters = [
        json.loads(
            decode(flight.Action.FromString(call.requests[0]).body, EndpointsRequest, "").parameters.json_filters
        )
        for conversation in covered()
        for call in conversation.calls
        if call.action == "endpoints"
    ]
    assert sum(bool(document["filters"]) for document in filters) >= 5
