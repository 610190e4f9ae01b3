"""Merge-on-read: UPDATE and DELETE write deletion vectors (version 3) or position delete files (version 2).

Every state is read by the server, by PyIceberg and by DuckDB's own Iceberg reader.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import BadRequestError
from pyiceberg.table import StaticTable
from pyiceberg.table.update import SetPropertiesUpdate, UpgradeFormatVersionUpdate

import scope
from formats.foreign_tables import duck
from lake.lakes import Lake
from lake.lineage_reader import read_lineage
from skiway.client import AirportClient, col
from skiway.errors import Conflict
from skiway.formats.iceberg.changes.commits import Producer, overwrite, plain
from skiway.formats.iceberg.manifest_files import entries, manifests, referenced_file, vector_place
from skiway.formats.iceberg.metadata_files import WritingIO
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter
from skiway.metastore import managed
from skiway.metastore.gc.warehouse import sweep_warehouse

__all__ = ["duck"]

MERGE_ON_READ = {"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"}
SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})
PAGE = (Path(__file__).parents[2] / "docs" / "managed-tables.md").read_text()
(DOCUMENTED,) = re.findall(r"```python\n([^`]*set_properties.*?)```", PAGE, re.DOTALL)
VERSIONS = pytest.mark.parametrize("version", [2, 3])
SAMPLED_VERSIONS = pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.full), 3])
TOTALS = ("total-data-files", "total-delete-files", "total-records", "total-position-deletes")


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s")
        yield db


class Table:
    """The managed table `s.t`."""

    def __init__(self, lake: Lake, version: int, *, partition_by: tuple[str, ...] = (), **properties: str) -> None:
        self._lake = lake
        given = {"format-version": str(version), **(properties or MERGE_ON_READ)}
        self._id = lake.managed_table(SCHEMA, partition_by=partition_by, **given)

    @property
    def state(self) -> managed.ManagedTable:
        return managed.load(self._lake.realm, self._lake.warehouse, self._id)

    def change(self, producer: Producer) -> None:
        managed.change(self._lake.realm, self._lake.warehouse, self._id, producer)

    @property
    def snapshot_id(self) -> int:
        found = self.state.metadata.current_snapshot_id
        assert found is not None
        return found

    @property
    def summary(self) -> dict[str, str]:
        found = self.state.metadata.current_snapshot()
        assert found is not None
        assert found.summary is not None
        return {"operation": found.summary.operation.value, **found.summary.additional_properties}

    def files(self, content: int) -> list[Any]:
        """The live files with this content in the manifests: 0 for data, 1 for position deletes."""
        io = WritingIO(self.state.files)
        listed = manifests(self.state.metadata.current_snapshot(), io)
        found = [entry.data_file for manifest in listed for entry in entries(manifest, io)]
        return [file for file in found if file.content == content]

    def data_paths(self) -> set[str]:
        return {file.file_path for file in self.files(0)}


def _insert(db: AirportClient, *ids: int) -> None:
    db.insert("s.t", pa.table({"id": ids, "v": [f"v{number}" for number in ids]}, schema=SCHEMA))


def _read(db: AirportClient) -> dict[int, str]:
    found = db.scan("s.t").read_all()
    assert len(set(found["id"].to_pylist())) == found.num_rows
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


def _all_read(duck: duckdb.DuckDBPyConnection, db: AirportClient, table: Table) -> dict[int, str]:
    """The rows of the current snapshot, after a comparison of all readers."""
    rows, location = _read(db), table.state.metadata_location
    assert dict(duck.execute("SELECT id, v FROM iceberg_scan(?)", [location]).fetchall()) == rows
    peer = StaticTable.from_metadata(location).scan().to_arrow()
    assert dict(zip(peer["id"].to_pylist(), peer["v"].to_pylist(), strict=True)) == rows
    return rows


def _v(ids: Any) -> dict[int, str]:
    return {number: f"v{number}" for number in ids}


# --- rows -------------------------------------------------------------------------------------------------------------


@pytest.mark.needs("duckdb extensions")
@VERSIONS
def test_all_readers_see_the_rows_after_every_statement(
    lake: Lake, db: AirportClient, duck: duckdb.DuckDBPyConnection, version: int
) -> None:
    table = Table(lake, version, **MERGE_ON_READ, **{"write.parquet.row-group-size-bytes": "4000"})
    rows = pa.table({"id": range(1000), "v": [f"v{number}" for number in range(1000)]}, schema=SCHEMA)
    db.insert("s.t", pa.concat_tables(rows.slice(start, 250) for start in range(0, 1000, 250)))
    (file,) = table.data_paths()
    assert pq.read_metadata(file.removeprefix("file://")).num_row_groups == 3
    _insert(db, *range(1000, 1010))
    data, expected = table.data_paths(), _v(range(1010))
    states = {table.snapshot_id: expected}

    for where in (col("id") < 3, col("id").isin([3, 500, 998, 1005]), col("id") == 999):
        assert db.delete("s.t", where=where).count > 0
        assert table.data_paths() == data  # no file was rewritten
        states[table.snapshot_id] = _read(db)
    gone = {0, 1, 2, 3, 500, 998, 999, 1005}
    expected = _v(set(range(1010)) - gone)
    assert _all_read(duck, db, table) == expected

    assert db.update("s.t", {"v": "new"}, where=col("id").isin([3, 4, 501, 1009])).count == 3
    expected |= {4: "new", 501: "new", 1009: "new"}
    assert table.data_paths() > data
    assert _read(db) == expected
    assert db.update("s.t", {"v": "newer"}, where=col("id") == 4).count == 1  # of the file with the changed rows
    expected[4] = "newer"
    assert _all_read(duck, db, table) == expected
    states[table.snapshot_id] = expected

    assert db.delete("s.t", where=col("id") >= 0).count == len(expected)
    assert _all_read(duck, db, table) == {}
    assert table.files(0) == table.files(1) == []  # neither data files nor delete files are left
    _insert(db, 0)
    assert _all_read(duck, db, table) == {0: "v0"}
    for snapshot_id, rows in states.items():
        then = db.scan("s.t", at_version=snapshot_id).read_all()
        assert dict(zip(then["id"].to_pylist(), then["v"].to_pylist(), strict=True)) == rows


@pytest.mark.needs("duckdb extensions")
@SAMPLED_VERSIONS
def test_rows_of_partitioned_tables_are_deleted_and_move_to_other_partitions(
    lake: Lake, db: AirportClient, duck: duckdb.DuckDBPyConnection, version: int
) -> None:
    table = Table(lake, version, partition_by=("v", "bucket[2](id)"))
    db.insert("s.t", pa.table({"id": range(40), "v": [None if n % 4 == 0 else f"p{n % 4}" for n in range(40)]}))
    db.delete("s.t", where=col("id") < 5)
    db.delete("s.t", where=col("id") == 7)
    db.update("s.t", {"v": "p1"}, where=(col("id") >= 8) & (col("id") < 12))
    rows = _all_read(duck, db, table)
    expected = {n: None if n % 4 == 0 else f"p{n % 4}" for n in (5, 6, *range(12, 40))}
    assert rows == expected | dict.fromkeys(range(8, 12), "p1")
    by_path = {file.file_path: file for file in table.files(0)}
    for delete in table.files(1):
        of = by_path[str(referenced_file(delete))]
        assert (delete.partition, delete.spec_id) == (of.partition, of.spec_id)


@SAMPLED_VERSIONS
def test_returned_rows_are_those_before_the_delete_and_after_the_update(
    lake: Lake, db: AirportClient, version: int
) -> None:
    Table(lake, version)
    _insert(db, 1, 2, 3)
    deleted = db.delete("s.t", where=col("id") == 2, returning=True)
    assert (deleted.count, deleted.rows.to_pylist()) == (1, [{"id": 2, "v": "v2"}])
    updated = db.update("s.t", {"v": "new"}, where=col("id") == 3, returning=True)
    assert updated.rows["v"].to_pylist() == ["new"]
    assert _read(db) == {1: "v1", 3: "new"}


def test_update_and_delete_have_modes_of_their_own(lake: Lake, db: AirportClient) -> None:
    table = Table(lake, 3, **{"write.update.mode": "Merge-On-Read"})
    _insert(db, 1, 2, 3)
    db.update("s.t", {"v": "new"}, where=col("id") == 1)
    assert (len(table.files(0)), len(table.files(1))) == (2, 1)
    data = table.data_paths()
    db.delete("s.t", where=col("id") == 2)  # copy-on-write
    assert len(table.files(0)) == 2
    assert table.data_paths() != data
    assert table.files(1) == []  # the vector of the replaced file is removed with it
    assert _read(db) == {1: "new", 3: "v3"}


class Program:
    """Random statements in random modes, with the rows that they leave and the ids of these rows."""

    def __init__(self, table: Table, db: AirportClient, seed: int) -> None:
        self.table, self.db, self.random = table, db, Random(seed)
        self.rows: dict[int, str] = {}
        self.row_ids: dict[int, int | None] = {}
        self.next = 0

    def step(self) -> None:
        kind = self.random.choice(["insert", "delete", "delete", "update", "update"]) if self.rows else "insert"
        count = self.random.choice([1, 2, 5, len(self.rows)])
        chosen = self.random.sample(sorted(self.rows), min(count, len(self.rows)))
        modes = {
            name: self.random.choice(["merge-on-read", "merge-on-read", "copy-on-write"]) for name in MERGE_ON_READ
        }
        self.table.change(plain((), (SetPropertiesUpdate(updates=modes),)))
        if kind == "insert":
            new = range(self.next, self.next + 12)
            self.next += 12
            _insert(self.db, *new)
            self.rows |= _v(new)
        elif kind == "delete":
            assert self.db.delete("s.t", where=col("id").isin(chosen)).count == len(chosen)
            self.rows = {number: v for number, v in self.rows.items() if number not in chosen}
        else:
            value = f"after {self.next}"
            assert self.db.update("s.t", {"v": value}, where=col("id").isin(chosen)).count == len(chosen)
            self.rows |= dict.fromkeys(chosen, value)

    def check(self) -> None:
        assert _read(self.db) == self.rows
        vectors = [referenced_file(each) for each in self.table.files(1) if vector_place(each) is not None]
        assert len(vectors) == len(set(vectors))
        found = self.table.state.metadata
        if found.format_version == 3:
            ids = {number: row_id for number, (row_id, _) in read_lineage(found).items()}
            assert ids.keys() == self.rows.keys()
            assert len(set(ids.values())) == len(ids)
            assert {number: self.row_ids.get(number, row_id) for number, row_id in ids.items()} == ids
            self.row_ids |= ids


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize("seed", scope.sample(range(6), every=6))
@SAMPLED_VERSIONS
def test_random_statements_in_both_modes_change_the_rows_that_they_name(
    lake: Lake, db: AirportClient, duck: duckdb.DuckDBPyConnection, version: int, seed: int
) -> None:
    table = Table(lake, version, partition_by=("bucket[2](id)",) if seed % 2 else ())
    program = Program(table, db, seed)
    for _ in range(15 if scope.ALL else 8):
        program.step()
        program.check()
    assert _all_read(duck, db, table) == program.rows


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_data_file_has_at_most_one_deletion_vector(lake: Lake, db: AirportClient) -> None:
    table = Table(lake, 3)
    _insert(db, *range(10))
    _insert(db, *range(10, 20))
    for number in (1, 2, 11, 3):
        db.delete("s.t", where=col("id") == number)
    vectors = table.files(1)
    assert {referenced_file(each) for each in vectors} == table.data_paths()
    assert sorted(each.record_count for each in vectors) == [1, 3]
    assert all(vector_place(each) is not None for each in vectors)
    assert all(
        Path(each.file_path.removeprefix("file://")).stat().st_size == each.file_size_in_bytes for each in vectors
    )


def test_position_delete_files_add_up_and_name_their_data_file(lake: Lake, db: AirportClient) -> None:
    table = Table(lake, 2)
    _insert(db, *range(10))
    _insert(db, *range(10, 20))
    db.delete("s.t", where=col("id").isin([1, 2, 11]))
    db.delete("s.t", where=col("id") == 3)
    assert sorted(each.record_count for each in table.files(1)) == [1, 1, 2]
    assert {referenced_file(each) for each in table.files(1)} == table.data_paths()


def test_deletion_vectors_include_the_position_deletes_of_an_upgraded_table(lake: Lake, db: AirportClient) -> None:
    table = Table(lake, 2)
    _insert(db, *range(6))
    db.delete("s.t", where=col("id") == 1)
    table.change(plain((), (UpgradeFormatVersionUpdate(format_version=3),)))
    db.delete("s.t", where=col("id") == 2)
    (vector,) = table.files(1)  # replaces the position delete file
    assert (vector.record_count, vector_place(vector) is not None) == (2, True)
    assert _read(db) == _v((0, 3, 4, 5))
    assert table.summary["removed-position-delete-files"] == "1"


@VERSIONS
def test_summaries_count_what_was_added_and_removed(lake: Lake, db: AirportClient, version: int) -> None:
    table = Table(lake, version)
    _insert(db, *range(10))
    db.delete("s.t", where=col("id") < 2)
    kind = "added-dvs" if version == 3 else "added-position-delete-files"
    other = "added-position-delete-files" if version == 3 else "added-dvs"
    expected = {"operation": "delete", "added-delete-files": "1", "added-position-deletes": "2", kind: "1"}
    assert expected.items() <= table.summary.items()
    assert not {other, "deleted-data-files", "added-data-files", "removed-delete-files"} & table.summary.keys()
    assert [table.summary[name] for name in TOTALS] == ["1", "1", "10", "2"]
    (delete,) = table.files(1)
    place = vector_place(delete)
    assert table.summary["added-files-size"] == str(delete.file_size_in_bytes if place is None else place[1])

    db.update("s.t", {"v": "new"}, where=col("id") == 2)
    expected = {"operation": "overwrite", "added-data-files": "1", "added-records": "1", kind: "1"}
    replaced = {"added-position-deletes": "3", "removed-dvs": "1", "removed-position-deletes": "2"}
    assert (expected | (replaced if version == 3 else {"added-position-deletes": "1"})).items() <= table.summary.items()
    assert ("removed-delete-files" in table.summary) == (version == 3)
    assert [table.summary[name] for name in TOTALS] == ["2", "1" if version == 3 else "2", "11", "3"]

    db.delete("s.t", where=col("id") >= 0)
    assert {"operation": "delete", "deleted-data-files": "2", "removed-position-deletes": "3"}.items() <= (
        table.summary.items()
    )
    assert [table.summary[name] for name in TOTALS] == ["0", "0", "0", "0"]


def test_many_delete_manifests_are_merged(lake: Lake, db: AirportClient) -> None:
    table = Table(lake, 2, **MERGE_ON_READ, **{"commit.manifest.min-count-to-merge": "3"})
    _insert(db, *range(20))
    for number in range(6):
        db.delete("s.t", where=col("id") == number)
    listed = manifests(table.state.metadata.current_snapshot(), WritingIO(table.state.files))
    assert len([each for each in listed if each.content == 1]) <= 3
    assert len(table.files(1)) == 6
    assert _read(db) == _v(range(6, 20))


@SAMPLED_VERSIONS
def test_the_sweep_keeps_referenced_delete_files(lake: Lake, db: AirportClient, version: int) -> None:
    table = Table(lake, version)
    _insert(db, *range(6))
    db.delete("s.t", where=col("id") == 1)
    first = table.snapshot_id
    db.delete("s.t", where=col("id") == 2)
    orphan = Path(table.files(1)[0].file_path.removeprefix("file://")).with_name("orphan.puffin")
    orphan.write_bytes(b"")
    old = time.time() - 30 * 86400
    for path in _files_on_disk(lake):
        os.utime(path, (old, old))
    swept = sweep_warehouse(lake.stores, lake.warehouse, clock=lambda: datetime.now(UTC), dry_run=False)
    assert [Path(each).name for each in swept.removed] == ["orphan.puffin"]
    assert _read(db) == _v((0, 3, 4, 5))
    assert db.scan("s.t", at_version=first).read_all().num_rows == 5


# --- lineage ----------------------------------------------------------------------------------------------------------


def test_changed_rows_keep_their_ids_and_other_rows_are_unchanged(lake: Lake, db: AirportClient) -> None:
    table = Table(lake, 3)
    _insert(db, 1, 2, 3)
    _insert(db, 4, 5, 6)
    db.delete("s.t", where=col("id") == 5)
    assert read_lineage(table.state.metadata) == {1: (0, 1), 2: (1, 1), 3: (2, 1), 4: (3, 2), 6: (5, 2)}
    db.update("s.t", {"v": "new"}, where=col("id").isin([2, 6]))
    after = {1: (0, 1), 2: (1, 4), 3: (2, 1), 4: (3, 2), 6: (5, 4)}
    assert read_lineage(table.state.metadata) == after
    db.update("s.t", {"v": "newer"}, where=col("id") == 2)
    assert read_lineage(table.state.metadata) == after | {2: (1, 5)}
    _insert(db, 7)
    row_id, number = read_lineage(table.state.metadata)[7]
    assert number == 6
    assert row_id is not None
    assert row_id > 5  # ids are never assigned twice


# --- conflicts --------------------------------------------------------------------------------------------------------


def _delete(db: AirportClient, number: int) -> object:
    return db.delete("s.t", where=col("id") == number)


def _update(db: AirportClient, number: int) -> object:
    return db.update("s.t", {"v": "new"}, where=col("id") == number)


@SAMPLED_VERSIONS
@pytest.mark.parametrize("change", [_delete, _update], ids=["delete", "update"])
def test_one_of_two_concurrent_changes_of_a_file_fails(
    lake: Lake, db: AirportClient, version: int, change: Callable[[AirportClient, int], object]
) -> None:
    table = Table(lake, version)
    _insert(db, 1, 2, 3)
    with lake.client() as other, db.transaction():
        assert db.count("s.t") == 3
        other.delete("s.t", where=col("id") == 1)
        before = _files_on_disk(lake)
        for number in (1, 2):  # the same row, and another one of the same file
            with pytest.raises(Conflict, match="rows were deleted from it"):
                change(db, number)
        assert _files_on_disk(lake) == before
    assert _read(db) == _v((2, 3))
    assert len(table.files(1)) == 1


@SAMPLED_VERSIONS
def test_a_delete_fails_if_its_file_was_rewritten(lake: Lake, db: AirportClient, version: int) -> None:
    Table(lake, version, **{"write.delete.mode": "merge-on-read"})
    _insert(db, 1, 2, 3)
    with lake.client() as other, db.transaction():
        assert db.count("s.t") == 3
        other.update("s.t", {"v": "new"}, where=col("id") == 1)  # copy-on-write
        before = _files_on_disk(lake)
        with pytest.raises(Conflict, match="rewritten or deleted"):
            db.delete("s.t", where=col("id") == 2)
        assert _files_on_disk(lake) == before
    assert _read(db) == {1: "new", 2: "v2", 3: "v3"}


@SAMPLED_VERSIONS
def test_concurrent_changes_of_different_files_succeed(lake: Lake, db: AirportClient, version: int) -> None:
    Table(lake, version)
    _insert(db, 1, 2, 3)
    _insert(db, 4, 5, 6)
    with lake.client() as other, db.transaction():
        assert db.count("s.t") == 6
        other.delete("s.t", where=col("id") == 1)
        _insert(other, 7)
        assert db.update("s.t", {"v": "new"}, where=col("id") == 4).count == 1
    assert _read(db) == _v((2, 3, 5, 6, 7)) | {4: "new"}


def test_a_statement_fails_if_the_table_was_upgraded_meanwhile(lake: Lake, db: AirportClient) -> None:
    table = Table(lake, 2)
    _insert(db, 1, 2, 3)
    base = table.state
    (path,) = table.data_paths()
    writer = DeleteFileWriter(base.files, base.metadata)
    writer.add(path, np.array([1]), before=np.array([], np.int64))
    deletes = writer.close()
    table.change(plain((), (UpgradeFormatVersionUpdate(format_version=3),)))
    with pytest.raises(Conflict, match="upgraded to version 3"):
        table.change(overwrite([], [], deletes=deletes, based_on=base.metadata.current_snapshot_id))
    assert _read(db) == _v((1, 2, 3))


def _files_on_disk(lake: Lake) -> set[Path]:
    return {path for path in (lake.folder / "warehouse").rglob("*") if path.is_file()}


# --- statistics and properties ----------------------------------------------------------------------------------------


@VERSIONS
def test_counts_exclude_deleted_rows(lake: Lake, db: AirportClient, version: int) -> None:
    Table(lake, version)
    _insert(db, *range(10))
    db.delete("s.t", where=col("id").isin([0, 9]))
    db.delete("s.t", where=col("id") == 5)
    db.update("s.t", {"v": "new"}, where=col("id") == 4)
    [row] = db.scan(("skiway", "tables")).read_all().to_pylist()
    assert (row["row_count"], row["row_count_is_bound"]) == (7, False)
    assert db.count("s.t") == 7
    bounds = db.statistics("s.t", "id")
    assert (bounds.min, bounds.max) == (0, 9)  # of the files, which contain the deleted rows


@pytest.mark.parametrize("name", ["write.delete.mode", "write.update.mode"])
def test_unknown_modes_are_rejected(lake: Lake, db: AirportClient, name: str) -> None:
    message = f"property {name} is 'never', but must be copy-on-write or merge-on-read"
    with lake.rest() as catalog:
        with pytest.raises(BadRequestError, match=message):
            catalog.create_table("s.t", SCHEMA, properties={name: "never"})
        table = catalog.create_table("s.t", SCHEMA)
        with pytest.raises(BadRequestError, match=message), table.transaction() as change:
            change.set_properties({name: "never"})
        set_modes: dict[str, Any] = {}
        exec(DOCUMENTED, set_modes)
        set_modes["merge_on_read"](catalog, "s.t")
        assert MERGE_ON_READ.items() <= catalog.load_table("s.t").properties.items()
    db.reload()
    _insert(db, 1, 2)
    db.update("s.t", {"v": "new"}, where=col("id") == 1)
    db.delete("s.t", where=col("id") == 2)
    assert _read(db) == {1: "new"}
