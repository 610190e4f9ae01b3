"""Writing with the JSON contract: DoPut for INSERT and UPDATE, the action `delete`, and every documented error."""

from __future__ import annotations

import base64
import json
from typing import Any

import grpc
import msgspec
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from airport.lockstep import Exchange
from airport.raw import AIRPORT, Raw
from airport.server.test_writing import FORMS, VISIBLE, InBatches, ReadOnly, Rows, Simple, Statements, numbered
from skiway.airport import (
    Catalog,
    CatalogBuilder,
    FunctionCall,
    Insertable,
    Server,
    Table,
    Transactional,
    TransactionManager,
    TransactionStatus,
    current_request,
)
from skiway.airport.wire.frames import FrameWriter
from skiway.errors import ConstraintViolation
from skiway.model import flight_pb2 as flight

Code = grpc.StatusCode


def serving(table: Table) -> Server:
    builder = CatalogBuilder("demo")
    builder.schema("analytics").table(table)
    return Server(builder.build(), port=0)


def put(raw: Raw, command: Any, rows: pa.Table, *headers: tuple[str, str]) -> dict[str, Any]:
    text = command if isinstance(command, bytes) else json.dumps(command).encode()
    name = flight.FlightDescriptor(type=flight.FlightDescriptor.CMD, cmd=text).SerializeToString()
    writer = FrameWriter(rows.schema)
    frames = [writer.begin(descriptor=name)]
    for batch in rows.to_batches(max_chunksize=1000):
        frames += writer.batch(batch)
    (answer,) = raw.exchange(frames, *headers, method="DoPut")
    decoded: dict[str, Any] = msgspec.msgpack.decode(flight.PutResult.FromString(answer).app_metadata)
    return decoded


def delete(raw: Raw, *headers: tuple[str, str], **command: Any) -> dict[str, Any]:
    body = {"schema_name": "analytics", "table_name": "t", **command}
    (answer,) = raw.action("delete", json.dumps(body).encode(), *headers)
    decoded: dict[str, Any] = json.loads(answer)
    return decoded


def command(operation: str, **more: Any) -> dict[str, Any]:
    return {"operation": operation, "schema_name": "analytics", "table_name": "t", **more}


def rows_in(text: str) -> list[dict[str, Any]]:
    with pa.ipc.open_stream(base64.b64decode(text, validate=True)) as reader:
        rows: list[dict[str, Any]] = reader.read_all().to_pylist()
    return rows


@pytest.mark.parametrize("form", FORMS)
def test_insert_update_and_delete(form) -> None:
    table = form()
    with serving(table) as server, Raw(server.location) as raw:
        answer = put(raw, command("insert", returning=False), numbered(2500))
        assert answer == {"status": "success", "affected_rows": 2500, "returning_data": None}
        changed = pa.table({"id": [10, 20], "name": ["x", "y"]}, VISIBLE)
        answer = put(raw, command("update", row_ids=[1, 5]), changed)
        assert answer == {"status": "success", "affected_rows": 2, "returning_data": None}
        assert (table.rows[1], table.rows[5]) == ((10, "x"), (20, "y"))
        assert delete(raw, row_ids=[0, 2]) == {"status": "success", "affected_rows": 2}
        assert len(table.rows) == 2498


@pytest.mark.parametrize("form", FORMS)
def test_returning_sends_the_rows_in_base64(form) -> None:
    with serving(form()) as server, Raw(server.location) as raw:
        rows = pa.table({"id": [1, 2], "name": ["a", None]}, VISIBLE)
        assert rows_in(put(raw, command("insert", returning=True), rows)["returning_data"]) == rows.to_pylist()
        changed = pa.table({"id": [9], "name": ["z"]}, VISIBLE)
        answer = put(raw, command("update", row_ids=[0], returning=True), changed)
        assert rows_in(answer["returning_data"]) == [{"id": 9, "name": "z"}]
        answer = delete(raw, row_ids=[1], returning=True)
        assert rows_in(answer["returning_data"]) == [{"id": 2, "name": None}]


def test_no_rows_at_all() -> None:
    with serving(Simple()) as server, Raw(server.location) as raw:
        answer = put(raw, command("insert", returning=True), numbered(0))
        assert answer["affected_rows"] == 0
        assert rows_in(answer["returning_data"]) == []


