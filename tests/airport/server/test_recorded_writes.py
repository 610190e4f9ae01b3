"""The recorded conversations with DML, DDL and function calls, replayed against our server, whose responses must be
correct even where the recorded ones were not.

The expected result is what DuckDB itself does for the same SQL in a local database.
"""

from __future__ import annotations

import contextlib
import queue
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import duckdb
import grpc
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airport.recorded import (
    Rename,
    conversations,
    ours,
    plain,
    renamed_body,
    renamed_frame,
    table_of,
    theirs,
)
from client.recorded_catalog import RecordedCatalog, service
from client.recorder import Recorder, recording
from skiway.airport import ScanOptions
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire import protocol
from skiway.airport.wire.duckdb_sql import duckdb_type
from skiway.airport.wire.frames import BatchReader, FrameWriter, parse_frame
from skiway.airport.wire.protocol import CreateTableRequest, TotalChanged, TypedError, binary, decode
from skiway.client import AirportClient
from skiway.model import flight_pb2 as flight
from skiway.testing import Call, Conversation

WRITTEN = ("ddl", "dml", "time travel")
TYPES = [
    session for session in dict.fromkeys(conversation.session for conversation in conversations()) if "types" in session
]
NOT_HERE = {
    "reset",
    "create_database",
    "no_such_action",
    "ListFlights",
    "GetFlightInfo",
    "flight_info",
    "column_statistics",
}


def changes(conversation: Conversation) -> list[Call]:
    """The calls that change something: at most one action and one exchange."""
    reads = NOT_HERE | {"create_transaction", "catalog_version", "list_schemas", "endpoints", "DoGet"}
    return [call for call in conversation.calls if call.name not in reads]


# -- recorded requests, our server --------------------------------------------------------------------------------------


@dataclass
class Answered:
    """Our server's responses to one statement."""

    status: str = "OK"
    details: bytes = b""
    count: int | None = None
    returned: pa.Table | None = None
    marks: list[bytes] = field(default_factory=list)


@dataclass
class Replay:
    """Recorded requests, sent again byte by byte except for server-specific parts: descriptors, tickets, row ids."""

    channel: grpc.Channel
    rename: Rename
    row_ids: Callable[[Conversation, list[int]], list[int | None]]
    tickets: dict[str, bytes] = field(default_factory=dict)

    def run(self, conversation: Conversation) -> Answered:
        """Replay all calls of a statement. Its exchange is open while it scans, as in the recording."""
        answered = Answered()
        calls = [call for call in conversation.calls if call.name not in NOT_HERE]
        try:
            before = [call for call in calls if call.name not in ("endpoints", "DoGet", "DoExchange")]
            for call in before:
                self.plain_call(call)
            with contextlib.ExitStack() as stack:
                exchanges = [Exchange(self, conversation, call) for call in calls if call.method == "DoExchange"]
                for exchange in exchanges:
                    stack.callback(exchange.call.cancel)
                for call in calls:
                    if call.name in ("endpoints", "DoGet"):
                        self.plain_call(call)
                for exchange in exchanges:
                    exchange.finish(answered)
        except grpc.RpcError as error:
            failed: Any = error
            answered.status = failed.code().name
            answered.details = dict(failed.trailing_metadata()).get(protocol.ERROR_DETAILS, b"")
        return answered

    def plain_call(self, call: Call) -> None:
        invoke: Any = self.channel.unary_stream(f"/{protocol.SERVICE}/{call.method}")
        answers = list(invoke(self._request(call), metadata=self.metadata(call), timeout=200))
        if call.action == "endpoints":
            (part,) = decode(flight.Result.FromString(answers[0]).body, list[bytes], "")
            self.tickets[call.header("airport-trace-id")] = flight.FlightEndpoint.FromString(part).ticket.ticket

    def _request(self, call: Call) -> bytes:
        if call.method == "DoGet":
            return flight.Ticket(ticket=self.tickets[call.header("airport-trace-id")]).SerializeToString()
        action = flight.Action.FromString(call.requests[0])
        action.body = renamed_body(action, self.rename, keep_arguments=True)
        return action.SerializeToString()

    def metadata(self, call: Call) -> list[tuple[str, str]]:
        def value(key: str, recorded: str) -> str:
            return "/".join(self.rename(plain(recorded.split("/"))).path) if key == protocol.FLIGHT_PATH else recorded

        return [(key, value(key, recorded)) for key, recorded in call.headers]


