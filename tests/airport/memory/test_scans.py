"""Scans: columns, filters, limits, batches that share memory, and rows stored in few chunks."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from airport.filters.building import column, compare, constant
from airport.memory.tables import content, delete, insert, people, update, write
from skiway.airport.memory import MemoryCatalog, MemoryTable
from skiway.airport.memory.rows import CHUNK_ROWS
from skiway.airport.tables import ScanOptions
from skiway.errors import InvalidArgument


def numbers(count: int) -> MemoryTable:
    public = MemoryCatalog(schemas=["public"]).schema("public")
    assert public
    return public.add_table(
        "numbers", pa.table({"n": pa.arange(0, count), "half": pa.array([i / 2 for i in range(count)])})
    )


def filtered(condition: object, names: list[str]) -> str:
    return json.dumps({"filters": [condition], "column_binding_names_by_index": names})


def test_requested_columns_arrive_in_order_with_the_row_id_if_requested() -> None:
    table = numbers(3)
    assert table.scan(ScanOptions()).schema.names == ["n", "half", "rowid"]
    read = table.scan(ScanOptions(columns=["rowid", "n"])).read_all()
    assert read.to_pydict() == {"rowid": [0, 1, 2], "n": [0, 1, 2]}
    with pytest.raises(InvalidArgument, match="'nope'"):
        table.scan(ScanOptions(columns=["nope"]))


def test_scan_without_columns_has_the_right_row_count() -> None:
    assert sum(batch.num_rows for batch in numbers(10).scan(ScanOptions(columns=[]))) == 10


def test_batches_are_bounded_and_share_the_memory_of_the_table() -> None:
    table = numbers(CHUNK_ROWS * 2 + 10)
    kept = {chunk.batch.column(0).buffers()[1].address for chunk in table._state().rows.chunks}
    batches = list(table.scan(ScanOptions(columns=["n"])))
    assert [batch.num_rows for batch in batches] == [CHUNK_ROWS, CHUNK_ROWS, 10]
    assert {batch.column(0).buffers()[1].address for batch in batches} <= kept
    assert [batch.num_rows for batch in numbers(10).scan(ScanOptions(batch_size=4))] == [4, 4, 2]
    with pytest.raises(InvalidArgument, match="at least 1, not 0"):
        table.scan(ScanOptions(batch_size=0))


def test_filter_is_applied_even_if_its_column_is_not_requested() -> None:
    above = filtered(compare(column(0, "BIGINT"), "GREATERTHAN", constant("BIGINT", 7)), ["n"])
    read = numbers(10).scan(ScanOptions(columns=["half"], json_filters=above)).read_all()
    assert read.to_pydict() == {"half": [4.0, 4.5]}


def test_unsupported_filter_selects_all_rows() -> None:
    odd = filtered({"expression_class": "BOUND_FUNCTION", "name": "no_such_function", "children": []}, ["n"])
    assert numbers(10).scan(ScanOptions(json_filters=odd)).read_all().num_rows == 10


def test_limit_truncates_rows_unless_there_is_a_filter() -> None:
    table = numbers(CHUNK_ROWS + 10)
    assert table.scan(ScanOptions(limit=5)).read_all().num_rows == 5
    assert table.scan(ScanOptions(limit=CHUNK_ROWS + 5)).read_all().num_rows == CHUNK_ROWS + 5
    odd = filtered({"expression_class": "BOUND_FUNCTION", "name": "no_such_function", "children": []}, ["n"])
    assert table.scan(ScanOptions(limit=5, json_filters=odd)).read_all().num_rows == CHUNK_ROWS + 10


def test_scan_reads_a_snapshot_from_its_start() -> None:
    table = people()
    insert(table, {"id": [1], "name": ["Ada"]})
    scan = table.scan(ScanOptions())
    delete(table, [0])
    assert scan.read_all().num_rows == 1
    assert table.row_count() == 0


def test_many_small_inserts_are_merged_into_few_chunks_in_order() -> None:
    table = people()
    for number in range(300):
        insert(table, {"id": [number], "name": ["x"]})
    assert [row[0] for row in content(table)] == list(range(300))
    assert len(table._state().rows.chunks) <= 10


def test_many_small_batches_of_one_insert_are_merged_into_few_chunks() -> None:
    table = people()
    batches = [pa.record_batch({"id": [i] * 2048, "name": ["x"] * 2048}) for i in range(64)]
    write(table, "insert", batches)
    assert [len(chunk) for chunk in table._state().rows.chunks] == [CHUNK_ROWS, CHUNK_ROWS]


def test_update_rewrites_only_the_chunks_it_touches() -> None:
    table = numbers(CHUNK_ROWS * 3)
    before = table._state().rows.chunks
    update(table, {"half": [-1.0, -2.0], "rowid": [CHUNK_ROWS + 1, CHUNK_ROWS + 3]})
    after = table._state().rows.chunks
    assert [one is other for one, other in zip(before, after, strict=True)] == [True, False, True]
    changed = table.to_arrow()["half"]
    assert [changed[CHUNK_ROWS + i].as_py() for i in range(5)] == [
        CHUNK_ROWS / 2, -1.0, CHUNK_ROWS / 2 + 1, -2.0, CHUNK_ROWS / 2 + 2,
    ]  # fmt: skip


def test_updates_and_deletes_find_rows_in_any_chunk_and_order() -> None:
    table = numbers(CHUNK_ROWS * 2 + 100)
    far, near = CHUNK_ROWS * 2 + 50, 3
    _, (returned,) = write(table, "delete", [pa.record_batch({"rowid": [far, near, CHUNK_ROWS]})])
    assert returned["n"].to_pylist() == [far, near, CHUNK_ROWS]
    assert table.row_count() == CHUNK_ROWS * 2 + 97
    update(table, {"half": [1.25, 2.25], "rowid": [far + 1, near + 1]})
    rows = table.scan(ScanOptions()).read_all()
    changed = {row["rowid"]: row["half"] for row in rows.to_pylist() if row["half"] in (1.25, 2.25)}
    assert changed == {far + 1: 1.25, near + 1: 2.25}


def test_table_can_be_emptied_and_refilled() -> None:
    table = numbers(CHUNK_ROWS + 1)
    assert delete(table, list(range(CHUNK_ROWS + 1))) == CHUNK_ROWS + 1
    assert table.to_arrow().num_rows == 0
    insert(table, {"n": [1], "half": [0.5]})
    assert content(table) == [(1, 0.5)]
