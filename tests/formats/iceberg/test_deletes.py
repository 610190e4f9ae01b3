"""Deleted rows stay deleted in every batch and row group, however they were deleted and however they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.update import AddPartitionSpecUpdate, SetDefaultSpecUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from formats.delete_files import add_deletion_vectors, add_equality_deletes, add_position_deletes
from formats.managed import LooseTable
from formats.pushed_filters import pushed_filter
from skiway.formats import Snapshot
from skiway.formats.iceberg.changes.commits import plain
from skiway.formats.readers.scanning import FILE_ORDINAL, ROW_POSITION

SCHEMA = pa.schema({"x": pa.int64(), "note": pa.string()})
GROUP_ROWS = 10
DELETED = [0, 9, 10, 23, 24, 25, 39, 40, 77, 98, 99]  # at the ends, within, and across row groups of ten rows
REMAINING = [number for number in range(100) if number not in DELETED]

Delete = Callable[[LooseTable, str, Iterable[int]], None]


def by_position(table: LooseTable, path: str, positions: Iterable[int]) -> None:
    add_position_deletes(table, path, *positions)


def by_vector(table: LooseTable, path: str, positions: Iterable[int]) -> None:
    add_deletion_vectors(table, {path: positions})


def rows(start: int = 0, count: int = 100) -> pa.Table:
    numbers = range(start, start + count)
    return pa.table({"x": list(numbers), "note": [f"n{each}" for each in numbers]}, schema=SCHEMA)


def with_small_row_groups(folder: Path, version: str) -> tuple[LooseTable, str]:
    """A table with a data file of 100 rows in row groups of ten, and the path of the file."""
    table = LooseTable(folder, SCHEMA, format_version=version)
    table.metadata.properties["write.parquet.row-group-size-bytes"] = "1"
    (file,) = table.append(*(rows(start, GROUP_ROWS) for start in range(0, 100, GROUP_ROWS)))
    assert pq.ParquetFile(file.file_path.removeprefix("file://")).num_row_groups == 10
    return table, file.file_path


def now(table: LooseTable) -> Snapshot:
    snapshot = table.handle.current()
    assert snapshot is not None
    return snapshot


def read(table: LooseTable, **options: Any) -> pa.Table:
    return table.handle.read(now(table), **options).read_all()


KINDS = pytest.mark.parametrize(
    ("version", "delete"), [("2", by_position), ("3", by_vector)], ids=["position deletes", "deletion vector"]
)


@KINDS
def test_deleted_rows_do_not_reappear_in_any_batch_or_row_group(tmp_path: Path, version: str, delete: Delete) -> None:
    table, path = with_small_row_groups(tmp_path, version)
    delete(table, path, DELETED)
    assert table.rows()["x"].to_pylist() == REMAINING, "as PyIceberg reads it"
    for batch_rows in (3, GROUP_ROWS, 65536):
        assert read(table, batch_rows=batch_rows)["x"].to_pylist() == REMAINING


@KINDS
def test_deleted_rows_do_not_reappear_if_row_groups_are_skipped(tmp_path: Path, version: str, delete: Delete) -> None:
    """The filter alone, and with columns that it does not need, which are read in another way."""
    table, path = with_small_row_groups(tmp_path, version)
    delete(table, path, DELETED)
    for predicate, expected in [
        ("x >= 35", [each for each in REMAINING if each >= 35]),
        ("x > 21 AND x < 28", [22, 26, 27]),
        ("x = 40", []),
    ]:
        condition = pushed_filter(predicate, SCHEMA)
        for columns in (["x"], ["x", "note"], ["note"]):
            found = read(table, filter=condition, columns=columns, positions=True, batch_rows=4)
            assert found[ROW_POSITION].to_pylist() == expected, (predicate, columns)
            if "note" in columns:
                assert found["note"].to_pylist() == [f"n{each}" for each in expected]


def test_deletion_vectors_of_several_files_share_a_puffin_file(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, SCHEMA, format_version="3")
    paths = [table.append(rows(start, 10))[0].file_path for start in (0, 10, 20)]
    add_deletion_vectors(table, {paths[2]: [1, 9], paths[0]: [0, 5]})
    expected = [each for each in range(30) if each not in (0, 5, 21, 29)]
    assert sorted(read(table)["x"].to_pylist()) == expected == sorted(table.rows()["x"].to_pylist())
    deleted = dict(
        zip(*(table.handle.files(now(table))[name].to_pylist() for name in ("path", "deleted_rows")), strict=True)
    )
    assert [deleted[path] for path in paths] == [2, 0, 2]


def test_deletes_of_several_files_are_united(tmp_path: Path) -> None:
    table, path = with_small_row_groups(tmp_path, "2")
    add_position_deletes(table, path, 55, 3)
    add_position_deletes(table, path, 3, 99)
    assert read(table)["x"].to_pylist() == [each for each in range(100) if each not in (3, 55, 99)]


def test_position_deletes_do_not_apply_to_later_files(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, SCHEMA)
    (first,) = table.append(rows(0, 3))
    add_position_deletes(table, first.file_path, 1)
    table.append(rows(3, 3))
    assert sorted(read(table)["x"].to_pylist()) == [0, 2, 3, 4, 5]


def with_two_specs(folder: Path) -> tuple[LooseTable, list[str]]:
    """A table that was partitioned by `x`, then by `x` and `note`, and the paths of a file of each spec.

    Both files have the same value of `x` and no `note`, so only the specs tell their partitions apart.
    """
    table = LooseTable(folder, pa.schema({"x": pa.string(), "note": pa.string()}), "x")
    same = pa.table({"x": ["a"], "note": pa.array([None], pa.string())})
    (before,) = table.append(same)
    fields = (
        PartitionField(number, 999 + number, IdentityTransform(), name) for number, name in ((1, "x"), (2, "note"))
    )
    table.change(plain([], [AddPartitionSpecUpdate(spec=PartitionSpec(*fields)), SetDefaultSpecUpdate(spec_id=-1)]))
    (after,) = table.append(same)
    assert (before.spec_id, after.spec_id) == (0, 1)
    return table, [before.file_path, after.file_path]


@pytest.mark.parametrize(("spec_id", "partition"), [(0, Record("a")), (1, Record("a", None))], ids=["before", "after"])
def test_equality_deletes_of_a_partition_apply_to_its_spec_only(
    tmp_path: Path, spec_id: int, partition: Record
) -> None:
    table, paths = with_two_specs(tmp_path)
    add_equality_deletes(table, pa.table({"x": ["a"]}), [1], spec_id=spec_id, partition=partition)
    files = table.handle.files(now(table))
    deletes = dict(zip(files["path"].to_pylist(), files["deletes"].to_pylist(), strict=True))
    assert [len(deletes[path]) for path in paths] == [int(spec_id == 0), int(spec_id == 1)]
    unaffected = files.filter(pa.compute.field("path") == paths[1 - spec_id])
    assert read(table, files=unaffected).num_rows == 1
    assert read(table, positions=True)[FILE_ORDINAL].to_pylist() == unaffected["ordinal"].to_pylist()


def test_equality_deletes_without_a_partition_apply_to_all_older_files(tmp_path: Path) -> None:
    table, paths = with_two_specs(tmp_path)
    table.change(plain([], [AddPartitionSpecUpdate(spec=PartitionSpec()), SetDefaultSpecUpdate(spec_id=-1)]))
    add_equality_deletes(table, pa.table({"x": ["a"]}), [1], spec_id=2)
    (later,) = table.append(pa.table({"x": ["a"], "note": ["a"]}))
    files = table.handle.files(now(table))
    deletes = dict(zip(files["path"].to_pylist(), files["deletes"].to_pylist(), strict=True))
    assert [len(deletes[path]) for path in (*paths, later.file_path)] == [1, 1, 0]
    assert read(table)["note"].to_pylist() == ["a"]
