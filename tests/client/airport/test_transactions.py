"""Transactions from Python: those with DuckDB's semantics, and explicit ones that the client ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pyarrow as pa
import pytest

from client.recorder import Recorder, recording
from skiway.airport import AirportService, CatalogBuilder, Server
from skiway.airport.memory import MemoryCatalog
from skiway.airport.wire.protocol import TransactionRequest, encode
from skiway.client import AirportClient, Transaction, col
from skiway.errors import InvalidArgument, NotFound, PreconditionFailed, Unsupported

COLUMNS = pa.schema([("a", pa.int64())])


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def db(recorder: Recorder) -> Iterator[AirportClient]:
    catalog = MemoryCatalog("m", schemas=["s"])
    with (
        recording(AirportService(catalog), recorder) as location,
        AirportClient(location, "m", timeout_s=200) as client,
    ):
        client.create_table("s.t", COLUMNS)
        recorder.calls.clear()
        yield client


@pytest.fixture
def other(db: AirportClient) -> Iterator[AirportClient]:
    with AirportClient(db.location, "m", timeout_s=200) as client:
        yield client


def rows(*values: int) -> pa.Table:
    return pa.table({"a": values}, COLUMNS)


class Halt(Exception):
    """An exception raised by user code."""


@contextlib.contextmanager
def broken_off(db: AirportClient, *, explicit: bool = True) -> Iterator[Transaction]:
    """A transaction that ends with an exception."""
    with contextlib.suppress(Halt), db.transaction(explicit=explicit) as transaction:
        yield transaction
        raise Halt


def test_explicit_transaction_becomes_visible_to_others_at_its_end(db: AirportClient, other: AirportClient) -> None:
    with db.transaction(explicit=True) as transaction:
        db.insert("s.t", rows(1, 2, 3))
        assert db.update("s.t", {"a": 20}, where=col("a") == 2).count == 1
        assert db.delete("s.t", where=col("a") == 3, returning=True).count == 1
        assert sorted(db.scan("s.t").read_all()["a"].to_pylist()) == [1, 20]
        assert other.count("s.t") == 0
        assert db.transaction_status(transaction.id) == "active"
    assert sorted(other.scan("s.t").read_all()["a"].to_pylist()) == [1, 20]
    assert db.transaction_status(transaction.id) == "committed"
    assert db.transaction_status("never heard of") is None


def test_exception_rolls_back_an_explicit_transaction(db: AirportClient, other: AirportClient) -> None:
    with broken_off(db) as transaction:
        db.insert("s.t", rows(1))
        db.create_schema("new")
        db.create_table("new.t", COLUMNS)
        db.add_column("s.t", pa.field("b", pa.int8()))
        assert db.table("s.t").columns == ("a", "b")
    assert db.transaction_status(transaction.id) == "aborted"
    assert db.table("s.t").columns == other.table("s.t").columns == ("a",)
    assert [schema.name for schema in db.schemas()] == ["s"]
    assert db.count("s.t") == 0


def test_ddl_is_part_of_an_explicit_transaction(db: AirportClient, other: AirportClient) -> None:
    with db.transaction(explicit=True):
        db.create_schema("new")
        db.create_table("new.t", COLUMNS)
        db.insert("new.t", rows(1))
        db.rename_table("new.t", "u")
        db.drop_table("s.t")
        other.reload()
        assert [schema.name for schema in other.schemas()] == ["s"]
        assert other.count("s.t") == 0
    other.reload()
    assert other.count("new.u") == 1
    with pytest.raises(NotFound):
        other.table("s.t")


def test_failed_statement_does_not_end_an_explicit_transaction(db: AirportClient) -> None:
    with db.transaction(explicit=True):
        db.insert("s.t", rows(1))
        with pytest.raises(NotFound):
            db.delete("s.t", [2**40])
        db.insert("s.t", rows(2))
    assert db.count("s.t") == 2


def test_transaction_with_duckdb_semantics_commits_each_statement(db: AirportClient, other: AirportClient) -> None:
    with broken_off(db, explicit=False):
        db.insert("s.t", rows(1))
        assert other.count("s.t") == 1
        db.insert("s.t", rows(2))
    assert db.count("s.t") == 2, "nothing tells the server to roll back"


def test_headers_mark_the_calls_of_a_transaction(db: AirportClient, recorder: Recorder) -> None:
    with db.transaction(explicit=True) as transaction:
        db.insert("s.t", rows(1))
        db.count("s.t")
        db.add_column("s.t", pa.field("b", pa.int8()))
    explicit_calls = {c.name for c in recorder.calls if c.header("airport-auto-commit") == "0"}
    assert explicit_calls >= {"DoExchange", "endpoints", "DoGet", "add_column"}
    assert {c.header("airport-transaction-id") for c in recorder.calls if c.name in explicit_calls} == {transaction.id}
    assert recorder.names().count("create_transaction") == 1
    assert recorder.names()[-1] == "commit_transaction"


def test_empty_transaction_makes_no_request(db: AirportClient, recorder: Recorder) -> None:
    with db.transaction(explicit=True):
        pass
    assert recorder.calls == []


def test_transaction_belongs_to_its_thread(db: AirportClient) -> None:
    with broken_off(db):
        db.insert("s.t", rows(1))
        thread = threading.Thread(target=lambda: db.insert("s.t", rows(2)))
        thread.start()
        thread.join()
    assert db.scan("s.t").read_all()["a"].to_pylist() == [2]


def test_transaction_that_ended_elsewhere_is_rejected(db: AirportClient) -> None:
    with broken_off(db) as transaction:
        db.insert("s.t", rows(1))
        body = encode(TransactionRequest(transaction.id, "m"))
        db.action("rollback_transaction", body)
        with pytest.raises(
            PreconditionFailed, match=rf"transaction '{transaction.id}' has ended, it is aborted: begin a new one"
        ):
            db.insert("s.t", rows(2))
    assert db.count("s.t") == 0


def test_transactions_cannot_be_nested(db: AirportClient) -> None:
    with (
        db.transaction(explicit=True),
        pytest.raises(InvalidArgument, match="transactions cannot be nested"),
        db.transaction(),
    ):
        pass


def test_explicit_transaction_needs_a_catalog_with_transactions() -> None:
    builder = CatalogBuilder("demo")
    builder.schema("s").table(schema=COLUMNS, name="t")(lambda scan: rows(1))
    with Server(builder.build(), port=0) as server, AirportClient(server.location, "demo") as db:
        with pytest.raises(Unsupported, match="has no transactions"), db.transaction(explicit=True):
            db.count("s.t")
        with db.transaction() as transaction:
            assert db.count("s.t") == 1
            assert transaction.id == ""
