"""Many threads at once: nothing is lost, nobody sees half a state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from airport.memory.tables import PEOPLE, begin, catalog_of, content, insert, people, update, working_in
from skiway.airport.memory import MemoryCatalog
from skiway.airport.scan import ScanOptions, TimePoint
from skiway.errors import Conflict, ConstraintViolation

WRITERS = 50


def all_at_once(work: Callable[[int], None], count: int = WRITERS) -> None:
    gate = threading.Barrier(count)

    def run(number: int) -> None:
        gate.wait(timeout=60)
        work(number)

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(run, number) for number in range(count)]:
            done.result(timeout=60)


def test_fifty_inserters_lose_nothing() -> None:
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


def test_readers_see_whole_statements_only() -> None:
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
            reader.result(timeout=60)
    assert torn == []
    assert table.row_count() == WRITERS * 10


def test_counting_up_by_many_loses_no_step() -> None:
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


def test_counting_up_in_transactions_loses_no_step() -> None:
    table = people(schema=pa.schema({"n": pa.int64()}))
    transactions = catalog_of(table).transactions
    insert(table, {"n": [0]})

    def work(number: int) -> None:
        while True:
            transaction = transactions.begin()
            with working_in(transaction):
                ((value,),) = content(table)
                update(table, {"n": [value + 1], "rowid": [0]})
            try:
                transactions.commit(transaction)
            except Conflict:
                continue
            return

    all_at_once(work, 20)
    assert content(table) == [(20,)]


def test_of_many_inserters_of_one_key_one_wins() -> None:
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


def test_definitions_can_be_changed_by_many() -> None:
    catalog = MemoryCatalog(schemas=["public"])
    table = people(catalog)

    def work(number: int) -> None:
        table.add_column(pa.field(f"c{number}", pa.int32()))
        catalog.create_schema(f"s{number}")

    all_at_once(work, 20)
    assert sorted(table.schema.names[2:-1]) == sorted(f"c{number}" for number in range(20))
    assert len(catalog.schemas()) == 21


@pytest.mark.parametrize("version", [3, 10, 52])
def test_versions_made_by_many_can_all_be_read_again(version: int) -> None:
    table = people()
    all_at_once(lambda number: [insert(table, {"id": [number], "name": ["x"]})][0] and None)
    past = table.at(TimePoint("version", str(version)))
    assert past
    assert past.row_count() == version - 2
