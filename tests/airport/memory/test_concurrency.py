"""Many threads at once: no write is lost, and no reader sees a partial state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from airport.memory.tables import PEOPLE, begin, catalog_of, content, in_transaction, insert, people, update
from skiway.airport.memory import MemoryCatalog
from skiway.airport.tables import ScanOptions, TimePoint
from skiway.errors import Conflict, ConstraintViolation

WRITERS = 50


def all_at_once(work: Callable[[int], None], count: int = WRITERS) -> None:
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait(timeout=200)
        work(number)

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(run, number) for number in range(count)]:
            done.result(timeout=200)


def test_fifty_concurrent_inserts_lose_no_row() -> None:
    table = people()
    before = catalog_of(table).version().version

    def work(number: int) -> None:
        for part in range(4):
            statement = begin(table, "insert", PEOPLE)
            for half in range(2):
                statement.apply(pa.record_batch({"id": [number] * 5, "name": [f"{part}.{half}"] * 5}))
            assert statement.commit() == 10

    all_at_once(work)
    rows = table.scan(ScanOptions()).read_all()
    assert rows.num_rows == WRITERS * 40
    assert len(set(rows["rowid"].to_pylist())) == WRITERS * 40
    assert sorted(rows["id"].to_pylist()) == sorted(number for number in range(WRITERS) for _ in range(40))
    assert catalog_of(table).version().version == before + WRITERS * 4


def test_readers_only_see_complete_statements() -> None:
    table = people()
    done = threading.Event()
    torn: list[int] = []

    def read() -> None:
        seen = 0
        while not done.is_set():
            rows = table.to_arrow()
            groups = rows.group_by("id").aggregate([("name", "count")])["name_count"].to_pylist()
            torn.extend(group for group in groups if group != 10)
            assert rows.num_rows >= seen
            seen = rows.num_rows

    def work(number: int) -> None:
        statement = begin(table, "insert", PEOPLE)
        for _ in range(2):
            statement.apply(pa.record_batch({"id": [number] * 5, "name": ["x"] * 5}))
        statement.commit()

    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(read) for _ in range(2)]
        try:
            all_at_once(work)
        finally:
            done.set()
        for reader in reading:
            reader.result(timeout=200)
    assert torn == []
    assert table.row_count() == WRITERS * 10


def test_concurrent_increments_lose_no_update() -> None:
    table = people(schema=pa.schema({"n": pa.int64()}))
    insert(table, {"n": [0]})
    conflicts = []

    def work(number: int) -> None:
        while True:
            statement = begin(table, "update", pa.schema({"n": pa.int64(), "rowid": pa.int64()}))
            ((value,),) = content(table)
            try:
                statement.apply(pa.record_batch({"n": [value + 1], "rowid": [0]}))
                statement.commit()
            except Conflict:
                conflicts.append(number)
            else:
                return

    all_at_once(work)
    assert content(table) == [(WRITERS,)]


def test_concurrent_increments_in_transactions_lose_no_update() -> None:
    table = people(schema=pa.schema({"n": pa.int64()}))
    transactions = catalog_of(table).transactions
    insert(table, {"n": [0]})

    def work(number: int) -> None:
        while True:
            transaction = transactions.begin()
            with in_transaction(transaction):
                ((value,),) = content(table)
                update(table, {"n": [value + 1], "rowid": [0]})
            try:
                transactions.commit(transaction)
            except Conflict:
                continue
            return

    all_at_once(work, 20)
    assert content(table) == [(20,)]


def test_only_one_of_many_inserts_of_the_same_key_succeeds() -> None:
    table = people(primary_key=("id",))
    won = []

    def work(number: int) -> None:
        try:
            insert(table, {"id": [7], "name": [str(number)]})
        except ConstraintViolation:
            return
        won.append(number)

    all_at_once(work)
    assert len(won) == 1
    assert content(table) == [(7, str(won[0]))]


def test_concurrent_ddl_statements_succeed() -> None:
    catalog = MemoryCatalog(schemas=["public"])
    table = people(catalog)

    def work(number: int) -> None:
        table.add_column(pa.field(f"c{number}", pa.int32()))
        catalog.create_schema(f"s{number}")

    all_at_once(work, 20)
    assert sorted(table.schema.names[2:-1]) == sorted(f"c{number}" for number in range(20))
    assert len(catalog.schemas()) == 21


@pytest.mark.parametrize("version", [3, 10, 52])
def test_all_versions_of_concurrent_writers_can_be_read(version: int) -> None:
    table = people()
    all_at_once(lambda number: [insert(table, {"id": [number], "name": ["x"]})][0] and None)
    past = table.at(TimePoint("version", str(version)))
    assert past
    assert past.row_count() == version - 2
