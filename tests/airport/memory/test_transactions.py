"""Transactions: own writes, isolation, conflicts, rollback, expiry."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from airport.memory.tables import (
    PEOPLE,
    StillClock,
    begin,
    catalog_of,
    content,
    delete,
    in_transaction,
    insert,
    people,
    update,
)
from skiway.airport.catalog import CreateTable, TransactionStatus
from skiway.airport.memory import MemoryCatalog, MemoryTable, MemoryTransactions
from skiway.airport.memory.transactions import Store
from skiway.errors import Conflict, ConstraintViolation, NotFound, PreconditionFailed


def filled(catalog: MemoryCatalog | None = None, **rules: object) -> MemoryTable:
    table = people(catalog, **rules)
    insert(table, {"id": [1, 2], "name": ["Ada", "Grace"]})
    return table


def test_transaction_sees_its_own_writes_and_others_see_them_after_commit() -> None:
    table = filled()
    catalog = catalog_of(table)
    before = catalog.version().version
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        insert(table, {"id": [3], "name": ["Joan"]})
        update(table, {"name": ["ADA"], "rowid": [0]})
        update(table, {"name": ["JOAN"], "rowid": [2]})
        delete(table, [1])
        assert content(table) == [(1, "ADA"), (3, "JOAN")]
    assert content(table) == [(1, "Ada"), (2, "Grace")]
    assert catalog.transactions.status(transaction) is TransactionStatus.ACTIVE
    catalog.transactions.commit(transaction)
    assert content(table) == [(1, "ADA"), (3, "JOAN")]
    assert catalog.transactions.status(transaction) is TransactionStatus.COMMITTED
    assert catalog.version().version == before + 1


def test_rolled_back_transaction_changes_nothing() -> None:
    table = filled()
    catalog = catalog_of(table)
    before = catalog.version()
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        insert(table, {"id": [3], "name": ["Joan"]})
        table.add_column(pa.field("age", pa.int32()))
        catalog.create_schema("other")
    catalog.transactions.rollback(transaction)
    assert content(table) == [(1, "Ada"), (2, "Grace")]
    assert catalog.version() == before
    assert catalog.schema("other") is None
    assert catalog.transactions.status(transaction) is TransactionStatus.ABORTED


def test_transaction_reads_a_snapshot_from_its_first_use() -> None:
    table = filled()
    transaction = catalog_of(table).transactions.begin()
    with in_transaction(transaction):
        assert table.row_count() == 2
    insert(table, {"id": [3], "name": ["Joan"]})
    with in_transaction(transaction):
        assert table.row_count() == 2
    assert table.row_count() == 3


def test_concurrent_inserts_are_merged_with_those_of_a_transaction() -> None:
    table = filled()
    transaction = catalog_of(table).transactions.begin()
    with in_transaction(transaction):
        insert(table, {"id": [3], "name": ["Joan"]})
        update(table, {"name": ["JOAN"], "rowid": [2]})
    insert(table, {"id": [4], "name": ["Edith"]})
    update(table, {"name": ["GRACE"], "rowid": [1]})
    catalog_of(table).transactions.commit(transaction)
    assert content(table) == [(1, "Ada"), (2, "GRACE"), (4, "Edith"), (3, "JOAN")]


def test_the_first_of_two_transactions_to_commit_wins() -> None:
    table = filled()
    transactions = catalog_of(table).transactions
    first, second = transactions.begin(), transactions.begin()
    for transaction in (first, second):
        with in_transaction(transaction):
            insert(table, {"id": [9], "name": [transaction]})
            update(table, {"name": [transaction], "rowid": [0]})
    transactions.commit(first)
    with pytest.raises(Conflict, match="row 0 of people"):
        transactions.commit(second)
    assert content(table) == [(1, first), (2, "Grace"), (9, first)]
    assert transactions.status(second) is TransactionStatus.ABORTED
    with pytest.raises(PreconditionFailed, match=r"row 0 of people.*; transaction \w+ is aborted: begin a new one"):
        transactions.commit(second)


def test_keys_are_enforced_across_transactions() -> None:
    table = filled(primary_key=("id",))
    transactions = catalog_of(table).transactions
    first, second = transactions.begin(), transactions.begin()
    for transaction in (first, second):
        with in_transaction(transaction):
            insert(table, {"id": [3], "name": [transaction]})
    transactions.commit(first)
    with pytest.raises(ConstraintViolation, match='"id: 3"'):
        transactions.commit(second)
    assert content(table)[2:] == [(3, first)]


def test_failed_statement_keeps_earlier_changes_of_the_transaction() -> None:
    table = filled(primary_key=("id",))
    transaction = catalog_of(table).transactions.begin()
    with in_transaction(transaction):
        insert(table, {"id": [3], "name": ["Joan"]})
        with pytest.raises(ConstraintViolation):
            insert(table, {"id": [3], "name": ["again"]})
    catalog_of(table).transactions.commit(transaction)
    assert content(table)[2:] == [(3, "Joan")]


def test_ddl_is_transactional() -> None:
    table = filled()
    catalog = catalog_of(table)
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        schema = catalog.create_schema("other")
        created = schema.create_table(CreateTable("t", PEOPLE))
        insert(created, {"id": [1], "name": ["x"]})
        created.add_column(pa.field("age", pa.int32(), metadata={"default": "5"}))
        insert(created, {"id": [2]})
        table.rename_column("name", "label")
        assert table.schema.names == ["id", "label", "rowid"]
    assert table.schema.names == ["id", "name", "rowid"]
    assert catalog.schema("other") is None
    insert(table, {"id": [3], "name": ["Joan"]})  # makes the transaction replay its changes on newer rows
    catalog.transactions.commit(transaction)
    assert table.to_arrow()["label"].to_pylist() == ["Ada", "Grace", "Joan"]
    other = catalog.schema("other")
    assert other
    visible = other.table("t")
    assert visible
    assert content(visible) == [(1, "x", 5), (2, None, 5)]


def test_a_table_altered_by_another_transaction_is_a_conflict() -> None:
    table = filled()
    transactions = catalog_of(table).transactions
    first, second = transactions.begin(), transactions.begin()
    for transaction, column in ((first, "a"), (second, "b")):
        with in_transaction(transaction):
            table.add_column(pa.field(column, pa.int32()))
    transactions.commit(first)
    with pytest.raises(Conflict, match="altered since"):
        transactions.commit(second)
    assert table.schema.names == ["id", "name", "a", "rowid"]


@pytest.mark.parametrize("how", ["drop", "rename"])
def test_transaction_does_not_drop_a_table_that_another_recreated(how: str) -> None:
    table = filled()
    catalog = catalog_of(table)
    schema = catalog.schema("public")
    assert schema
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        if how == "drop":
            schema.drop_table("people")
        else:
            schema.rename_table("people", "persons")
        assert schema.table("people") is None
    schema.create_table(CreateTable("people", PEOPLE, on_conflict="replace"))
    with pytest.raises(Conflict):
        catalog.transactions.commit(transaction)
    assert schema.table("people")


def test_statements_outside_transactions_can_alter_in_sequence() -> None:
    table = filled()
    same = catalog_of(table).schema("public")
    assert same
    other = same.table("people")
    assert other
    table.add_column(pa.field("a", pa.int32()))
    other.add_column(pa.field("b", pa.int32()))
    assert table.schema.names == ["id", "name", "a", "b", "rowid"]


def test_read_only_transaction_advances_when_a_definition_changes() -> None:
    """DuckDB sends DDL without a transaction id: a table created after BEGIN must be visible in that transaction."""
    table = filled()
    catalog = catalog_of(table)
    schema = catalog.schema("public")
    assert schema
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        assert table.row_count() == 2
    schema.create_table(CreateTable("fresh", PEOPLE))
    with in_transaction(transaction):
        fresh = schema.table("fresh")
        assert fresh
        insert(fresh, {"id": [1], "name": ["x"]})
    catalog.transactions.commit(transaction)
    assert fresh.row_count() == 1


def test_transaction_with_writes_does_not_advance() -> None:
    table = filled()
    catalog = catalog_of(table)
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        insert(table, {"id": [3], "name": ["Joan"]})
    catalog.create_schema("other")
    with in_transaction(transaction):
        assert catalog.schema("other") is None
        assert table.row_count() == 3


def test_statements_after_the_commit_of_their_transaction_autocommit() -> None:
    table = filled()
    transactions = catalog_of(table).transactions
    transaction = transactions.begin()
    with in_transaction(transaction):
        insert(table, {"id": [3], "name": ["Joan"]})
        transactions.commit(transaction)
        insert(table, {"id": [4], "name": ["Edith"]})
        transactions.commit(transaction)
        assert table.row_count() == 4
    assert table.row_count() == 4
    with pytest.raises(PreconditionFailed, match="committed and cannot be rolled back"):
        transactions.rollback(transaction)


def test_statements_in_a_rolled_back_transaction_fail() -> None:
    table = filled()
    transactions = catalog_of(table).transactions
    transaction = transactions.begin()
    with in_transaction(transaction):
        open_statement = begin(table, "insert", table.projected_schema(["id", "name"]))
        open_statement.apply(pa.record_batch({"id": [3], "name": ["Joan"]}))
        transactions.rollback(transaction)
        with pytest.raises(PreconditionFailed, match="aborted"):
            open_statement.commit()
        with pytest.raises(PreconditionFailed, match="aborted"):
            table.row_count()
    transactions.rollback(transaction)
    assert table.row_count() == 2


def test_unknown_transaction_is_rejected() -> None:
    table = filled()
    transactions = catalog_of(table).transactions
    assert transactions.status("nope") is None
    for attempt in (transactions.commit, transactions.rollback):
        with pytest.raises(NotFound, match="'nope'"):
            attempt("nope")
    with in_transaction("nope"), pytest.raises(NotFound, match="begin a new one"):
        table.row_count()


def test_an_idle_transaction_is_aborted_and_forgotten_later() -> None:
    clock = StillClock()
    catalog = MemoryCatalog(schemas=["public"], clock=clock, transaction_ttl=dt.timedelta(minutes=10))
    table = filled(catalog)
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        insert(table, {"id": [3], "name": ["Joan"]})
    clock.advance(minutes=9)
    with in_transaction(transaction):
        assert table.row_count() == 3
    clock.advance(minutes=9)
    assert catalog.transactions.status(transaction) is TransactionStatus.ACTIVE
    clock.advance(minutes=1.1)
    assert catalog.transactions.status(transaction) is TransactionStatus.ABORTED
    with pytest.raises(PreconditionFailed, match="aborted"):
        catalog.transactions.commit(transaction)
    assert table.row_count() == 2
    clock.advance(minutes=10)
    assert catalog.transactions.status(transaction) is None


def test_long_statement_keeps_its_transaction_alive() -> None:
    clock = StillClock()
    catalog = MemoryCatalog(schemas=["public"], clock=clock, transaction_ttl=dt.timedelta(minutes=10))
    table = people(catalog)
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        statement = begin(table, "insert", PEOPLE)
        for number in range(4):
            clock.advance(minutes=6)
            statement.apply(pa.record_batch({"id": [number], "name": ["x"]}))
        statement.commit()
    catalog.transactions.commit(transaction)
    assert table.row_count() == 4


def test_abandoned_transactions_do_not_accumulate() -> None:
    clock = StillClock()
    catalog = MemoryCatalog(clock=clock, transaction_ttl=dt.timedelta(seconds=10))
    for _ in range(2000):
        catalog.transactions.begin()
        clock.advance(seconds=1)
    assert len(catalog.transactions._known) < 100


def test_read_only_transactions_are_evicted_first() -> None:
    clock = StillClock()
    store = Store(clock=clock, keep=10)
    transactions = MemoryTransactions(store, clock=clock, ttl=dt.timedelta(minutes=10), many=50)
    writer = transactions.begin()
    transactions.session(writer).apply(lambda snapshot: snapshot)
    for _ in range(1000):
        transactions.begin()
        clock.advance(seconds=0.5)
    assert len(transactions._known) < 200
    assert transactions.status(writer) is TransactionStatus.ACTIVE


def test_uncommitted_changes_are_not_listed_for_others() -> None:
    table = filled()
    catalog = catalog_of(table)
    before, shared = catalog.version(), catalog.visibility_key()
    transaction = catalog.transactions.begin()
    with in_transaction(transaction):
        assert (catalog.version(), catalog.visibility_key()) == (before, shared)
        table.add_column(pa.field("age", pa.int32()))
        assert catalog.version().version == before.version + 1
        assert catalog.visibility_key() != shared
    assert (catalog.version(), catalog.visibility_key()) == (before, shared)


def test_aborted_transaction_reports_the_statement_that_failed() -> None:
    """A scan of a failed statement can still be running; DuckDB then shows the scan's error."""
    table = people()
    transactions = catalog_of(table).transactions
    transaction = transactions.begin()
    try:
        raise ConstraintViolation("NOT NULL constraint failed: people.name")
    except ConstraintViolation:
        transactions.rollback(transaction)
    with (
        in_transaction(transaction),
        pytest.raises(PreconditionFailed, match=r"NOT NULL constraint failed: people.name; transaction .* is aborted"),
    ):
        content(table)
