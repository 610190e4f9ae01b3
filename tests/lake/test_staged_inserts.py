"""Inserts of Python clients that become visible together, at the end of a transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.client.airport.calls import TransactionContext
from skiway.errors import (
    Conflict,
    ConstraintViolation,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    PreconditionFailed,
    SkiwayError,
    Unsupported,
)
from skiway.formats.iceberg.changes.commits import replacing
from skiway.formats.iceberg.types import iceberg_schema
from skiway.metastore import directory, managed
from skiway.model import v1

ROWS = pa.table({"id": [1, 2]})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as client:
        client.create_schema("s")
        for name in ("s.a", "s.b"):
            client.create_table(name, ROWS.schema)
        yield client


def counts(lake: Lake) -> tuple[int, int]:
    """The rows of both tables, as another client reads them."""
    with lake.client() as other:
        return other.count("s.a"), other.count("s.b")


def files(lake: Lake) -> set[Path]:
    return {path for path in lake.folder.rglob("*") if path.is_file()}


def test_inserts_of_a_transaction_become_visible_together(lake: Lake, db: AirportClient) -> None:
    with db.transaction() as transaction:
        assert transaction.insert("s.a", ROWS) == 2
        assert transaction.insert("s.b", ROWS) == 2
        transaction.insert("s.a", ROWS)
        assert counts(lake) == (0, 0)
        assert db.transaction_status(transaction.id) == "active"
    assert counts(lake) == (4, 2)
    assert db.transaction_status(transaction.id) == "committed"


def test_explicit_transaction_stages_the_inserts_of_the_client(lake: Lake, db: AirportClient) -> None:
    with db.transaction(explicit=True):
        returned = db.insert("s.a", ROWS, returning=True)
        assert returned.rows is not None
        assert returned.rows.equals(ROWS)
        db.insert("s.b", ROWS)
        assert counts(lake) == (0, 0)
    assert counts(lake) == (2, 2)


def test_exception_discards_all_inserts_and_their_files(lake: Lake, db: AirportClient) -> None:
    before = files(lake)
    with pytest.raises(ZeroDivisionError), db.transaction() as transaction:  # noqa: PT012
        transaction.insert("s.a", ROWS)
        transaction.insert("s.b", ROWS)
        assert len(files(lake) - before) == 4
        raise ZeroDivisionError
    assert (counts(lake), files(lake)) == ((0, 0), before)
    assert db.transaction_status(transaction.id) == "aborted"


def test_other_statements_in_the_block_commit_at_once(lake: Lake, db: AirportClient) -> None:
    with db.transaction() as transaction:
        transaction.insert("s.a", ROWS)
        db.insert("s.b", ROWS)
        assert counts(lake) == (0, 2)
        with pytest.raises(SkiwayError):
            db.insert("s.b", pa.table({"nope": [1]}))
        assert db.delete("s.b", where=col("id") == 1).count == 1
        assert counts(lake) == (0, 1)
    assert counts(lake) == (2, 1)


def test_failed_insert_leaves_the_others_to_the_caller(lake: Lake, db: AirportClient) -> None:
    before = files(lake)
    with db.transaction() as transaction:
        transaction.insert("s.a", ROWS)
        with pytest.raises(InvalidArgument):
            transaction.insert("s.b", pa.table({"id": ["text"]}))
        with pytest.raises(NotFound):
            transaction.insert("s.missing", ROWS)
        assert len(files(lake) - before) == 2
    assert counts(lake) == (2, 0)


def test_missing_value_stages_nothing(lake: Lake, db: AirportClient) -> None:
    db.create_table("s.strict", pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    before = files(lake)
    with pytest.raises(ConstraintViolation), db.transaction() as transaction:  # noqa: PT012
        transaction.insert("s.a", ROWS)
        transaction.insert("s.strict", pa.table({"id": pa.array([None], pa.int64())}))
    assert (counts(lake), files(lake)) == ((0, 0), before)


def test_conflict_commits_nothing_and_discards_the_rows(lake: Lake, db: AirportClient) -> None:
    replacement = iceberg_schema(pa.schema({"other": pa.string()}), format_version=2)
    with pytest.raises(Conflict) as raised, db.transaction() as transaction:  # noqa: PT012
        transaction.insert("s.a", ROWS)
        transaction.insert("s.b", ROWS)
        table = lake_table(lake, "b")
        managed.change(lake.realm, lake.warehouse, table, replacing(replacement))
    assert raised.value.key == "commit.failed"
    assert counts(lake) == (0, 0)
    assert db.transaction_status(transaction.id) == "aborted"
    assert not [path for path in files(lake) if path.suffix == ".parquet"]


def lake_table(lake: Lake, name: str) -> v1.ResourceId:
    ref = v1.NameRef(catalog="managed", path=["s"], name=name)
    return directory.resolve_table(lake.realm, v1.ResolveTableRequest(ref=ref)).resource_id


@pytest.mark.parametrize(
    "statement",
    ["create", "alter", "drop", "create_as", "create_schema", "drop_schema", "view", "tag"],
)
def test_definitions_cannot_be_staged(lake: Lake, db: AirportClient, statement: str) -> None:
    db.insert("s.a", ROWS)
    run = {
        "create": lambda: db.create_table("s.c", ROWS.schema),
        "alter": lambda: db.add_column("s.a", pa.field("more", pa.string())),
        "drop": lambda: db.drop_table("s.a"),
        "create_as": lambda: db.create_table_as("s.c", ROWS),
        "create_schema": lambda: db.create_schema("more"),
        "drop_schema": lambda: db.drop_schema("s"),
        "view": lambda: db.call("skiway.create_view", "s.v", "SELECT 1 AS a").read_all(),
        "tag": lambda: db.call("skiway.tag", "s.a", "now").read_all(),
    }[statement]
    with db.transaction(explicit=True), pytest.raises(Unsupported) as raised:
        run()
    assert raised.value.key in ("", "transaction.explicit")
    assert "only INSERT, UPDATE, DELETE and MERGE" in str(raised.value)
    assert counts(lake) == (2, 0)


@pytest.mark.parametrize("action", ["commit_transaction", "rollback_transaction"])
def test_transaction_of_another_caller_is_unknown(lake: Lake, db: AirportClient, action: str) -> None:
    """The tokens belong to different callers of one account."""
    with lake.client(token="reader") as stranger, db.transaction() as transaction:
        transaction.insert("s.a", ROWS)
        assert stranger.transaction_status(transaction.id) is None
        with pytest.raises(NotFound, match="unknown or has expired"):
            stranger._session.calls.end_transaction(action, transaction.id)
        assert counts(lake) == (0, 0)
    assert counts(lake) == (2, 0)


def test_caller_without_permission_stages_nothing(lake: Lake, db: AirportClient) -> None:
    before = files(lake)
    with lake.client(token="reader") as reader, pytest.raises(PermissionDenied), reader.transaction() as transaction:
        transaction.insert("s.a", ROWS)
    assert (counts(lake), files(lake)) == ((0, 0), before)


def test_ended_transaction_takes_no_inserts(lake: Lake, db: AirportClient) -> None:
    with db.transaction() as transaction:
        transaction.insert("s.a", ROWS)
    with pytest.raises(PreconditionFailed, match="has ended, it is committed"):
        transaction.insert("s.a", ROWS)
    assert counts(lake) == (2, 0)


READS: dict[str, Callable[[AirportClient], object]] = {
    "table": lambda db: db.scan("s.a").read_all(),
    "system table": lambda db: db.scan("skiway.tables").read_all(),
    "statistics": lambda db: db.statistics("s.a", "id"),
    "schemas": lambda db: db._session.calls.list_schemas(TransactionContext(db._session.begin().id)),
    "insert": lambda db: db.insert("s.a", ROWS),
}


@pytest.mark.parametrize("has_rows", [True, False], ids=["with rows", "without rows"])
@pytest.mark.parametrize("action", ["commit_transaction", "rollback_transaction"])
def test_statements_of_an_ended_transaction_fail(lake: Lake, db: AirportClient, action: str, *, has_rows: bool) -> None:
    with db.transaction() as transaction:
        if has_rows:
            transaction.insert("s.b", ROWS)
        unit = transaction.id
        for read in (READS["table"], READS["system table"]):
            read(db)
        db._session.calls.end_transaction(action, unit)
        state = "committed" if action == "commit_transaction" else "aborted"
        assert db.transaction_status(unit) == state
        for name, statement in READS.items():
            with pytest.raises(PreconditionFailed, match=f"has ended, it is {state}: COMMIT or ROLLBACK") as raised:
                statement(db)
            assert raised.value.key == "transaction.ended", name
        with pytest.raises(PreconditionFailed, match=f"has ended, it is {state}"):
            transaction.scan("s.a").read_all()
        with pytest.raises(PreconditionFailed, match=f"has ended, it is {state}"):
            transaction.call("skiway.query", "SELECT count(*) AS n FROM s.a").read_all()
        with lake.served() as location, AirportClient(location, "managed") as other, other.transaction() as joined:
            joined._identifier = unit
            with pytest.raises(PreconditionFailed, match=f"has ended, it is {state}"):
                other.count("s.a")
            joined._must_end = False
        transaction._must_end = False
    assert counts(lake) == (0, 2 if has_rows and state == "committed" else 0)


def test_statements_of_an_unknown_transaction_fail(lake: Lake, db: AirportClient) -> None:
    with lake.client(token="reader") as stranger, stranger.transaction() as other:
        ids = ["invented", other.id]
    for unit in ids:
        with db.transaction() as transaction:
            transaction._identifier = unit
            for statement in READS.values():
                with pytest.raises(NotFound, match="is unknown: COMMIT or ROLLBACK, then begin a new one"):
                    statement(db)


def test_transaction_continues_on_another_server(lake: Lake, db: AirportClient) -> None:
    with lake.served() as second, AirportClient(second, "managed") as other:
        with db.transaction() as transaction:
            transaction.insert("s.a", ROWS)
            other._session.calls.end_transaction("commit_transaction", transaction.id)
            assert counts(lake) == (2, 0)
        assert db.transaction_status(transaction.id) == other.transaction_status(transaction.id) == "committed"
    assert counts(lake) == (2, 0)


def test_concurrent_transactions_keep_tables_equal(lake: Lake, db: AirportClient) -> None:
    def work(number: int) -> None:
        with lake.client() as own, own.transaction() as transaction:
            for table in ("s.a", "s.b")[:: 1 if number % 2 else -1]:
                transaction.insert(table, pa.table({"id": [number]}))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert counts(lake) == (8, 8)