def test_columns_are_matched_by_name() -> None:
    table = Simple()
    with serving(table) as server, Raw(server.location) as raw:
        put(raw, command("insert"), numbered(1).select(["name", "id"]))
    assert table.rows == {0: (0, "row 0")}


def test_pyarrows_client_can_write() -> None:
    table = Simple()
    with serving(table) as server, fl.connect(server.location) as client:
        name = fl.FlightDescriptor.for_command(json.dumps(command("insert")))
        writer, reader = client.do_put(name, VISIBLE)
        writer.write_table(numbered(3))
        writer.done_writing()
        assert msgspec.msgpack.decode(reader.read().to_pybytes())["affected_rows"] == 3
        writer.close()
    assert len(table.rows) == 3


class NoRowid(Rows, Insertable):
    schema = VISIBLE
    insert = Simple.insert


class Five(NoRowid):
    schema = pa.schema({f"c{i}": pa.int64() for i in range(5)})


def error(call: Any) -> tuple[Code, str]:
    with pytest.raises(grpc.RpcError) as failed:
        call()
    return failed.value.code(), failed.value.details() or ""


ERRORS: dict[str, tuple[type[Rows], Any, Code, str]] = {
    "insert: schema not found": (
        Simple,
        lambda raw: put(raw, {**command("insert"), "schema_name": "nope"}, numbered(1)),
        Code.NOT_FOUND,
        "schema 'nope' not found",
    ),
    "insert: table not found": (
        Simple,
        lambda raw: put(raw, {**command("insert"), "table_name": "events"}, numbered(1)),
        Code.NOT_FOUND,
        "table 'analytics.events' not found",
    ),
    "insert: table read-only": (
        ReadOnly,
        lambda raw: put(raw, command("insert"), numbered(1)),
        Code.FAILED_PRECONDITION,
        "table 't' does not support INSERT operations",
    ),
    "insert: schema mismatch": (
        Five,
        lambda raw: put(raw, command("insert"), pa.table({f"c{i}": [1] for i in range(4)})),
        Code.INVALID_ARGUMENT,
        "column mismatch: table has 5 columns, input has 4",
    ),
    "update: empty row_ids": (
        Simple,
        lambda raw: put(raw, command("update", row_ids=[]), numbered(1)),
        Code.INVALID_ARGUMENT,
        "row_ids cannot be empty for UPDATE",
    ),
    "update: row count mismatch": (
        Simple,
        lambda raw: put(raw, command("update", row_ids=[0, 1, 2, 3]), numbered(3)),
        Code.INVALID_ARGUMENT,
        "row_ids count (4) does not match input rows (3)",
    ),
    "update: too many rows": (
        Simple,
        lambda raw: put(raw, command("update", row_ids=[0, 1]), numbered(2500)),
        Code.INVALID_ARGUMENT,
        "row_ids count (2) does not match input rows (2500)",
    ),
    "update: no rowid support": (
        NoRowid,
        lambda raw: put(raw, command("update", row_ids=[0]), numbered(1)),
        Code.FAILED_PRECONDITION,
        "table 't' does not support UPDATE (no rowid)",
    ),
    "update: row not found": (
        Simple,
        lambda raw: put(raw, command("update", row_ids=[99]), numbered(1)),
        Code.NOT_FOUND,
        "row_id 99 not found in table",
    ),
    "delete: empty row_ids": (
        Simple,
        lambda raw: delete(raw, row_ids=[]),
        Code.INVALID_ARGUMENT,
        "row_ids cannot be empty for DELETE",
    ),
    "delete: no row_ids": (
        Simple,
        lambda raw: delete(raw),
        Code.INVALID_ARGUMENT,
        "row_ids cannot be empty for DELETE",
    ),
    "delete: no rowid support": (
        NoRowid,
        lambda raw: delete(raw, row_ids=[1]),
        Code.FAILED_PRECONDITION,
        "table 't' does not support DELETE (no rowid)",
    ),
    "delete: table read-only": (
        ReadOnly,
        lambda raw: delete(raw, row_ids=[1]),
        Code.FAILED_PRECONDITION,
        "table 't' does not support DELETE operations",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_exactly_this_code_and_message(name: str) -> None:
    form, call, code, message = ERRORS[name]
    table = form([(1, "a"), (2, "b")])
    before = dict(table.rows)
    with serving(table) as server, Raw(server.location) as raw:
        assert error(lambda: call(raw)) == (code, message)
    assert table.rows == before


TABLE = b'"schema_name": "analytics", "table_name": "t"'
MALFORMED = [
    b"{",
    b"{}",
    b'{"operation": "insert"}',
    b'{"operation": "drop", ' + TABLE + b"}",
    b"{" + TABLE + b"}",
    b'{"operation": "delete", ' + TABLE + b"}",
    b'{"operation": "update", "row_ids": ["x"], ' + TABLE + b"}",
    b'{"operation": "update", "row_ids": [99999999999999999999], ' + TABLE + b"}",
]


@pytest.mark.parametrize("text", MALFORMED)
def test_malformed_commands(text: bytes) -> None:
    with serving(Simple([(1, "a")])) as server, Raw(server.location) as raw:
        code, _ = error(lambda: put(raw, text, numbered(1)))
    assert code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("columns", [{"id": ["text"], "name": ["a"]}, {"id": [1], "title": ["a"]}])
def test_columns_of_another_name_or_type(columns: dict[str, Any]) -> None:
    with serving(Simple()) as server, Raw(server.location) as raw:
        code, message = error(lambda: put(raw, command("insert"), pa.table(columns)))
    assert code is Code.INVALID_ARGUMENT
    assert message.startswith("column mismatch: ")


def test_old_name_of_the_operation_is_accepted() -> None:
    with serving(Simple()) as server, Raw(server.location) as raw:
        old = {"action": "insert", "schema_name": "analytics", "table_name": "t"}
        assert put(raw, old, numbered(1))["affected_rows"] == 1


class Picky(Simple):
    """A table that changes nothing if a call has a row with an id from 2000 on."""

    def check(self, rows: pa.Table) -> pa.Table:
        if max(rows["id"].to_pylist()) >= 2000:
            raise ConstraintViolation("ids must be less than 2000")
        return rows

    def add(self, rows: pa.Table) -> pa.Table:
        return super().add(self.check(rows))

    def change(self, ids: list[int], rows: pa.Table) -> pa.Table:
        return super().change(ids, self.check(rows))


@pytest.mark.parametrize("returning", [True, False])
@pytest.mark.parametrize("operation", ["insert", "update"])
def test_statement_that_fails_in_a_later_batch_leaves_nothing_behind(operation: str, returning: bool) -> None:
    table = Picky([(-1, "before")] * 2500)
    row_ids = {"row_ids": list(range(2500))} if operation == "update" else {}
    with serving(table) as server, Raw(server.location) as raw:
        code, message = error(lambda: put(raw, command(operation, returning=returning, **row_ids), numbered(2500)))
        assert (code, message) == (Code.FAILED_PRECONDITION, "ids must be less than 2000")
    assert table.rows == dict.fromkeys(range(2500), (-1, "before"))


def test_returned_rows_that_cannot_be_sent_undo_the_statement() -> None:
    class Strict(Statements):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(Statements.schema)[1:]])

    class Wrong(Strict):
        def write(self, write):
            statement = super().write(write)
            apply = statement.apply
            statement.apply = lambda rows: apply(rows).drop_columns("id")  # type: ignore[method-assign, union-attr]
            return statement

    table = Wrong()
    with serving(table) as server, Raw(server.location) as raw:
        code, message = error(lambda: put(raw, command("insert", returning=True), numbered(3)))
    assert (code, message) == (Code.INTERNAL, "RETURNING did not return the requested column 'id': it returned 'name'")
    assert table.rows == {}


