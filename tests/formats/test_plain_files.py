"""Which data files other readers can read by themselves, and the schemas of single files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from formats.delete_files import add_position_deletes
from formats.managed import LooseTable
from skiway.errors import Conflict, InvalidArgument
from skiway.formats import TableHandle, open_source
from skiway.formats.schemas import field_id

ROWS = pa.table({"p": ["a", "b"], "x": [1, 2]})


def delta(place: Path, **options: Any) -> TableHandle:
    deltalake.write_deltalake(str(place / "t"), ROWS, **options)
    deltalake.write_deltalake(str(place / "t"), ROWS, mode="append", **options)
    return open_source("delta", str(place)).load((), "t")


def plain(table: TableHandle) -> list[str] | None:
    snapshot = table.current()
    assert snapshot is not None
    return table.plain_files(snapshot, table.plan(snapshot))


def test_files_with_all_columns_and_rows_are_plain(tmp_path: Path) -> None:
    found = plain(delta(tmp_path))
    assert found is not None
    assert sorted(found) == sorted(str(each) for each in (tmp_path / "t").glob("*.parquet"))
    assert len(found) == 2


def test_partitioned_files_lack_columns(tmp_path: Path) -> None:
    assert plain(delta(tmp_path, partition_by=["p"])) is None


def test_files_of_a_folder_may_change(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(ROWS, tmp_path / "t" / "a.parquet")
    assert plain(open_source("parquet", str(tmp_path)).load((), "t")) is None


def test_files_with_deleted_rows_are_not_plain(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, ROWS.schema)
    table.append(ROWS)
    found = plain(table.handle)
    assert found is not None
    assert pq.read_table(found[0]).num_rows == 2
    add_position_deletes(table, f"file://{found[0]}", 0)
    assert plain(table.handle) is None


def test_newest_spec_partitions_new_files(tmp_path: Path) -> None:
    table = delta(tmp_path, partition_by=["p"])
    assert table.partition_spec is table.partition_specs[0]
    assert open_source("delta", str(tmp_path)).load((), "t").partition_spec is not None


def test_schema_of_a_file_has_the_ids_of_the_table(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    pq.write_table(ROWS, tmp_path / "t" / "a.parquet")
    table = open_source("parquet", str(tmp_path)).load((), "t")
    snapshot = table.current()
    assert snapshot is not None
    (file,) = table.files(snapshot).to_pylist()
    for etag in (None, file["etag"]):
        found = table.file_schema(snapshot, file["path"], etag=etag)
        assert [field_id(each) for each in found] == [field_id(each) for each in table.schema.arrow]
    with pytest.raises(Conflict):
        table.file_schema(snapshot, file["path"], etag="other")


def test_unknown_columns_are_rejected_with_the_known_ones(tmp_path: Path) -> None:
    table = delta(tmp_path)
    snapshot = table.current()
    assert snapshot is not None
    with pytest.raises(InvalidArgument, match="table 't' has no column 'y'; it has p, x"):
        table.read(snapshot, columns=["x", "y"])
