"""Delete files of merge-on-read: their bytes, and commits that add them to a table that others have changed."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
from pyiceberg.table.puffin import PuffinFile
from pyiceberg.table.update import RemoveSnapshotsUpdate

from formats.managed import LooseTable
from skiway.errors import Conflict, InvalidArgument, PreconditionFailed
from skiway.formats.iceberg.changes.commits import append, overwrite, plain, rollback
from skiway.formats.iceberg.deletes import deletion_vector, encoded_vector
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter, is_merge_on_read

NUMBERS = pa.schema({"x": pa.int64()})
NOTHING = np.array([], np.int64)
VERSIONS = pytest.mark.parametrize("version", ["2", "3"])
SAMPLED_VERSIONS = pytest.mark.parametrize("version", [pytest.param("2", marks=pytest.mark.full), "3"])


def numbers(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"x": pa.array(values, pa.int64())})


def deletes_of(table: LooseTable, path: str, *positions: int, before: Any = NOTHING) -> list[Any]:
    """Delete files that are written for the current state of the table."""
    with DeleteFileWriter(table.files, table.metadata) as writer:
        writer.add(path, np.array(positions), before=before)
        return writer.close()


def delete(table: LooseTable, path: str, *positions: int, before: Any = NOTHING, based_on: Any = "now") -> None:
    base = table.metadata.current_snapshot_id if based_on == "now" else based_on
    deletes = deletes_of(table, path, *positions, before=before)
    table.change(overwrite([], [], deletes=deletes, based_on=base, operation="delete"))


def found(table: LooseTable) -> list[int]:
    """The values that our reader returns."""
    current = table.handle.current()
    assert current is not None
    return sorted(table.handle.read(current).read_all()["x"].to_pylist())


# --- bytes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "positions", [[0], [5, 70_000, 2**31, 2**32 + 7, 2**40], range(1000, 200_000)], ids=["one", "wide", "run"]
)
def test_deletion_vectors_are_decoded_by_pyiceberg_and_by_the_reader(tmp_path: Path, positions: Any) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version="3")
    with DeleteFileWriter(table.files, table.metadata) as writer:
        writer.add("a.parquet", np.array(positions), before=NOTHING)
        writer.add("b.parquet", np.array([1]), before=np.array([0]))
        first, second = writer.close()
    assert first.file_path == second.file_path
    data = Path(first.file_path.removeprefix("file://")).read_bytes()
    puffin = PuffinFile(data)
    vectors = {each.referenced_data_file: each for each in deletion_vectors_from_puffin_file(puffin)}
    assert vectors["a.parquet"].to_vector().to_pylist() == list(positions)
    assert vectors["b.parquet"].to_vector().to_pylist() == [0, 1]
    blob = puffin.footer.blobs[0]
    described = (blob.type, blob.fields, blob.snapshot_id, blob.sequence_number, blob.compression_codec)
    assert described == ("deletion-vector-v1", [2147483645], -1, -1, None)
    assert blob.properties == {"referenced-data-file": "a.parquet", "cardinality": str(len(positions))}
    own = deletion_vector(data[blob.offset : blob.offset + blob.length], file="", rows=len(positions))
    assert own.to_pylist() == list(positions)


def test_runs_of_positions_take_little_space() -> None:
    assert len(encoded_vector(np.arange(1_000_000))) < 1000


def test_position_delete_files_are_sorted_and_exclude_what_was_deleted_before(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS)
    (file,) = deletes_of(table, "a.parquet", 7, 1, 3, 9, before=np.array([3]))
    rows = pq.read_table(file.file_path.removeprefix("file://"))
    assert rows.to_pydict() == {"file_path": ["a.parquet"] * 3, "pos": [1, 7, 9]}
    ids = [int(field.metadata[b"PARQUET:field_id"]) for field in rows.schema]
    assert (ids, [field.nullable for field in rows.schema]) == ([2147483546, 2147483545], [False, False])
    assert (file.record_count, file.file_size_in_bytes) == (
        3,
        Path(file.file_path.removeprefix("file://")).stat().st_size,
    )


@SAMPLED_VERSIONS
def test_nothing_is_written_for_rows_that_are_deleted_already(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    assert deletes_of(table, "a.parquet", 1, 2, before=np.array([1, 2, 3])) == []
    assert not list(tmp_path.rglob("*deletes*"))


@SAMPLED_VERSIONS
def test_abort_deletes_the_files(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    writer = DeleteFileWriter(table.files, table.metadata)
    writer.add("a.parquet", np.array([1]), before=NOTHING)
    writer.close()
    assert len(list(tmp_path.rglob("*-deletes.*"))) == 1
    writer.abort()
    assert not list(tmp_path.rglob("*-deletes.*"))


def test_modes_are_validated() -> None:
    assert not is_merge_on_read({}, "delete")
    assert not is_merge_on_read({"write.delete.mode": "copy-on-write", "write.update.mode": "merge-on-read"}, "delete")
    assert is_merge_on_read({"write.delete.mode": "copy-on-write", "write.update.mode": "MERGE-ON-READ"}, "update")
    with pytest.raises(InvalidArgument, match=r"write\.update\.mode is '', but must be copy-on-write or merge-on-read"):
        is_merge_on_read({"write.update.mode": ""}, "update")


# --- commits ----------------------------------------------------------------------------------------------------------


@SAMPLED_VERSIONS
def test_deletes_of_an_outdated_state_are_a_conflict(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    (file,) = table.append(numbers(0, 1, 2))
    base = table.metadata.current_snapshot_id
    delete(table, file.file_path, 0)
    with pytest.raises(Conflict, match="rows were deleted from it"):
        delete(table, file.file_path, 1, based_on=base)
    with pytest.raises(Conflict, match="rows were deleted from it"):
        table.change(overwrite([file.file_path], table.write(numbers(0, 10, 2)), based_on=base))
    assert found(table) == [1, 2]


@VERSIONS
def test_deletes_of_other_files_are_no_conflict(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    (first,) = table.append(numbers(0, 1))
    (second,) = table.append(numbers(2, 3))
    (third,) = table.append(numbers(4, 5))
    base = table.metadata.current_snapshot_id
    delete(table, first.file_path, 0)
    delete(table, second.file_path, 0, based_on=base)
    table.change(overwrite([third.file_path], table.write(numbers(40)), based_on=base))
    assert found(table) == sorted(table.rows()["x"].to_pylist()) == [1, 3, 40]


@VERSIONS
def test_a_vector_is_not_based_on_deletes_that_were_rolled_back(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    (file,) = table.append(numbers(0, 1, 2))
    first = table.metadata.current_snapshot_id
    delete(table, file.file_path, 0)
    base = table.metadata.current_snapshot_id
    table.change(rollback(first))
    with pytest.raises(Conflict, match="rows were deleted from it"):
        delete(table, file.file_path, 1, before=np.array([0]), based_on=base)
    assert found(table) == [0, 1, 2]


@SAMPLED_VERSIONS
def test_deletes_based_on_an_expired_snapshot_are_a_conflict_if_the_file_has_deletes(
    tmp_path: Path, version: str
) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    (first,) = table.append(numbers(0, 1, 2))
    (second,) = table.append(numbers(3, 4))
    delete(table, first.file_path, 0)
    base = table.metadata.current_snapshot_id
    table.append(numbers(5))
    table.change(plain((), (RemoveSnapshotsUpdate(snapshot_ids=[base]),)))
    with pytest.raises(Conflict, match="rows were deleted from it"):
        delete(table, first.file_path, 1, before=np.array([0]), based_on=base)
    delete(table, second.file_path, 0, based_on=base)
    assert found(table) == [1, 2, 4, 5]


@SAMPLED_VERSIONS
def test_deletes_of_a_removed_file_are_a_conflict(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    (file,) = table.append(numbers(0, 1, 2))
    base = table.metadata.current_snapshot_id
    table.change(overwrite([file.file_path], table.write(numbers(7)), based_on=base))
    written = set(tmp_path.rglob("*.avro"))
    with pytest.raises(Conflict, match="1 of its data files were rewritten or deleted"):
        delete(table, file.file_path, 1, based_on=base)
    assert set(tmp_path.rglob("*.avro")) == written
    assert found(table) == [7]


@SAMPLED_VERSIONS
def test_delete_files_that_were_swept_are_not_committed(tmp_path: Path, version: str) -> None:
    table = LooseTable(tmp_path, NUMBERS, format_version=version)
    (file,) = table.append(numbers(0, 1))
    deletes = deletes_of(table, file.file_path, 1)
    table.files.remove([deletes[0].file_path])
    with pytest.raises(PreconditionFailed, match="was deleted before the commit"):
        table.change(overwrite([], [], deletes=deletes, based_on=table.metadata.current_snapshot_id))


def test_a_change_is_rebased_with_the_partition_of_its_data_file(tmp_path: Path) -> None:
    table = LooseTable(tmp_path, NUMBERS, "bucket[4](x)", format_version="3")
    files = table.append(numbers(*range(8)))
    base, of = table.metadata.current_snapshot_id, files[-1]
    deletes = deletes_of(table, of.file_path, 0)
    change = overwrite([], [], deletes=deletes, based_on=base, operation="delete")
    change(table.metadata, table.files, lambda: datetime.now(UTC))  # loses the race
    table.change(append(table.write(numbers(100))))
    table.change(change)
    assert (deletes[0].partition, deletes[0].spec_id) == (of.partition, of.spec_id)
    assert len(found(table)) == 8
    assert found(table) == sorted(table.rows()["x"].to_pylist())