def test_null_in_a_column_that_is_not_nullable_is_rejected() -> None:
    class Strict(Simple):
        schema = pa.schema([pa.field("id", pa.int64(), nullable=False), *list(Simple.schema)[1:]])

    table = Strict([(1, "a")])
    for operation in ("insert", "update"):
        for returning in (True, False):
            nulls = pa.table({"id": [5, None], "name": ["x", "y"]}, VISIBLE)
            row_ids = {"row_ids": [0, 0]} if operation == "update" else {}
            text = command(operation, returning=returning, **row_ids)
            with serving(table) as server, Raw(server.location) as raw:
                code, message = error(lambda text=text, rows=nulls: put(raw, text, rows))
            assert (code, message) == (Code.FAILED_PRECONDITION, "NOT NULL constraint failed: t.id")
            assert table.rows == {0: (1, "a")}


def test_table_references_cannot_be_written() -> None:
    builder = CatalogBuilder("demo")
    builder.schema("analytics").table_ref(schema=VISIBLE, name="t")(lambda request: FunctionCall("read_csv", "x"))
    complaint = "table 'analytics.t' does not support {}: it is a table reference, which is read-only"
    with Server(builder.build(), port=0) as server, Raw(server.location) as raw:
        for operation in ("insert", "update"):
            code, message = error(lambda operation=operation: put(raw, command(operation, row_ids=[1]), numbered(1)))
            assert (code, message) == (Code.FAILED_PRECONDITION, complaint.format(operation.upper()))
        code, message = error(lambda: delete(raw, row_ids=[1]))
        assert (code, message) == (Code.FAILED_PRECONDITION, complaint.format("DELETE"))


