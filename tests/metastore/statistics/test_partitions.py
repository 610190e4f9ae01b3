"""Statistics of partitions, merged from those of files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from skiway.formats.iceberg.changes.commits import append
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed, statistics
from skiway.metastore.statistics import file_table
from skiway.model import v1

CURRENT = v1.SnapshotRef(special=v1.SS_CURRENT)
ROWS = pa.table(
    {
        "part": ["a", "b", None, "a", "b", "b"],
        "n": pa.array([9, 10, None, 100, None, -3], pa.int64()),
        "word": ["x", "y", "z", "w", None, "v"],
    }
)


@pytest.fixture
def home(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def filled(home: ManagedTableFactory) -> Any:
    """Two commits, so that partitions have several files."""
    table = home.create(schema=ROWS.schema, partition_by=["part"])
    for rows in (ROWS.slice(0, 3), ROWS.slice(3)):
        with DataFileWriter(table.files, table.metadata) as writer:
            for batch in rows.to_batches():
                writer.write(batch)
            table = managed.change(home.home, home.warehouse, id_of(table), append(writer.close()))
    return table


def listed(home: ManagedTableFactory, table: Any, **page: Any) -> v1.ListPartitionStatsResponse:
    request = v1.ListPartitionStatsRequest(table_id=id_of(table), snapshot=CURRENT, page=v1.PageRequest(**page))
    return statistics.list_partitions(home.home, request)


def test_partitions_have_the_counts_and_bounds_that_duckdb_computes(home: ManagedTableFactory) -> None:
    table = filled(home)
    found = listed(home, table).partitions
    with duckdb.connect() as duck:
        duck.register("t", ROWS)
        expected = duck.execute(
            "SELECT part, count(*), count(*) - count(n), min(n), max(n), min(word), max(word) FROM t GROUP BY part"
        ).fetchall()
    shown = set()
    for each in found:
        columns = {column.column_name: column for column in each.columns}
        n, word = columns["n"], columns["word"]
        bounds = (int(n.min), int(n.max)) if n.HasField("min") else (None, None)
        part = None if "null" in each.partition_data_json else each.partition_data_json.split('"')[-2]
        shown.add((part, each.row_count, n.null_count, *bounds, word.min, word.max))
    assert shown == set(expected)
    files = table.handle.files(table.handle.current())
    assert sum(each.size_bytes for each in found) == sum(files["size_bytes"].to_pylist())
    assert sorted(each.data_file_count for each in found) == [1, 2, 2]
    assert {each.delete_file_count for each in found} == {0}


def test_partitions_are_listed_page_by_page(home: ManagedTableFactory) -> None:
    table = filled(home)
    first = listed(home, table, page_size=2)
    second = listed(home, table, page_size=2, page_token=first.page.next_page_token)
    assert (len(first.partitions), len(second.partitions), second.page.next_page_token) == (2, 1, "")
    assert list(listed(home, table).partitions) == [*first.partitions, *second.partitions]
    assert first.page.total_size == 3


def test_delete_files_are_counted_apart() -> None:
    files = [
        v1.FileColumnStats(file_path="a", row_count=10, size_bytes=100, file_content=v1.FC_DATA),
        v1.FileColumnStats(file_path="b", row_count=4, size_bytes=7, file_content=v1.FC_POSITION_DELETES),
    ]
    [found] = statistics.partition_statistics(file_table.rows(files, {})).to_pylist()
    assert (found["row_count"], found["size_bytes"], found["data_file_count"], found["delete_file_count"]) == (
        10,
        100,
        1,
        1,
    )


def test_figure_that_a_file_lacks_is_unknown(factory: ResourceFactory) -> None:
    table = factory.table("people")
    factory.snapshot(table, 1)

    def file(path: str, **stats: Any) -> v1.FileColumnStats:
        columns = [
            v1.ColumnStats(column_id=1, column_name="x", logical_type="INT", value_count=2, **stats),
            v1.ColumnStats(column_id=2 if path == "a" else 3, column_name="y", logical_type="INT", value_count=2),
        ]
        return v1.FileColumnStats(file_path=path, row_count=2, columns=columns)

    files = [file("a", null_count=0, min="7", max="9"), file("b", min="-10", max="8"), file("c", null_count=2)]
    statistics.put_files(
        factory.home, [v1.PutFileColumnStatsRequest(table_id=table.resource_id, snapshot_id=1, files=files)]
    )
    request = v1.ListPartitionStatsRequest(table_id=table.resource_id, snapshot=v1.SnapshotRef(snapshot_id=1))
    [partition] = statistics.list_partitions(factory.home, request).partitions
    [x] = partition.columns  # a file does not have the others
    assert (x.value_count, x.min, x.max, x.HasField("null_count")) == (6, "-10", "9", False)