class Exchange:
    """One recorded exchange in lock-step with our server, opened by the constructor."""

    def __init__(self, replay: Replay, conversation: Conversation, recorded: Call) -> None:
        self._replay, self._conversation, self._recorded = replay, conversation, recorded
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        invoke: Any = replay.channel.stream_stream(f"/{protocol.SERVICE}/DoExchange")
        self.call = invoke(iter(self._queue.get, None), metadata=replay.metadata(recorded), timeout=200)
        self._frames = [renamed_frame(data, replay.rename) for data in recorded.requests]
        schema = next(i for i, data in enumerate(self._frames) if parse_frame(data).header)
        for data in self._frames[: schema + 1]:
            self._queue.put(data)
        self._rows = self._frames[schema + 1 :]
        self._reader = BatchReader(self.call)
        self._schema = self._reader.schema  # our schema arrives before the first recorded batch is sent
        self._answers = self._reader.with_metadata()

    def finish(self, answered: Answered) -> None:
        """Send the batches, check the response to each, and finish the exchange."""
        operation = self._recorded.header(protocol.OPERATION)
        returned: list[pa.RecordBatch] = []
        for data in self._with_our_row_ids() if operation in ("update", "delete") else self._rows:
            self._queue.put(data)
            if operation == "table_function_in_out":
                returned += self._chunk(answered)
            elif self._recorded.header(protocol.RETURN_CHUNKS) == "1":
                batch, _ = next(self._answers)
                assert batch is not None
                returned.append(batch)
        self._queue.put(None)
        if operation == "table_function_in_out":
            returned += self._chunk(answered)
        elif operation != "scalar_function":
            nothing, metadata = next(self._answers)
            assert nothing is None
            answered.count = decode(metadata, TotalChanged, "").total_changed
        assert list(self._answers) == []
        if self._recorded.header(protocol.RETURN_CHUNKS) == "1":
            answered.returned = pa.Table.from_batches(returned, self._schema)

    def _chunk(self, answered: Answered) -> Iterator[pa.RecordBatch]:
        for batch, mark in self._answers:
            assert batch is not None
            answered.marks.append(mark)
            assert mark == b"chunk_continues" or batch.num_rows == 0 or batch.num_rows % 2048, "DuckDB would hang"
            yield batch
            if mark == b"chunk_finished":
                return
        raise AssertionError("the stream ended within a chunk")

    def _with_our_row_ids(self) -> Iterator[bytes]:
        """The recorded batches with our row ids, without rows that only the recorded server had."""
        reader = BatchReader(iter(self._recorded.requests))
        writer = FrameWriter(reader.schema)
        batches = list(reader)
        recorded = [i for batch in batches for i in batch["rowid"].to_pylist()]
        translated = dict(zip(recorded, self._replay.row_ids(self._conversation, recorded), strict=True))
        for batch in batches:
            ids = pa.array([translated[i] for i in batch["rowid"].to_pylist()], pa.int64())
            translated_batch = batch.set_column(batch.num_columns - 1, "rowid", ids).filter(ids.is_valid())
            if translated_batch.num_rows:
                yield from writer.batch(translated_batch)


# -- the expected results -----------------------------------------------------------------------------------------------

# What the protocol does not transmit: IF NOT EXISTS, the name of a new field, CASCADE.
NOT_TRANSMITTED = {
    "CREATE SCHEMA IF NOT EXISTS d.s1": "ALREADY_EXISTS",
    "ALTER TABLE d.s1.t ADD COLUMN s.z DOUBLE": "UNIMPLEMENTED",
    "DROP SCHEMA d.s1 CASCADE": "FAILED_PRECONDITION",
}


class Model:
    """DuckDB with a local database in place of the attached catalog."""

    def __init__(self) -> None:
        self.db = duckdb.connect()
        self.db.execute("ATTACH ':memory:' AS d")

    def run(self, sql: str) -> list[tuple[Any, ...]] | duckdb.Error:
        try:
            return self.db.execute(sql).fetchall()
        except duckdb.Error as error:
            return error

    def columns(self) -> set[tuple[Any, ...]]:
        """All columns of all tables, with their types."""
        sql = "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns()"
        return set(self.db.execute(f"{sql} WHERE database_name = 'd'").fetchall())

    def rows(self, schema: str, table: str) -> list[str]:
        return sorted(map(str, self.db.execute(f"FROM d.{schema}.{table}").fetchall()))


def announced(location: str) -> set[tuple[Any, ...]]:
    """All columns as a client sees them, in DuckDB's types."""
    with AirportClient(location, "demo", token="t") as db:
        return {
            (
                schema.name,
                table.name,
                column,
                duckdb_type(table.schema.field(column)),
                table.schema.field(column).nullable,
            )
            for schema in db.schemas()
            for table in schema.tables
            for column in table.columns
        }


def contents(catalog: MemoryCatalog) -> dict[tuple[str, str], list[str]]:
    found = {}
    for schema in catalog.schemas():
        for table in schema.tables():
            values = table.to_arrow().to_pylist()
            found[schema.name, table.name] = sorted(str(tuple(value.values())) for value in values)
    return found


