"""The client makes the same requests as DuckDB for the same statements: DML, DDL and function calls.

`tests/airport/server/test_recorded_reads.py` covers those that read.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from airport.recorded import conversations, meaning, ours, theirs, without_unused_transaction
from client.recorded_catalog import RecordedCatalog, service
from client.recorder import Recorder, recording
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire.protocol import CreateTableRequest, binary, decode, encode
from skiway.client import AirportClient, Written, col
from skiway.errors import AlreadyExists, ConstraintViolation, NotFound, SchemaNotEmpty, SkiwayError
from skiway.model import flight_pb2 as flight
from skiway.testing import Call, Conversation

Statement = Callable[[AirportClient], Any]
KEYED = ("id", "n", "q")


def refused(kind: type[SkiwayError], statement: Statement) -> Statement:
    """A statement that must fail."""

    def run(db: AirportClient) -> None:
        with pytest.raises(kind):
            statement(db)

    return run


def schema(**columns: Any) -> pa.Schema:
    return pa.schema(list(columns.items()))


def people(*rows: Sequence[Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(("id", "name", "v"), row, strict=False)) for row in rows], PEOPLE)


def keyed(row: Sequence[Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(KEYED, row, strict=True))], schema(id=I64, n=TEXT, q=I32))


def counted(count: int) -> pa.Table:
    """`SELECT range, 'n' || range, range/3`."""
    return people(*((i, f"n{i}", i / 3) for i in range(count)))


I32, I64, TEXT, DOUBLE = pa.int32(), pa.int64(), pa.string(), pa.float64()
PEOPLE = schema(id=I64, name=TEXT, v=DOUBLE)

DDL: dict[str, Statement] = {
    "DROP SCHEMA d.s1": lambda db: db.drop_schema("s1"),
    "DROP SCHEMA IF EXISTS d.s1": lambda db: db.drop_schema("s1", if_exists=True),
    "CREATE SCHEMA d.s1": lambda db: db.create_schema("s1"),
    "CREATE SCHEMA IF NOT EXISTS d.s1": lambda db: db.create_schema("s1", if_not_exists=True),
    "CREATE SCHEMA IF NOT EXISTS d.s2": lambda db: db.create_schema("s2", if_not_exists=True),
    "CREATE TABLE d.s1.t (a INTEGER, b VARCHAR NOT NULL, c DECIMAL(10,2) CHECK (c > 0), "
    "s STRUCT(x INTEGER, y VARCHAR))": lambda db: db.create_table(
        "s1.t",
        schema(a=I32, b=TEXT, c=pa.decimal128(10, 2), s=pa.struct([("x", I32), ("y", TEXT)])),
        not_null=["b"],
        checks=["c > 0"],
    ),
    "CREATE TABLE d.s1.t (a INTEGER)": refused(AlreadyExists, lambda db: db.create_table("s1.t", schema(a=I32))),
    "CREATE TABLE IF NOT EXISTS d.s1.t (a INTEGER)": lambda db: db.create_table(
        "s1.t", schema(a=I32), on_conflict="ignore"
    ),
    "CREATE TABLE d.s1.keys (id BIGINT PRIMARY KEY, code VARCHAR UNIQUE, d DATE DEFAULT current_date)": (
        lambda db: db.create_table(
            "s1.keys", schema(id=I64, code=TEXT, d=pa.date32()), primary_key=["id"], unique=["code"]
        )
    ),
    "CREATE TABLE d.s1.keys2 (a INTEGER, b INTEGER, c INTEGER, PRIMARY KEY (a,b), UNIQUE (b,c), CHECK (a < b))": (
        lambda db: db.create_table(
            "s1.keys2", schema(a=I32, b=I32, c=I32), primary_key=["a", "b"], unique=[("b", "c")], checks=["a < b"]
        )
    ),
    "CREATE TABLE d.s1.copy AS SELECT range::INTEGER AS n, 'row ' || range AS txt FROM range(5)": (
        lambda db: create_as(db, "s1.copy", schema(n=I32, txt=TEXT), [(i, f"row {i}") for i in range(5)])
    ),
    "ALTER TABLE d.s1.t ADD COLUMN e BIGINT": lambda db: db.add_column("s1.t", pa.field("e", I64)),
    "ALTER TABLE d.s1.t ADD COLUMN IF NOT EXISTS e BIGINT": lambda db: db.add_column(
        "s1.t", pa.field("e", I64), if_not_exists=True
    ),
    "ALTER TABLE d.s1.t ADD COLUMN f INTEGER DEFAULT 7": lambda db: db.add_column("s1.t", pa.field("f", I32)),
    "ALTER TABLE d.s1.t DROP COLUMN e": lambda db: db.remove_column("s1.t", "e"),
    "ALTER TABLE d.s1.t DROP COLUMN IF EXISTS e": lambda db: db.remove_column("s1.t", "e", if_column_exists=True),
    "ALTER TABLE d.s1.t RENAME COLUMN b TO bb": lambda db: db.rename_column("s1.t", "b", "bb"),
    "ALTER TABLE d.s1.t ALTER COLUMN a TYPE BIGINT": lambda db: db.change_column_type("s1.t", "a", I64),
    "ALTER TABLE d.s1.t ALTER COLUMN a SET DATA TYPE VARCHAR USING concat('v', a)": (
        lambda db: db.change_column_type("s1.t", "a", TEXT, expression="concat('v', a)")
    ),
    "ALTER TABLE d.s1.t ALTER COLUMN f SET NOT NULL": lambda db: db.set_not_null("s1.t", "f"),
    "ALTER TABLE d.s1.t ALTER COLUMN f DROP NOT NULL": lambda db: db.drop_not_null("s1.t", "f"),
    "ALTER TABLE d.s1.t ALTER COLUMN f SET DEFAULT 42": lambda db: db.set_default("s1.t", "f", "42"),
    "ALTER TABLE d.s1.t ADD COLUMN s.z DOUBLE": lambda db: db.add_field("s1.t", ["s"], pa.field("z", DOUBLE)),
    "ALTER TABLE d.s1.t RENAME COLUMN s.x TO xx": lambda db: db.rename_field("s1.t", ["s", "x"], "xx"),
    "ALTER TABLE d.s1.t DROP COLUMN s.y": lambda db: db.remove_field("s1.t", ["s", "y"]),
    "ALTER TABLE d.s1.t RENAME TO t2": lambda db: db.rename_table("s1.t", "t2"),
    "ALTER TABLE IF EXISTS d.s1.gone RENAME TO gone2": lambda db: db.rename_table("s1.gone", "gone2", if_exists=True),
    "DROP TABLE d.s1.t2": lambda db: db.drop_table("s1.t2"),
    "DROP TABLE IF EXISTS d.s1.t2": lambda db: db.drop_table("s1.t2", if_exists=True),
    "DROP SCHEMA d.s1 CASCADE": refused(SchemaNotEmpty, lambda db: db.drop_schema("s1")),
}
# The same statement again, with a different outcome.
SECOND_TIME: dict[str, type[SkiwayError]] = {
    "CREATE SCHEMA d.s1": AlreadyExists,
    "DROP SCHEMA d.s1": NotFound,
    "DROP TABLE d.s1.t2": NotFound,
}


def create_as(db: AirportClient, name: str, columns: pa.Schema, rows: Sequence[Sequence[Any]]) -> Written:
    with db.transaction():
        db.create_table(name, columns)
        return db.insert(
            name, pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns)
        )


def nothing_of_itself(db: AirportClient) -> Written:
    """DuckDB binds the table before it notices that there is nothing to read."""
    with db.transaction():
        db.bind("w.t")
        return db.insert("w.t", [])


DML: dict[str, Statement] = {
    "CREATE SCHEMA d.w": lambda db: db.create_schema("w"),
    "CREATE TABLE d.w.t (id BIGINT, name VARCHAR, v DOUBLE)": lambda db: db.create_table("w.t", PEOPLE),
    "INSERT INTO d.w.t VALUES (1,'a',1.5),(2,'b',NULL),(3,NULL,3.5)": lambda db: db.insert(
        "w.t", people((1, "a", 1.5), (2, "b", None), (3, None, 3.5))
    ),
    "INSERT INTO d.w.t (id) VALUES (4)": lambda db: db.insert("w.t", pa.table({"id": [4]})),
    "INSERT INTO d.w.t BY NAME SELECT 'e' AS name, 5 AS id": lambda db: db.insert(
        "w.t", pa.table({"name": ["e"], "id": pa.array([5], I32)})
    ),
    "INSERT INTO d.w.t VALUES (6,'f',6.5),(7,'g',7.5) RETURNING *": lambda db: db.insert(
        "w.t", people((6, "f", 6.5), (7, "g", 7.5)), returning=True
    ),
    "INSERT INTO d.w.t VALUES (8,'h',8.5) RETURNING id, v*2 AS vv": lambda db: db.insert(
        "w.t", people((8, "h", 8.5)), returning=True
    ),
    "UPDATE d.w.t SET v = 100 WHERE id = 1": lambda db: db.update("w.t", {"v": 100}, where=col("id") == 1),
    "UPDATE d.w.t SET v = v + 1, name = upper(name) WHERE id >= 6": lambda db: db.update(
        "w.t",
        {"v": lambda v: pc.add(v, 1), "name": lambda name: pc.utf8_upper(name)},
        where=col("id") >= 6,
    ),
    "UPDATE d.w.t SET name = 'z' WHERE id = 2 RETURNING *": lambda db: db.update(
        "w.t", {"name": "z"}, where=col("id") == 2, returning=True
    ),
    "UPDATE d.w.t SET v = 0 WHERE id = 999": lambda db: db.update("w.t", {"v": 0}, where=col("id") == 999),
    "UPDATE d.w.t SET v = id, name = NULL RETURNING id": lambda db: db.update(
        "w.t",
        {"v": lambda id: id, "name": None},  # noqa: A006
        returning=True,
    ),
    "DELETE FROM d.w.t WHERE id = 3": lambda db: db.delete("w.t", where=col("id") == 3),
    "DELETE FROM d.w.t WHERE id = 4 RETURNING *": lambda db: db.delete("w.t", where=col("id") == 4, returning=True),
    "DELETE FROM d.w.t WHERE id = 12345": lambda db: db.delete("w.t", where=col("id") == 12345),
    "DELETE FROM d.w.t WHERE id IN (5,6) RETURNING name": lambda db: db.delete(
        "w.t", where=col("id").isin([5, 6]), returning=True
    ),
    **{
        f"INSERT INTO d.w.t SELECT range, 'n' || range, range/3 FROM range({count})": (
            lambda db, count=count: db.insert("w.t", counted(count))  # type: ignore[misc]
        )
        for count in (2048, 2049)
    },
    "INSERT INTO d.w.t SELECT range, 'n' || range, range/3 FROM range(5000) RETURNING id": lambda db: db.insert(
        "w.t", counted(5000), returning=True
    ),
    "INSERT INTO d.w.t SELECT * FROM d.w.t WHERE false": nothing_of_itself,
    "UPDATE d.w.t SET v = 1 WHERE id < 3000": lambda db: db.update("w.t", {"v": 1}, where=col("id") < 3000),
    "DELETE FROM d.w.t": lambda db: db.truncate("w.t"),
    "CREATE TABLE d.w.k (id BIGINT PRIMARY KEY, n VARCHAR NOT NULL, q INTEGER CHECK (q > 0))": (
        lambda db: db.create_table(
            "w.k", schema(id=I64, n=TEXT, q=I32), primary_key=["id"], not_null=["n"], checks=["q > 0"]
        )
    ),
    "INSERT INTO d.w.k VALUES (1,'x',1)": lambda db: db.insert("w.k", keyed((1, "x", 1))),
    "INSERT INTO d.w.k VALUES (2,NULL,1)": refused(
        ConstraintViolation, lambda db: db.insert("w.k", keyed((2, None, 1)))
    ),
    "INSERT INTO d.w.k VALUES (2,'y',-1)": refused(
        ConstraintViolation, lambda db: db.insert("w.k", keyed((2, "y", -1)))
    ),
    "INSERT INTO d.w.k VALUES (10,'t',1)": lambda db: db.insert("w.k", keyed((10, "t", 1))),
    "TRUNCATE d.w.k": lambda db: db.truncate("w.k"),
}
SECOND_TIME["INSERT INTO d.w.k VALUES (1,'x',1)"] = ConstraintViolation

TIME_TRAVEL: dict[str, Statement] = {
    "CREATE SCHEMA d.tt": lambda db: db.create_schema("tt"),
    "CREATE TABLE d.tt.v (a INTEGER)": lambda db: db.create_table("tt.v", schema(a=I32)),
    "INSERT INTO d.tt.v VALUES (1)": lambda db: db.insert("tt.v", pa.table({"a": [1]})),
    "INSERT INTO d.tt.v VALUES (2)": lambda db: db.insert("tt.v", pa.table({"a": [2]})),
    "ALTER TABLE d.tt.v ADD COLUMN b VARCHAR": lambda db: db.add_column("tt.v", pa.field("b", TEXT)),
}

FUNCTIONS: dict[str, Statement] = {
    "SELECT d.utils.test_uppercase('abc')": lambda db: db.call_scalar("utils.test_uppercase", pa.array(["abc"])),
    "SELECT d.utils.test_uppercase(n) FROM (VALUES ('a'),(NULL),('c')) t(n)": lambda db: db.call_scalar(
        "utils.test_uppercase", pa.array(["a", None, "c"])
    ),
    "SELECT d.utils.test_add(5,6)": lambda db: db.call_scalar("utils.test_add", pa.array([5], I32), pa.array([6], I32)),
    "SELECT sum(d.utils.test_add(range, 1)) FROM range(5000)": lambda db: pa.array(
        [pc.sum(db.call_scalar("utils.test_add", pa.array(range(5000)), pa.array([1] * 5000)))]
    ),
    "SELECT d.utils.test_any_type(42)": lambda db: db.call_scalar("utils.test_any_type", pa.array([42], I32)),
    "SELECT d.utils.test_time()": lambda db: db.call_scalar("utils.test_time"),
    "SELECT * FROM d.utils.test_table_in_out('p', (SELECT * FROM (VALUES ('a'),('b')) t(x)))": (
        lambda db: db.call("utils.test_table_in_out", "p", rows=pa.table({"x": ["a", "b"]})).read_all()
    ),
    "SELECT count(*) FROM d.utils.test_table_in_out_long((SELECT * FROM range(3)))": (
        lambda db: pa.array([db.call("utils.test_table_in_out_long", rows=ranged(3)).read_all().num_rows])
    ),
    "SELECT count(DISTINCT value) FROM d.utils.test_table_in_out_huge((SELECT * FROM range(3)))": (
        lambda db: pa.array(
            [len(pc.unique(db.call("utils.test_table_in_out_huge", rows=ranged(3)).read_all()["value"]))]
        )
    ),
    "SELECT count(*) FROM d.utils.test_table_in_out_wide('w', (SELECT * FROM range(100)))": (
        lambda db: pa.array([db.call("utils.test_table_in_out_wide", "w", rows=ranged(100)).read_all().num_rows])
    ),
}


def ranged(count: int) -> pa.Table:
    return pa.table({"range": pa.array(range(count), I64)})


# Statements that the client cannot express, or that DuckDB rejects without a request.
NOT_EXPRESSIBLE = re.compile(
    "CREATE OR REPLACE|ADD CONSTRAINT|CREATE VIEW|COMMENT ON|DROP DEFAULT|ON CONFLICT|MERGE|VARIANT"
)

# Where our server sends more information than the recorded one, so that the client rejects more, or deletes less.
DIFFERENT_REQUESTS = {"INSERT INTO d.w.k VALUES (2,NULL,1)", "TRUNCATE d.w.k"}


# -- comparison ---------------------------------------------------------------------------------------------------------


def comparable(calls: Sequence[Call], rename: Any) -> list[tuple[object, ...]]:
    """The calls without those that only one of the servers supports: statistics and transactions."""
    compared = [
        replace(call, headers=tuple(item for item in call.headers if item[0] != "airport-transaction-id"))
        for call in calls
        if call.action != "column_statistics"
    ]
    return meaning([_ordered(call) for call in compared], rename)


def _ordered(call: Call) -> Call:
    """With composite keys in order, since they come from a hash set, and without our name of a new field."""
    if call.action not in ("create_table", "add_field"):
        return call
    action = flight.Action.FromString(call.requests[0])
    members = msgspec.msgpack.decode(action.body, type=dict[str, msgspec.Raw])
    members.pop("field_name", None)
    if call.action == "create_table":
        keys = decode(action.body, CreateTableRequest, "").multi_key_primary_keys
        members["multi_key_primary_keys"] = msgspec.Raw(encode(sorted(keys)))
    action.body = encode(members)
    return replace(call, requests=(action.SerializeToString(),))


def one_version_less(found: list[tuple[object, ...]]) -> list[tuple[object, ...]]:
    """CREATE TABLE AS is one statement in DuckDB and two here: the second requests the catalog version again."""
    last = max(i for i, call in enumerate(found) if call[0] == "catalog_version")
    return found[:last] + found[last + 1 :]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def location(recorder: Recorder) -> Iterator[str]:
    with recording(service(MemoryCatalog("demo")), recorder) as found:
        yield found


def token(conversation: Conversation) -> str:
    return conversation.calls[0].header("authorization").removeprefix("Bearer ")


def covered_statements(session: str) -> list[Conversation]:
    """The session's statements that do more than read, or that the client can reject before a request."""
    keywords = ("CREATE", "DROP", "ALTER", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
    statements = [
        conversation
        for conversation in conversations(session)
        if conversation.sql.startswith(keywords) and conversation.calls
    ]
    return [one for one in statements if not NOT_EXPRESSIBLE.search(one.sql)]


@pytest.mark.parametrize(
    ("session", "statements", "count"), [("ddl", DDL, 34), ("dml", DML, 29), ("time travel", TIME_TRAVEL, 5)]
)
def test_client_makes_the_same_requests_as_duckdb(
    session: str, statements: dict[str, Statement], count: int, location: str, recorder: Recorder
) -> None:
    recorded_statements = covered_statements(session)
    assert len(recorded_statements) == count
    assert {conversation.sql for conversation in recorded_statements} == set(statements), (
        "every statement is run, and no other"
    )
    done: list[str] = []
    with AirportClient(location, "demo", token=token(recorded_statements[0]), timeout_s=200) as db:
        for conversation in recorded_statements:
            if any(call.action == "list_schemas" for call in conversation.calls):
                db.reload()  # DuckDB loads the catalog on first use, and again after a crash
            recorder.calls.clear()
            again = SECOND_TIME.get(conversation.sql) if _fails_now(conversation, done) else None
            (refused(again, statements[conversation.sql]) if again else statements[conversation.sql])(db)
            done.append(conversation.sql)
            if any(call.method == "DoExchange" for call in conversation.calls):
                recorder.wait_for("DoExchange")
            if conversation.sql not in DIFFERENT_REQUESTS:
                found = comparable(recorder.calls, ours)
                if " AS SELECT" in conversation.sql:
                    found = one_version_less(found)
                assert found == comparable(conversation.calls, theirs), conversation.sql


def _fails_now(conversation: Conversation, done: list[str]) -> bool:
    """Whether the statement is repeated, and nothing in between undid it."""
    opposite = (
        conversation.sql.replace("CREATE", "DROP")
        if conversation.sql.startswith("CREATE")
        else conversation.sql.replace("DROP", "CREATE")
    )
    repeated = [sql for sql in done if sql in (conversation.sql, opposite)]
    return bool(repeated) and repeated[-1] == conversation.sql


@pytest.mark.parametrize("session", [s for s in dict.fromkeys(t.session for t in conversations()) if "types" in s])
def test_client_sends_every_type_as_in_duckdb(session: str, location: str, recorder: Recorder) -> None:
    compared = 0
    with AirportClient(location, "demo", token="t", timeout_s=200) as db:
        db.create_schema("ty")
        for conversation in covered_statements(session):
            recorder.calls.clear()
            (call,) = [
                call for call in conversation.calls if call.name in ("create_schema", "create_table", "DoExchange")
            ]
            if call.action == "create_table":
                request = decode(flight.Action.FromString(call.requests[0]).body, CreateTableRequest, "")
                db.create_table(
                    ("ty", request.table_name), pa.ipc.read_schema(pa.py_buffer(binary(request.arrow_schema)))
                )
            elif call.method == "DoExchange":
                db.insert(conversation.sql.split()[2].removeprefix("d."), pa.table({"v": pa.nulls(1)}))
            else:
                continue
            compared += 1
            calls = [made for made in recorder.calls if made.name == call.name]
            assert _bodies(calls, ours) == _bodies([call], theirs), conversation.sql
    assert compared == 39 + 38


def _bodies(calls: Sequence[Call], rename: Any) -> list[object]:
    return [call[2] for call in comparable(calls, rename)]


@pytest.mark.parametrize(
    "conversation",
    [conversation for conversation in conversations("functions") if conversation.sql in FUNCTIONS],
    ids=str,
)
def test_client_calls_functions_as_in_duckdb(conversation: Conversation, recorder: Recorder) -> None:
    with contextlib.ExitStack() as stack:
        location = stack.enter_context(recording(service(RecordedCatalog()), recorder))
        db = stack.enter_context(AirportClient(location, "demo", token=token(conversation), timeout_s=200))
        if not any(call.action == "list_schemas" for call in conversation.calls):
            db.schemas()
        recorder.calls.clear()
        result = FUNCTIONS[conversation.sql](db)
    expected = without_unused_transaction(conversation.calls)
    assert comparable(recorder.calls, ours) == comparable(expected, theirs)
    if "test_time" not in conversation.sql:
        rows = (
            [list(row.values()) for row in result.to_pylist()]
            if isinstance(result, pa.Table)
            else [[v] for v in result.to_pylist()]
        )
        assert [[str(value) for value in row] for row in rows] == [list(row) for row in conversation.rows]


def test_every_recorded_function_call_with_rows_is_covered() -> None:
    exchanges = {
        conversation.sql
        for conversation in conversations("functions")
        if any(call.method == "DoExchange" for call in conversation.calls)
    }
    assert exchanges == set(FUNCTIONS)
