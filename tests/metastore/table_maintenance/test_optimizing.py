"""Optimizing a table changes its files, never its rows; writers win."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from formats.delete_files import add_deletion_vectors, add_equality_deletes, add_position_deletes
from formats.oracles import extended
from lake.lineage_reader import read_lineage
from metastore.managed_table_factory import ManagedTableFactory
from metastore.resource_factory import ResourceFactory
from metastore.table_maintenance.maintained_tables import MaintainedTable
from scope import sample
from skiway.errors import Cancelled, InvalidArgument, Unavailable
from skiway.formats import data_files
from skiway.formats.iceberg.changes import maintenance
from skiway.formats.iceberg.changes.commits import append, delete_all, overwrite
from skiway.formats.iceberg.changes.evolution import sort_by
from skiway.formats.iceberg.changes.maintenance import CompactionRules, new_order
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.formats.iceberg.writing.delete_files import DeleteFileWriter
from skiway.metastore import managed
from skiway.metastore.table_maintenance import optimizing
from skiway.metastore.table_maintenance.optimizing import OptimizeReport, optimize

ALL_DELETES = {"max_deleted": 0.0}


@pytest.fixture
def home(factory: ResourceFactory, tmp_path: Path) -> ManagedTableFactory:
    return ManagedTableFactory.at(factory, tmp_path)


def run(table: MaintainedTable, **options: Any) -> OptimizeReport:
    sort, z_order = options.pop("sort", ""), options.pop("z_order", ())

    def rules_of(metadata: Any) -> CompactionRules:
        return CompactionRules.of(metadata, order=new_order(metadata, sort=sort, z_order=z_order), **options)

    return optimize(table.home.home, table.home.warehouse, table.id, rules_of=rules_of)


def test_small_files_are_packed_into_one_replace_snapshot_and_older_snapshots_stay(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    table.fill(8)
    before, old = table.rows(), table.snapshot_id
    report = run(table)
    assert (report.files_before, report.files_after, report.given_up) == (8, 1, [])
    assert (len(table.paths()), table.rows(), table.own_rows(old)) == (1, before, [row["id"] for row in before])
    operations = [each.summary.operation.value for each in table.metadata.snapshots]
    assert operations == ["append"] * 8 + ["replace"] * report.commits
    assert table.metadata.current_snapshot().summary["total-records"] == "80"
    assert report.manifests_after < report.manifests_before


def test_table_in_good_shape_is_left_alone(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    table.fill(4)
    state = table.now.metadata_location
    assert run(table).commits == 0
    assert table.now.metadata_location == state


def test_second_run_finds_nothing_to_do(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    table.fill(7)
    assert run(table).commits > 0
    assert run(table).commits == 0


def test_each_partition_keeps_its_rows(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home, partition_by=["part"])
    table.fill(6, part="a")
    table.fill(6, part="b", start=1000)
    table.append(5000, part="c")
    before = table.rows()
    report = run(table)
    assert (report.groups, len(table.paths()), table.rows()) == (2, 3, before)
    handle = table.now.handle
    partitions = handle.files(handle.current())["partition"].to_pylist()
    assert sorted(next(iter(each.values())) for each in partitions) == ["a", "b", "c"]


def by_position(table: MaintainedTable) -> None:
    add_position_deletes(table, table.paths()[0], 0, 3)


def by_equality(table: MaintainedTable) -> None:
    add_equality_deletes(table, pa.table({"id": [0, 3, 25]}), [1])


def by_vector(table: MaintainedTable) -> None:
    add_deletion_vectors(table, {table.paths()[0]: [0, 3], table.paths()[1]: [5]})


@pytest.mark.parametrize(
    ("version", "delete"), [("2", by_position), ("2", by_equality), ("3", by_vector), ("3", by_equality)]
)
def test_deletes_are_applied_and_their_files_removed(
    home: ManagedTableFactory, version: str, delete: Callable[[MaintainedTable], None]
) -> None:
    table = MaintainedTable.create(home, properties={"format-version": version})
    table.fill(3)
    delete(table)
    before = table.own_rows()
    assert len(before) < 30
    run(table, **ALL_DELETES)
    assert (table.own_rows(), table.ids(), table.delete_files()) == (before, before, 0)


def test_equality_deletes_that_still_apply_to_other_files_stay(home: ManagedTableFactory) -> None:
    """They also delete rows of a partition that is not rewritten, because writers keep changing it."""
    table = MaintainedTable.create(home)
    table.fill(6)
    by_equality(table)
    table.append(3)  # the same key, written later, is not deleted
    before = table.own_rows()
    run(table)
    assert (table.own_rows(), table.delete_files()) == (before, 0)
    assert 3 in before


def test_row_lineage_stays_with_the_rows(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home, properties={"format-version": "3"})
    table.fill(6)
    by_vector(table)
    before = read_lineage(table.metadata)
    run(table, **ALL_DELETES)
    assert len(table.paths()) == 1
    assert read_lineage(table.metadata) == before
    table.fill(6, start=1000)
    again = read_lineage(table.metadata)
    run(table, sort="id DESC")
    assert read_lineage(table.metadata) == again


def test_rows_are_sorted_through_all_files_of_a_partition(home: ManagedTableFactory, monkeypatch: Any) -> None:
    table = MaintainedTable.create(home)
    numbers = np.random.default_rng(7).permutation(6000)
    for part in np.split(numbers, 6):
        table.append(*map(int, part))
    table.change(sort_by("id DESC"))
    before = table.rows()
    monkeypatch.setattr(maintenance, "in_order", _in_little_memory)
    run(table, sort="id desc", target_bytes=3_000)
    files = [pq.read_table(path.removeprefix("file://"))["id"].to_pylist() for path in table.paths()]
    assert len(files) > 2
    assert all(each == sorted(each, reverse=True) for each in files)
    spans = sorted((each[-1], each[0]) for each in files)
    assert all(low > high for (_, high), (low, _) in itertools.pairwise(spans)), "files overlap"
    assert table.rows() == before


def _in_little_memory(batches: Any, schema: Any, order: Any) -> Any:
    from skiway.formats.row_order import in_order

    return in_order(batches, schema, order, memory_bytes=40_000)


def test_z_order_lets_filters_on_each_column_skip_files(home: ManagedTableFactory, monkeypatch: Any) -> None:
    schema = pa.schema({"x": pa.int64(), "y": pa.int64()})
    table = MaintainedTable.create(home, schema)
    points = np.random.default_rng(3).integers(0, 1000, (40_000, 2))
    made = table.now
    with DataFileWriter(made.files, made.metadata) as writer:
        writer.write(pa.record_batch({"x": points[:, 0], "y": points[:, 1]}))
        managed.change(home.home, home.warehouse, table.id, append(writer.close()))
    monkeypatch.setattr(maintenance, "in_order", _in_little_memory)
    run(table, z_order=["x", "y"], target_bytes=5_000)
    spans = [
        [pc.min_max(pq.read_table(path.removeprefix("file://"))[name]).as_py() for name in ("x", "y")]
        for path in table.paths()
    ]
    assert len(spans) >= 8
    for column in (0, 1):
        hit = sum(each[column]["min"] <= 500 <= each[column]["max"] for each in spans)
        assert hit <= len(spans) * 0.6, f"{hit} of {len(spans)} files have column {column}"


@pytest.mark.parametrize(("sort", "z_order"), [("nope", ()), ("", ["id"]), ("id", ["id", "v"]), ("", ["id", "nope"])])
def test_wrong_orders_are_refused(home: ManagedTableFactory, sort: str, z_order: Any) -> None:
    table = MaintainedTable.create(home)
    table.fill(1)
    with pytest.raises(InvalidArgument):
        run(table, sort=sort, z_order=z_order)


# --- concurrent writers ----------------------------------------------------------------------------------------------


def meanwhile(monkeypatch: Any, act: Callable[[], None], *, times: int = 1) -> None:
    """Run `act` after each of the first rewrites of a group, before its commit."""
    real, left = maintenance.rewritten, [times]

    def rewritten(*args: Any, **options: Any) -> Any:
        made = real(*args, **options)
        if left[0]:
            left[0] -= 1
            act()
        return made

    monkeypatch.setattr(optimizing, "rewritten", rewritten)


def delete_row(table: MaintainedTable, path: str, *positions: int) -> None:
    """Delete rows by merge-on-read, as a DELETE statement does."""
    made = table.now
    with DeleteFileWriter(made.files, made.metadata) as writer:
        writer.add(path, np.array(positions), before=np.array([], np.int64))
        table.change(overwrite([], [], deletes=writer.close(), based_on=table.snapshot_id, operation="delete"))


def test_rows_that_others_append_meanwhile_stay(home: ManagedTableFactory, monkeypatch: Any) -> None:
    table = MaintainedTable.create(home)
    table.fill(6)
    meanwhile(monkeypatch, lambda: table.append(999) and None)
    report = run(table)
    assert (table.ids(), report.files_before, report.given_up) == ([*range(60), 999], 6, [])


@pytest.mark.parametrize("version", ["2", "3"])
def test_rows_that_others_delete_meanwhile_do_not_come_back(
    home: ManagedTableFactory, monkeypatch: Any, version: str
) -> None:
    table = MaintainedTable.create(home, properties={"format-version": version})
    table.fill(6)
    first = next(path for path in table.paths() if 0 in pq.read_table(path.removeprefix("file://"))["id"].to_pylist())
    meanwhile(monkeypatch, lambda: delete_row(table, first, 4))
    report = run(table)
    assert (table.ids(), report.given_up) == ([each for each in range(60) if each != 4], [])
    assert (report.files_before, first in table.paths()) == (5, True), "the changed file is left for the next time"


def test_equality_deletes_that_others_commit_meanwhile_do_not_come_back(
    home: ManagedTableFactory, monkeypatch: Any
) -> None:
    table = MaintainedTable.create(home)
    table.fill(6)
    meanwhile(monkeypatch, lambda: by_equality(table))
    run(table)
    assert table.own_rows() == [each for each in range(60) if each not in (0, 3, 25)]


def test_group_whose_files_are_always_changed_is_given_up_and_loses_nothing(
    home: ManagedTableFactory, monkeypatch: Any
) -> None:
    table = MaintainedTable.create(home, partition_by=["part"])
    table.fill(6, part="a")
    table.fill(6, part="b", start=1000)
    deleted = iter(range(10))

    def delete() -> None:
        handle = table.now.handle
        files = data_files(handle.files(handle.current())).to_pylist()
        victim = next(each["path"] for each in files if "a" in each["partition"].values() and not each["deletes"])
        delete_row(table, victim, next(deleted))

    meanwhile(monkeypatch, delete, times=10)
    report = run(table)
    assert len(report.given_up) == 1
    left = table.ids()
    assert len(left) == 120 - next(deleted), "each attempt lost one row to a writer, and no row came back"
    assert {each for each in left if each >= 1000} == set(range(1000, 1060))
    assert len(table.paths()) == 7, "the other partition was packed"


def test_group_that_lost_twice_is_halved(home: ManagedTableFactory, monkeypatch: Any) -> None:
    table = MaintainedTable.create(home)
    table.fill(12)
    rows = iter(range(10))

    def delete() -> None:
        handle = table.now.handle
        files = data_files(handle.files(handle.current())).to_pylist()
        delete_row(table, next(each["path"] for each in files if not each["deletes"]), next(rows))

    meanwhile(monkeypatch, delete, times=2)
    report = run(table)
    assert (report.files_before, report.given_up, len(table.ids())) == (5, [], 118)


def test_table_that_was_emptied_meanwhile_stays_empty(home: ManagedTableFactory, monkeypatch: Any) -> None:
    table = MaintainedTable.create(home)
    table.fill(6)
    meanwhile(monkeypatch, lambda: table.change(delete_all()) and None)
    report = run(table)
    assert (table.ids(), report.files_before) == ([], 0)


def test_files_of_lost_attempts_are_deleted(home: ManagedTableFactory, monkeypatch: Any) -> None:
    table = MaintainedTable.create(home)
    table.fill(6)
    meanwhile(monkeypatch, lambda: table.change(delete_all()) and None)
    before = {path for path in table.on_disk() if path.endswith(".parquet")}
    run(table)
    assert {path for path in table.on_disk() if path.endswith(".parquet")} == before


def test_run_that_is_cancelled_leaves_no_files(home: ManagedTableFactory) -> None:
    table = MaintainedTable.create(home)
    table.fill(6)
    before, calls = table.on_disk(), iter(range(100))

    def check() -> None:
        if next(calls) == 3:
            raise Cancelled("stop", key="job.cancelled")

    with pytest.raises(Cancelled):
        optimize(home.home, home.warehouse, table.id, check=check)
    assert table.on_disk() == before


def test_files_stay_if_the_outcome_of_the_commit_is_unknown(home: ManagedTableFactory, monkeypatch: Any) -> None:
    table = MaintainedTable.create(home)
    table.fill(6)
    real = managed.change

    def lost(*args: Any) -> Any:
        real(*args)
        raise Unavailable("the connection broke", key="store.unavailable")

    monkeypatch.setattr(optimizing, "change", lost)
    with pytest.raises(Unavailable):
        run(table)
    assert table.ids() == list(range(60))


# --- other engines ---------------------------------------------------------------------------------------------------


@pytest.mark.needs("duckdb extensions")
@pytest.mark.parametrize("version", sample(["3", "2"], every=2))
def test_duckdb_and_pyiceberg_read_the_same_rows(home: ManagedTableFactory, tmp_path: Path, version: str) -> None:
    table = MaintainedTable.create(home, partition_by=["part"], properties={"format-version": version})
    table.fill(6, part="a")
    table.fill(6, part="b", start=1000)
    delete_row(table, table.paths()[0], 1, 2)
    before = table.rows()
    run(table, sort="v", **ALL_DELETES)
    with extended(tmp_path / "extensions") as duck:
        read = _read(duck, table.now.metadata_location)
    assert (table.rows(), read) == (before, before)


def _read(duck: duckdb.DuckDBPyConnection, location: str) -> list[dict[str, Any]]:
    return duck.execute("SELECT id, part, v FROM iceberg_scan(?) ORDER BY id", [location]).to_arrow_table().to_pylist()