@pytest.fixture
def catalog() -> MemoryCatalog:
    return MemoryCatalog("demo")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def location(catalog: MemoryCatalog, recorder: Recorder) -> Iterator[str]:
    with recording(service(catalog), recorder) as found:
        yield found


def tables_by_path(descriptor: flight.FlightDescriptor) -> flight.FlightDescriptor:
    """Our descriptors of tables by the recorded ones."""
    match list(theirs(descriptor).path):
        case [catalog, schema, "table", name]:
            return plain([catalog, schema, name])
        case other:
            return plain(other)


def translator(catalog: MemoryCatalog) -> Callable[[Conversation, list[int]], list[int | None]]:
    """Our row ids for the recorded ones: of the row with the same key, or if that is truncated, of any matching row."""

    def translate(conversation: Conversation, recorded: list[int]) -> list[int | None]:
        (get,) = [call for call in conversation.calls if call.method == "DoGet"]
        _, schema, _, name = theirs(plain([get.header(protocol.FLIGHT_PATH)])).path
        table = catalog.schema(schema).table(name)  # type: ignore[union-attr]
        rows = table.scan(ScanOptions()).read_all()  # type: ignore[union-attr]
        if get.cut:
            about = pc.less(rows["id"], 3000) if "id < 3000" in conversation.sql else pa.array([True] * rows.num_rows)
            return rows.filter(about)["rowid"].to_pylist()  # type: ignore[no-any-return]
        our_ids = dict(zip(rows["id"].to_pylist(), rows["rowid"].to_pylist(), strict=True))
        recorded_rows = table_of(get)
        keys = dict(zip(recorded_rows["rowid"].to_pylist(), recorded_rows["id"].to_pylist(), strict=True))
        return [our_ids.get(keys[i]) for i in recorded]

    return translate


@pytest.mark.parametrize("session", WRITTEN)
def test_recorded_writes_have_the_same_effects_as_in_duckdb(
    session: str, catalog: MemoryCatalog, location: str
) -> None:
    model, held = Model(), 0
    with grpc.insecure_channel(location.removeprefix("grpc://")) as channel:
        replay = Replay(channel, tables_by_path, translator(catalog))
        for conversation in conversations(session):
            if changes(conversation):
                held += 1
                check(conversation, replay.run(conversation), model)
                assert announced(location) == model.columns(), conversation
                assert contents(catalog) == {name: model.rows(*name) for name in contents(catalog)}, conversation
    assert held == {"ddl": 31, "dml": 29, "time travel": 5}[session]


def check(conversation: Conversation, answered: Answered, model: Model) -> None:
    """Check for the same success or failure, count and returned rows as in DuckDB."""
    if conversation.sql in NOT_TRANSMITTED:
        assert answered.status == NOT_TRANSMITTED[conversation.sql], conversation
        return
    expected = model.run(conversation.sql)
    if isinstance(expected, duckdb.Error):
        assert answered.status == failure(expected), conversation
        if isinstance(expected, duckdb.ConstraintException):
            assert decode(answered.details, TypedError, "").exception_type == "ConstraintException"
        return
    assert answered.status == "OK", conversation
    _, returning, columns = conversation.sql.partition(" RETURNING ")
    if returning:
        assert answered.count == len(expected), conversation
        returned = answered.returned
        assert returned is not None
        if conversation.sql.startswith("UPDATE"):
            (exchange,) = [call for call in conversation.calls if call.method == "DoExchange"]
            assert returned.schema.names == BatchReader(iter(exchange.requests)).schema.names, (
                "DuckDB matches columns by position"
            )
        visible = returned.select(["id", "name", "v"])  # noqa: F841  (DuckDB finds it by its name)
        actual = duckdb.sql(f"SELECT {columns} FROM visible").fetchall()
        assert sorted(map(str, actual)) == sorted(map(str, expected)), conversation
    elif answered.count is not None:
        assert [(answered.count,)] == expected, conversation


def failure(error: duckdb.Error) -> str:
    if isinstance(error, duckdb.ConstraintException):
        return "FAILED_PRECONDITION"
    return "ALREADY_EXISTS" if "already exists" in str(error) else "NOT_FOUND"


# -- types --------------------------------------------------------------------------------------------------------------

# What the protocol does not transmit of a type: always, and with DuckDB's default settings.
ENUMS = {"ENUM('x','y')": "VARCHAR"}
BY_DEFAULT = {
    "HUGEINT": "DECIMAL(38,0)",
    "UHUGEINT": "DECIMAL(38,0)",
    "BIT": "BLOB",
    "UUID": "VARCHAR",
    "TIMETZ": "TIME",
    "JSON": "VARCHAR",
}
SPELLED = {"TIMETZ": "TIME WITH TIME ZONE", "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE"}