# -- transactions -----------------------------------------------------------------------------------------------------


class Ledger(TransactionManager):
    def __init__(self) -> None:
        self.states: dict[str, TransactionStatus] = {}

    def begin(self) -> str:
        name = f"tx-{len(self.states)}"
        self.states[name] = TransactionStatus.ACTIVE
        return name

    def commit(self, transaction_id: str) -> None:
        self.states[transaction_id] = TransactionStatus.COMMITTED

    def rollback(self, transaction_id: str) -> None:
        self.states[transaction_id] = TransactionStatus.ABORTED

    def status(self, transaction_id: str) -> TransactionStatus | None:
        return self.states.get(transaction_id)


class Booked(Catalog, Transactional):
    name = "demo"

    def __init__(self, table: Table) -> None:
        builder = CatalogBuilder("demo")
        builder.schema("analytics").table(table)
        self._inner = builder.build()
        self.ledger = Ledger()

    def schemas(self):
        return self._inner.schemas()

    @property
    def transactions(self) -> Ledger:
        return self.ledger


def ask(raw: Raw, action: str, **body: Any) -> dict[str, Any]:
    (answer,) = raw.action(action, json.dumps(body).encode())
    decoded: dict[str, Any] = json.loads(answer)
    return decoded


def test_transactions_in_json_and_in_messagepack() -> None:
    catalog = Booked(Simple())
    with Server(catalog, port=0) as server, Raw(server.location) as raw:
        begun = ask(raw, "create_transaction", catalog_name="demo")
        assert begun == {"status": "success", "transaction_id": "tx-0"}
        status = ask(raw, "get_transaction_status", transaction_id="tx-0")
        assert status == {"status": "success", "transaction_id": "tx-0", "transaction_status": "active"}
        assert ask(raw, "commit_transaction", transaction_id="tx-0")["transaction_status"] == "committed"
        assert ask(raw, "get_transaction_status", transaction_id="?")["transaction_status"] is None
        (answer,) = raw.action("create_transaction", b"")
        assert msgspec.msgpack.decode(answer) == {"identifier": "tx-1"}
        (answer,) = raw.action("rollback_transaction", msgspec.msgpack.encode({"transaction_id": "tx-1"}))
        assert msgspec.msgpack.decode(answer) == {"status": "aborted", "exists": True}
        (answer,) = raw.action("get_transaction_status", msgspec.msgpack.encode({"transaction_id": "?"}))
        assert msgspec.msgpack.decode(answer) == {"status": "", "exists": False}
        code, _ = error(lambda: ask(raw, "commit_transaction", transaction_id="?"))
        assert code is Code.NOT_FOUND


@pytest.mark.parametrize("header", ["x-transaction-id", "airport-transaction-id"])
def test_statement_commits_on_success_and_rolls_back_on_failure(header: str) -> None:
    catalog = Booked(Simple([(1, "a")]))
    with Server(catalog, port=0) as server, Raw(server.location) as raw:
        good, bad, third = (ask(raw, "create_transaction")["transaction_id"] for _ in range(3))
        put(raw, command("insert"), numbered(1), (header, good))
        error(lambda: put(raw, command("update", row_ids=[99]), numbered(1), (header, bad)))
        delete(raw, (header, third), row_ids=[0])
    assert [str(state) for state in catalog.ledger.states.values()] == ["committed", "aborted", "committed"]


