"""Copies of folders: what is loaded, what is not loaded twice, and what is an error."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.ingest.copies import FolderCopy, Here
from metastore.resource_factory import expect_error
from skiway.errors import AlreadyExists, Conflict, ConstraintViolation, InvalidArgument, PreconditionFailed
from skiway.formats import Location, location
from skiway.formats.iceberg.changes.commits import append, delete_all, rollback
from skiway.formats.iceberg.changes.maintenance import Expiry, expire
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import managed
from skiway.metastore.connectors.specs import CopyMode
from skiway.metastore.ingest.positions import POSITION, POSITION_FILE
from skiway.metastore.table_maintenance.cleaning import expire_snapshots, remove_orphans

DAY = 86400.0


def write(folder: Path, name: str, /, **columns: list[Any]) -> None:
    """Write a file, or write it again with other content."""
    (folder / f"{name}.parquet").unlink(missing_ok=True)
    pq.write_table(pa.table(columns), folder / f"{name}.parquet")


def add_rows(orders: FolderCopy, **columns: list[Any]) -> None:
    """Add rows to the table of the copy, as another writer does."""
    table = orders.table()
    with DataFileWriter(table.files, table.metadata) as writer:
        writer.write(pa.record_batch(columns))
        files = writer.close()
    managed.change(orders.lake.home, orders.lake.warehouse, table.table.resource_id, append(files))


def test_append_loads_each_file_once(orders):
    write(orders.folder, "a", id=[1, 2])
    assert orders.load()
    write(orders.folder, "b", id=[2, 3])
    assert orders.load()
    assert orders.rows() == [(1,), (2,), (2,), (3,)]
    before = orders.table().metadata_location
    assert not orders.load()
    assert orders.table().metadata_location == before


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_text_files_are_loaded_with_declared_types(lake, tmp_path, kind):
    orders = FolderCopy(lake, tmp_path / "source", kind, options={"columns": "id long, price decimal(9,2)"})
    lines = {
        "csv": ["id,price,name\n1,2.50,a\n2,,\n", "id,name\n3,c\n"],
        "json": ['{"id": 1, "price": "2.50", "name": "a"}\n{"id": 2}\n', '{"id": 3, "name": "c"}\n'],
    }
    for number, text in enumerate(lines[kind]):
        (orders.folder / f"{number}.{kind}").write_text(text)
        assert orders.load()
    assert not orders.load()
    found = orders.arrow()
    assert found.schema.field("price").type == pa.decimal128(9, 2)
    rows = sorted(found.select(["id", "price", "name"]).to_pylist(), key=lambda each: each["id"])
    assert [[str(value) for value in row.values()] for row in rows] == [
        ["1", "2.50", "a"],
        ["2", "None", "None"],
        ["3", "None", "c"],
    ]


def test_appending_a_changed_file_is_an_error_and_loads_nothing(orders):
    write(orders.folder, "a", id=[1])
    orders.load()
    write(orders.folder, "a", id=[1, 2])
    write(orders.folder, "b", id=[3])
    with expect_error(PreconditionFailed, "ingest.file.changed", file="a.parquet"):
        orders.load()
    assert orders.rows() == [(1,)]


def test_files_that_vanish_and_return_are_not_loaded_again(orders, tmp_path):
    write(orders.folder, "a", id=[1])
    write(orders.folder, "b", id=[2])
    orders.load()
    shutil.move(orders.folder / "a.parquet", tmp_path / "a.parquet")
    write(orders.folder, "c", id=[3])
    assert orders.load()
    shutil.move(tmp_path / "a.parquet", orders.folder / "a.parquet")
    assert not orders.load()
    assert orders.rows() == [(1,), (2,), (3,)]


def test_replace_loads_all_files_after_any_change(orders):
    orders.in_mode(CopyMode.REPLACE)
    write(orders.folder, "a", id=[1])
    write(orders.folder, "b", id=[2])
    assert orders.load()
    assert not orders.load()
    (orders.folder / "a.parquet").unlink()
    assert orders.load()
    assert orders.rows() == [(2,)]
    write(orders.folder, "b", id=[5])
    assert orders.load()
    assert orders.rows() == [(5,)]


# --- keys -------------------------------------------------------------------------------------------------------------


def test_upsert_keeps_the_last_row_of_each_key(orders):
    orders.in_mode(CopyMode.UPSERT, "ID", "part")
    write(orders.folder, "a", id=[1, 1, 1, 2], part=["x", "x", "y", "x"], v=[1, 2, 3, 4])
    assert orders.load()
    assert orders.rows() == [(1, "x", 2), (1, "y", 3), (2, "x", 4)]
    write(orders.folder, "b", id=[1, 3], part=["x", "x"], v=[5, 6])
    write(orders.folder, "c", id=[3], part=["x"], v=[7])
    assert orders.load()
    assert orders.rows() == [(1, "x", 5), (1, "y", 3), (2, "x", 4), (3, "x", 7)]
    write(orders.folder, "a", id=[2], part=["x"], v=[8])
    assert orders.load()
    assert orders.rows() == [(1, "x", 5), (1, "y", 3), (2, "x", 8), (3, "x", 7)]
    assert not orders.load()


def test_upsert_replaces_rows_of_others_that_commit_meanwhile(orders):
    orders.in_mode(CopyMode.UPSERT, "id")
    write(orders.folder, "a", id=[1], v=[1])
    orders.load()
    write(orders.folder, "b", id=[2], v=[2])
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 2:  # the rows are written, and not committed yet
            add_rows(orders, id=[2, 3], v=[9, 9])

    orders.check = check
    assert orders.load()
    assert orders.rows() == [(1, 1), (2, 2), (3, 9)]


def test_upsert_searches_again_if_others_commit_after_the_search(orders):
    orders.in_mode(CopyMode.UPSERT, "id")
    write(orders.folder, "a", id=[1, 4], v=[1, 1])
    orders.load()
    write(orders.folder, "b", id=[2], v=[2])

    class Interrupted(Here):
        searches = 0

        def matches(self, *rows: Any, **how: Any) -> Any:
            found = super().matches(*rows, **how)
            self.searches += 1
            if self.searches == 1:
                add_rows(orders, id=[2, 3], v=[9, 9])
            return found

    orders.distribute = Interrupted()
    assert orders.load()
    assert orders.distribute.searches == 2
    assert orders.rows() == [(1, 1), (2, 2), (3, 9), (4, 1)]


def test_upsert_searches_only_files_whose_bounds_include_new_keys(orders):
    searched: list[int] = []

    class Counting(Here):
        def matches(self, rows: Any, *of: Any, **how: Any) -> Any:
            searched.append(sum(len(one.numbers) for one in rows))
            return super().matches(rows, *of, **how)

    orders.in_mode(CopyMode.UPSERT, "id").distribute = Counting()
    for number in range(5):
        write(orders.folder, f"a{number}", id=[10 * number, 10 * number + 9], v=[number] * 2)
        orders.load()
    assert searched == []
    write(orders.folder, "b", id=[9, 12, 19], v=[7, 7, 7])
    orders.load()
    assert searched == [2]
    kept = [(10 * number + end, number) for number in range(5) for end in (0, 9) if 10 * number + end not in (9, 19)]
    assert orders.rows() == sorted([*kept, (9, 7), (12, 7), (19, 7)], key=repr)


def test_null_key_is_an_error_and_loads_nothing(orders):
    orders.in_mode(CopyMode.UPSERT, "id")
    write(orders.folder, "a", id=[1, None])
    with expect_error(ConstraintViolation, "ingest.key.null", column="id"):
        orders.load()
    assert orders.rows() == []


def test_missing_key_column_is_an_error_that_names_the_columns(orders):
    orders.in_mode(CopyMode.UPSERT, "nr")
    write(orders.folder, "a", id=[1], v=["x"])
    with expect_error(InvalidArgument, "ingest.key.missing", column="nr") as raised:
        orders.load()
    assert "id, v" in raised.value.message


def test_key_column_that_later_files_lack_is_an_error(orders):
    orders.in_mode(CopyMode.UPSERT, "id")
    write(orders.folder, "a", id=[1], v=["x"])
    orders.load()
    shutil.rmtree(orders.folder)
    write(orders.folder, "b", v=["y"])
    with expect_error(InvalidArgument, "ingest.key.missing", column="id"):
        orders.load()


# --- tables and columns -----------------------------------------------------------------------------------------------


def test_table_that_is_not_the_copy_is_left_alone(orders, lake):
    lake.create("orders")
    write(orders.folder, "a", id=[1])
    with expect_error(AlreadyExists, "ingest.target.exists", name="orders"):
        orders.load()


def test_copy_follows_its_table_when_it_is_renamed(orders, lake):
    write(orders.folder, "a", id=[1])
    orders.load()
    managed.rename(lake.home, orders.table().table.resource_id, name="renamed")
    write(orders.folder, "b", id=[2])
    orders.load()
    assert orders.table().table.display_name == "renamed"
    assert orders.rows() == [(1,), (2,)]


def test_new_table_has_the_partitions_and_the_order_of_the_settings(orders):
    orders.in_mode(CopyMode.APPEND, partition_by=("region", "bucket(4, id)"), sort_by="id DESC")
    write(orders.folder, "a", id=[1, 3, 2], region=["x", "x", "x"])
    orders.load()
    metadata = orders.table().metadata
    assert [str(each.transform) for each in metadata.spec().fields] == ["identity", "bucket[4]"]
    assert [str(each.direction) for each in metadata.sort_order().fields] == ["DESC"]


def test_columns_are_added_and_widened_by_default(orders):
    write(orders.folder, "a", id=pa.array([1], pa.int32()))
    orders.load()
    shutil.rmtree(orders.folder)
    write(orders.folder, "b", ID=pa.array([2**40], pa.int64()), name=["x"])
    orders.load()
    assert orders.rows() == [(1, None), (2**40, "x")]
    assert orders.arrow().schema.names == ["id", "name"]


def test_rejected_changes_of_columns_load_nothing(orders):
    orders.in_mode(CopyMode.APPEND, follows=False)
    write(orders.folder, "a", id=[1], v=["x"])
    orders.load()
    write(orders.folder, "b", id=[2], v=["y"], more=[1])
    with expect_error(PreconditionFailed, "ingest.schema.changed") as raised:
        orders.load()
    assert "'more' is new" in raised.value.message
    assert orders.rows() == [(1, "x")]
    assert orders.arrow().schema.names == ["id", "v"]


# --- positions --------------------------------------------------------------------------------------------------------


def summary(orders: FolderCopy) -> dict[str, str]:
    current = orders.table().metadata.current_snapshot()
    assert current is not None
    assert current.summary is not None
    return dict(current.summary.additional_properties)


def test_position_is_in_the_snapshot_with_the_rows(orders):
    write(orders.folder, "a", id=[1])
    orders.load()
    position = json.loads(summary(orders)[POSITION])
    assert position["kind"] == "files"
    assert list(position["files"]) == ["a.parquet"]


def test_position_with_many_files_is_a_file_that_lives_as_long_as_its_snapshot(orders, lake, clock):
    for number in range(70):
        write(orders.folder, f"a-rather-long-name-of-a-file-{number}", id=[number])
    orders.load()
    first = summary(orders)[POSITION_FILE]
    assert POSITION not in summary(orders)
    assert not orders.load()
    write(orders.folder, "b", id=[100])
    orders.load()
    second = summary(orders)[POSITION_FILE]
    files, table_id = orders.table().files, orders.table().table.resource_id
    clock.advance(30 * DAY)
    assert remove_orphans(lake.home, lake.warehouse, table_id, dry_run=False).files == []
    expire_snapshots(lake.home, lake.warehouse, table_id, max_age_ms=1, min_count=1, dry_run=False)
    assert (files.find(first), files.find(second) is not None) == (None, True)
    assert not orders.load()
    write(orders.folder, "c", id=[101])
    assert orders.load()
    assert len(orders.rows()) == 72


def test_rolled_back_rows_are_loaded_again(orders, lake):
    write(orders.folder, "a", id=[1])
    orders.load()
    first = orders.table().metadata.current_snapshot_id
    write(orders.folder, "b", id=[2])
    orders.load()
    managed.change(lake.home, lake.warehouse, orders.table().table.resource_id, rollback(first))
    assert orders.rows() == [(1,)]
    assert orders.load()
    assert orders.rows() == [(1,), (2,)]


def test_commits_of_others_do_not_hide_the_position(orders, lake, clock):
    write(orders.folder, "a", id=[1])
    orders.load()
    for number in range(3):
        add_rows(orders, id=[10 + number])
        clock.advance(10 * DAY)
    assert not orders.load()
    table_id = orders.table().table.resource_id
    report = expire_snapshots(lake.home, lake.warehouse, table_id, max_age_ms=1, min_count=1, dry_run=False)
    assert "leads to the position of a copy" in report.kept.values()
    assert not orders.load()
    assert orders.rows() == [(1,), (10,), (11,), (12,)]


def test_lost_position_is_an_error_until_the_table_is_loaded_in_full(orders, lake):
    write(orders.folder, "a", id=[1])
    orders.load()
    lost = orders.table().metadata.current_snapshot_id
    add_rows(orders, id=[10])
    table_id = orders.table().table.resource_id
    managed.change(lake.home, lake.warehouse, table_id, expire(lambda _: Expiry(snapshots=(lost,))))
    with expect_error(PreconditionFailed, "ingest.position.lost"):
        orders.load()
    assert orders.load(again=True)
    assert orders.rows() == [(1,)]
    assert not orders.load()


@pytest.mark.parametrize("text", ["{", "[1]", "7"])
def test_damaged_position_is_an_error_until_the_table_is_loaded_in_full(orders, lake, text):
    """Whoever writes to the table can write a summary, too."""
    write(orders.folder, "a", id=[1])
    orders.load()
    table_id = orders.table().table.resource_id
    managed.change(lake.home, lake.warehouse, table_id, append([], properties={POSITION: text}))
    with expect_error(PreconditionFailed, "ingest.position.damaged"):
        orders.load()
    assert orders.load(again=True)
    assert orders.rows() == [(1,)]


class WithoutRows:
    """A table of a database from which all rows were deleted."""

    def changes(self, rules, position):
        assert position is None
        return


def test_full_load_of_a_table_without_rows_empties_the_copy(orders):
    assert not orders.copy.load(WithoutRows(), again=True)  # there is no copy yet
    write(orders.folder, "a", id=[1])
    orders.load()
    assert orders.copy.load(WithoutRows(), again=True)
    assert orders.rows() == []
    assert not orders.copy.load(WithoutRows(), again=True)
    assert not orders.copy.load(WithoutRows())
    add_rows(orders, id=[10])
    assert orders.copy.load(WithoutRows(), again=True)
    assert orders.rows() == []
    assert orders.load()
    assert orders.rows() == [(1,)]


def test_other_mode_needs_a_full_load(orders):
    orders.in_mode(CopyMode.REPLACE)
    write(orders.folder, "a", id=[1])
    orders.load()
    orders.in_mode(CopyMode.APPEND)
    with expect_error(PreconditionFailed, "ingest.position.other"):
        orders.load()
    assert orders.load(again=True)
    assert not orders.load()
    assert orders.rows() == [(1,)]


def test_second_of_two_concurrent_loads_commits_nothing(orders):
    write(orders.folder, "a", id=[1])
    orders.load()
    write(orders.folder, "b", id=[2])
    other = FolderCopy(orders.lake, orders.root, rules=orders.rules)
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 2:
            assert other.load()

    orders.check = check
    with expect_error(Conflict, "ingest.overtaken"):
        orders.load()
    assert orders.rows() == [(1,), (2,)]
    assert len(list(orders.lake.warehouse.files(orders.table().metadata.location).walk(data_folder(orders)))) == 2


def data_folder(orders: FolderCopy) -> Location:
    return location(orders.table().metadata.location) / "data"


def test_rows_of_others_remain_at_the_first_load(orders):
    """Somebody may fill the table between its creation and the first load, which was killed."""
    write(orders.folder, "a", id=[1])
    orders.load()
    managed.change(orders.lake.home, orders.lake.warehouse, orders.table().table.resource_id, delete_all([]))
    assert not orders.load(), "deleted rows are not loaded again"
    assert orders.rows() == []