def recorded_columns(conversation: Conversation) -> pa.Schema:
    """The columns of a recorded CREATE TABLE."""
    (call,) = changes(conversation)
    request = decode(flight.Action.FromString(call.requests[0]).body, CreateTableRequest, "")
    return pa.ipc.read_schema(pa.py_buffer(binary(request.arrow_schema)))


def declared(conversation: Conversation) -> tuple[str, str] | None:
    """Table and type of `CREATE TABLE d.ty.t0 (v BOOLEAN)`."""
    match = re.fullmatch(r"CREATE TABLE d\.ty\.(t\d+) \(v (.*)\)", conversation.sql)
    return (match[1], match[2]) if match and changes(conversation) else None


def expected_type(conversation: Conversation, sql_type: str, *, lossless: bool) -> str:
    """The type that DuckDB derives from what was transmitted."""
    was_sent = duckdb_type(recorded_columns(conversation).field(0))
    if not lossless or was_sent == BY_DEFAULT.get(sql_type):  # single statements ignored the setting
        sql_type = BY_DEFAULT.get(sql_type, sql_type)
    sql_type = ENUMS.get(sql_type, sql_type)
    return SPELLED.get(sql_type, sql_type)


@pytest.mark.parametrize("session", TYPES)
def test_every_type_is_accepted_and_announced_in_a_form_duckdb_supports(
    session: str, catalog: MemoryCatalog, location: str
) -> None:
    created, inserted = 0, 0
    with grpc.insecure_channel(location.removeprefix("grpc://")) as channel:
        replay = Replay(channel, tables_by_path, translator(catalog))
        for conversation in conversations(session):
            if not changes(conversation):
                continue
            answered = replay.run(conversation)
            assert answered.status == "OK", conversation
            if (match := declared(conversation)) is not None:
                created += 1
                name, sql_type = match
                types = {column[1]: column[3] for column in announced(location)}
                assert types[name] == expected_type(conversation, sql_type, lossless="true" in session), conversation
            elif conversation.sql.startswith("INSERT"):
                inserted += 1
                assert answered.count == 1, conversation
                assert contents(catalog)["ty", conversation.sql.split()[2].rpartition(".")[2]] == ["(None,)"], (
                    conversation
                )
    assert (created, inserted) == (39, 38), (
        "all but VARIANT; the recorded server rejected UNION, so nothing was inserted"
    )


# -- functions ----------------------------------------------------------------------------------------------------------


def renaming(catalog_location: str) -> Rename:
    """Our descriptors of tables and functions by the recorded ones."""
    with AirportClient(catalog_location, "demo", token="t") as db:
        objects = [item for schema in db.schemas() for item in (*schema.tables, *schema.functions)]
    known = {tuple(ours(item.descriptor).path): item.descriptor for item in objects}  # type: ignore[attr-defined]
    return lambda descriptor: known.get(tuple(theirs(descriptor).path), descriptor)


@pytest.fixture(scope="module")
def functions_recorder() -> Recorder:
    return Recorder()


@pytest.fixture(scope="module")
def functions(functions_recorder: Recorder) -> Iterator[str]:
    with recording(service(RecordedCatalog()), functions_recorder) as found:
        yield found


def called() -> list[Conversation]:
    return [
        conversation
        for conversation in conversations("functions")
        if any(call.method == "DoExchange" for call in conversation.calls)
    ]


@pytest.mark.parametrize("conversation", called(), ids=str)
def test_recorded_function_calls_return_the_recorded_results(conversation: Conversation, functions: str) -> None:
    with grpc.insecure_channel(functions.removeprefix("grpc://")) as channel:
        answered = Replay(channel, renaming(functions), lambda _, ids: list(ids)).run(conversation)
    assert answered.status == "OK"
    assert answered.returned is not None
    assert shown(conversation, answered.returned) == [list(values) for values in conversation.rows]
    if "in_out" in conversation.sql:
        assert answered.marks[-1] == b"chunk_finished"


def shown(conversation: Conversation, result: pa.Table) -> list[list[str]]:
    """The statement's rows, computed from the function's results."""
    rows = result
    if "test_time" in conversation.sql:
        return [list(values) for values in conversation.rows] if result.num_rows == 1 else []
    if (outer := re.match(r"SELECT (count\(.*?\)|sum)", conversation.sql)) is not None:
        expression = outer[1] if outer[1].startswith("count") else "sum(result)"
        rows = duckdb.sql(f"SELECT {expression} FROM result").arrow().read_all()
    return [[str(value) for value in values.values()] for values in rows.to_pylist()]


def test_every_recorded_statement_is_replayed() -> None:
    """No statement that writes or calls a function is skipped."""
    sessions = {conversation.session for conversation in conversations() if changes(conversation)}
    assert sessions == {*WRITTEN, *TYPES, "functions"}
    assert {conversation.session for conversation in called()} == {"functions"}