def test_automatic_commit_and_rollback_can_be_disabled() -> None:
    catalog = Booked(Simple([(1, "a")]))
    with Server(catalog, port=0, auto_commit=False, auto_rollback=False) as server, Raw(server.location) as raw:
        one = ask(raw, "create_transaction")["transaction_id"]
        put(raw, command("insert"), numbered(1), ("x-transaction-id", one))
        error(lambda: put(raw, command("update", row_ids=[99]), numbered(1), ("x-transaction-id", one)))
    assert catalog.ledger.states == {one: TransactionStatus.ACTIVE}


def test_only_the_first_write_uses_the_transaction() -> None:
    seen: list[str] = []

    class Watching(Simple):
        def insert(self, rows, options):
            seen.append(current_request().transaction_id)
            return super().insert(rows, options)

    table = Watching()
    with Server(Booked(table), port=0) as server, Raw(server.location) as raw:
        one = ask(raw, "create_transaction")["transaction_id"]
        for _ in range(2):
            put(raw, command("insert"), numbered(1), ("airport-transaction-id", one))
    assert len(table.rows) == 2
    assert seen == [one, ""]


def test_writes_in_a_transaction_that_was_rolled_back_or_is_unknown_are_rejected() -> None:
    catalog = Booked(Simple([(1, "a")]))
    with Server(catalog, port=0) as server, Raw(server.location) as raw:
        aborted = ask(raw, "create_transaction")["transaction_id"]
        ask(raw, "rollback_transaction", transaction_id=aborted)
        for name, code, complaint in (
            (aborted, Code.FAILED_PRECONDITION, "transaction 'tx-0' has ended, it is aborted: begin a new one"),
            ("tx-99", Code.NOT_FOUND, "transaction 'tx-99' is unknown or ended long ago: begin a new one"),
        ):
            header = ("airport-transaction-id", name)
            writes = (
                lambda header=header: put(raw, command("insert"), numbered(1), header),
                lambda header=header: put(raw, command("update", row_ids=[0]), numbered(1), header),
                lambda header=header: delete(raw, header, row_ids=[0]),
            )
            for write in writes:
                assert error(write) == (code, complaint)
            raw.metadata = (*AIRPORT, header)
            with pytest.raises(grpc.RpcError) as failed:
                Exchange(raw, ("demo", "analytics", "t"), VISIBLE, "insert", returning=False)
            assert (failed.value.code(), failed.value.details()) == (code, complaint)
            raw.metadata = AIRPORT
    table = catalog.schemas()[0].tables()[0]
    assert table.rows == {0: (1, "a")}


def test_client_can_declare_that_it_ends_its_transactions_itself() -> None:
    catalog = Booked(Simple())
    own = (("airport-auto-commit", "0"),)
    with Server(catalog, port=0) as server, Raw(server.location) as raw:
        one = ask(raw, "create_transaction")["transaction_id"]
        put(raw, command("insert"), numbered(1), ("airport-transaction-id", one), *own)
        assert catalog.ledger.states[one] is TransactionStatus.ACTIVE
        ask(raw, "commit_transaction", transaction_id=one)
        code, message = error(lambda: put(raw, command("insert"), numbered(1), ("airport-transaction-id", one), *own))
        assert code is Code.FAILED_PRECONDITION
        assert "ended" in message


def test_catalogs_without_transactions_report_it() -> None:
    with serving(Statements()) as server, Raw(server.location) as raw:
        assert ask(raw, "create_transaction")["transaction_id"] is None
        assert error(lambda: ask(raw, "commit_transaction", transaction_id="x"))[0] is Code.UNIMPLEMENTED


def test_each_catalog_has_its_own_transaction_manager() -> None:
    one, two = Booked(Simple()), Booked(InBatches())
    two.name = "two"
    with Server([one, two], port=0) as server, Raw(server.location) as raw:
        ask(raw, "create_transaction", catalog_name="two")
    assert (one.ledger.states, list(two.ledger.states)) == ({}, ["tx-0"])
