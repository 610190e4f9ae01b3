"""UPDATE, DELETE and INSERT on managed tables that other engines deleted rows from, in every way that Iceberg has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import scope
from formats.data_formats import append_avro, append_orc
from formats.delete_files import add_deletion_vectors, add_equality_deletes, add_position_deletes, add_positions
from formats.foreign_tables import duck
from lake.lakes import Lake
from skiway.client import AirportClient, col
from skiway.formats.iceberg.changes.commits import Producer
from skiway.formats.iceberg.table import IcebergTable
from skiway.metastore import managed, statistics

__all__ = ["duck"]

SCHEMA = pa.schema({"id": pa.int64(), "v": pa.string()})


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s")
        yield db


class ForeignWriter:
    """A managed table as another engine changes it, for the functions that write delete files."""

    def __init__(self, lake: Lake, version: int, **properties: str) -> None:
        self._lake = lake
        self.id = lake.managed_table(SCHEMA, **{"format-version": str(version), **properties})

    @property
    def _table(self) -> managed.ManagedTable:
        return managed.load(self._lake.realm, self._lake.warehouse, self.id)

    @property
    def metadata(self) -> Any:
        return self._table.metadata

    @property
    def files(self) -> Any:
        return self._table.files

    @property
    def handle(self) -> IcebergTable:
        return self._table.handle

    @property
    def location(self) -> str:
        return self._table.table.metadata_location

    def change(self, producer: Producer) -> None:
        managed.change(self._lake.realm, self._lake.warehouse, self.id, producer)

    def first_file(self) -> str:
        current = self.handle.current()
        assert current is not None
        return str(self.handle.plan(current).sort_by("sequence_number")["path"][0].as_py())


def _by_position(table: Any) -> None:
    add_position_deletes(table, table.first_file(), 1)


def _by_vector(table: Any) -> None:
    add_deletion_vectors(table, {table.first_file(): [1]})


def _by_equality(table: Any) -> None:
    add_equality_deletes(table, pa.table({"id": [2, 77]}), [1])


def _by_all(table: Any) -> None:
    add_position_deletes(table, table.first_file(), 1)
    add_equality_deletes(table, pa.table({"v": ["v2"]}), [2])


MODES = ["copy-on-write", "merge-on-read"]
WAYS = [(2, _by_position), (2, _by_equality), (2, _by_all), (3, _by_vector), (3, _by_equality)]


def _rows(*ids: int) -> pa.Table:
    return pa.table({"id": ids, "v": [f"v{number}" for number in ids]}, schema=SCHEMA)


def _read(db: AirportClient) -> dict[int, str]:
    found = db.scan("s.t").read_all().sort_by("id")
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True))


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize(
    ("version", "delete", "mode"),
    [
        *((*way, MODES[0]) for way in WAYS),
        *scope.sample([(*way, MODES[1]) for way in WAYS], every=3),
    ],
    ids=[f"version {version}{way.__name__.replace('_', ' ')} {mode}" for mode in MODES for version, way in WAYS],
)
def test_statements_work_on_tables_with_deletes(
    lake: Lake,
    db: AirportClient,
    duck: duckdb.DuckDBPyConnection,
    version: int,
    delete: Callable[[Any], None],
    mode: str,
) -> None:
    table = ForeignWriter(lake, version, **{"write.delete.mode": mode, "write.update.mode": mode})
    db.insert("s.t", _rows(1, 2, 3))
    db.insert("s.t", _rows(4, 5, 6))
    delete(table)
    assert _read(db) == {number: f"v{number}" for number in (1, 3, 4, 5, 6)}

    assert db.update("s.t", {"v": "changed"}, where=col("id") <= 4).count == 3
    assert _read(db) == {1: "changed", 3: "changed", 4: "changed", 5: "v5", 6: "v6"}
    assert db.delete("s.t", where=(col("id") == 3) | (col("id") == 6)).count == 2
    db.insert("s.t", _rows(2))  # deletes do not apply to rows that are newer
    expected = {1: "changed", 2: "v2", 4: "changed", 5: "v5"}
    assert _read(db) == expected
    assert db.delete("s.t", where=col("id") == 2).count == 1
    assert _read(db) == {1: "changed", 4: "changed", 5: "v5"}
    read_by_duckdb = duck.execute("SELECT id, v FROM iceberg_scan(?) ORDER BY id", [table.location]).fetchall()
    assert dict(read_by_duckdb) == _read(db)


@pytest.mark.parametrize("append", [append_avro, append_orc], ids=["avro", "orc"])
def test_statements_work_on_files_of_other_formats(lake: Lake, db: AirportClient, append: Callable[..., Any]) -> None:
    table: Any = ForeignWriter(lake, 3)
    append(table, _rows(1, 2, 3))
    db.insert("s.t", _rows(4))
    add_equality_deletes(table, pa.table({"id": [2]}), [1])
    assert db.update("s.t", {"v": "changed"}, where=col("id") == 1).count == 1
    assert _read(db) == {1: "changed", 3: "v3", 4: "v4"}
    assert db.delete("s.t", where=col("v") == "v3").count == 1
    assert _read(db) == {1: "changed", 4: "v4"}


@pytest.mark.parametrize(
    ("version", "delete", "shown"),
    [
        (2, None, (6, False)),
        (2, _by_position, (6, True)),
        (3, _by_vector, (5, False)),
        (2, _by_equality, (6, True)),
        (2, _by_all, (6, True)),
    ],
)
def test_number_of_rows_is_a_bound_unless_deleted_rows_are_counted(
    lake: Lake, db: AirportClient, version: int, delete: Callable[[Any], None] | None, shown: tuple[int, bool]
) -> None:
    table = ForeignWriter(lake, version)
    db.insert("s.t", _rows(1, 2, 3))
    db.insert("s.t", _rows(4, 5, 6))
    if delete is not None:
        delete(table)
    (row,) = [row for row in db.scan("skiway.tables").read_all().to_pylist() if row["table_name"] == "t"]
    assert (row["row_count"], row["row_count_is_bound"]) == shown


def _stored_count(lake: Lake, table: ForeignWriter) -> tuple[int, bool]:
    """The number of rows in the statistics of the current snapshot, and whether it is only an upper bound."""
    current = table.handle.current()
    assert current is not None
    stats = statistics.table_statistics(lake.realm, table.id.id, current.id)
    assert stats is not None
    return stats.row_count, statistics.is_row_bound(stats)


def _files(table: ForeignWriter) -> list[str]:
    current = table.handle.current()
    assert current is not None
    return list(table.handle.plan(current).sort_by("sequence_number")["path"].to_pylist())


def test_row_count_is_exact_only_if_no_row_can_be_deleted_twice(lake: Lake, db: AirportClient) -> None:
    table = ForeignWriter(lake, 2)
    db.insert("s.t", _rows(1, 2, 3))
    db.insert("s.t", _rows(4, 5, 6))
    first, second = _files(table)
    assert _stored_count(lake, table) == (6, False)
    add_positions(table, {first: [0], second: [0]})
    assert len(_read(db)) == 4
    assert _stored_count(lake, table) == (6, True), "one delete file for two data files"
    add_positions(table, {first: [0, 1]})
    assert len(_read(db)) == 3
    assert _stored_count(lake, table) == (6, True), "two delete files delete the same row"


def test_row_count_is_not_too_low_after_data_files_are_gone(lake: Lake, db: AirportClient) -> None:
    """A delete file may still list rows of a data file that was rewritten."""
    table = ForeignWriter(lake, 2)
    db.insert("s.t", _rows(1, 2, 3))
    db.insert("s.t", _rows(4, 5, 6))
    first, second = _files(table)
    add_positions(table, {first: [0, 1], second: [0]})
    assert db.delete("s.t", where=col("id") == 3).count == 1  # removes the first file
    assert _files(table) == [second]
    count, is_bound = _stored_count(lake, table)
    assert len(_read(db)) == 2
    assert (count, is_bound) == (3, True)


@pytest.mark.parametrize("version", [2, 3])
def test_row_count_is_exact_while_each_data_file_has_one_delete_file(
    lake: Lake, db: AirportClient, version: int
) -> None:
    """A deletion vector replaces the previous one, and files of positions by this server never delete a row twice."""
    table = ForeignWriter(lake, version, **{"write.delete.mode": "merge-on-read"})
    db.insert("s.t", _rows(1, 2, 3))
    db.insert("s.t", _rows(4, 5, 6))
    assert db.delete("s.t", where=(col("id") == 1) | (col("id") == 4)).count == 2
    assert _stored_count(lake, table) == (4, False)
    assert db.delete("s.t", where=col("id") == 2).count == 1
    assert len(_read(db)) == 3
    assert _stored_count(lake, table) == (3, False)
