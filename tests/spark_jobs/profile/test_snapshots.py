"""End to end, from files to the statistics that the metastore returns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from metastore.resource_factory import ResourceFactory
from skiway.errors import Cancelled
from skiway.formats import Snapshot, TableHandle
from skiway.metastore import statistics
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.statistics.file_table import ProfileRecords, written
from skiway.model import v1
from skiway.spark_jobs.profile.job import Budget
from skiway.spark_jobs.profile.snapshots import ProfileReport, profile_snapshot
from spark_jobs.lakes import SPARK, opened, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK
ROWS = 180  # fewer than a KLL sketch retains: it does not sample, so two profiles of a file are equal


def rows(seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    return pa.table({"id": rng.integers(0, 5000, ROWS), "word": [f"w{n}" for n in rng.integers(0, 200, ROWS)]})


class Table:
    """A metastore table that mirrors a folder."""

    def __init__(self, factory: ResourceFactory, folder: Path, spark: SparkSession) -> None:
        self.factory, self.folder, self.spark = factory, folder, spark
        self.table = factory.table("t")
        self.id = self.table.resource_id

    def profile(self, handle: TableHandle, snapshot: Snapshot, **more: object) -> ProfileReport:
        self.factory.snapshot(self.table, snapshot.id)
        return profile_snapshot(
            self.factory.home,
            self.id,
            snapshot,
            handle=handle,
            spark=lambda: self.spark,
            **more,  # type: ignore[arg-type]
        )

    def stored(self, snapshot: Snapshot) -> tuple[v1.TableStats, list[v1.ColumnStats]]:
        ref = v1.SnapshotRef(snapshot_id=snapshot.id)
        table = statistics.get_table(self.factory.home, v1.GetTableStatsRequest(table_id=self.id, snapshot=ref))
        columns = statistics.list_columns(self.factory.home, v1.ListColumnStatsRequest(table_id=self.id, snapshot=ref))
        table.stats.ClearField("updated_at")
        return table.stats, list(columns.columns)


@pytest.fixture
def table(factory: ResourceFactory, tmp_path: Path, spark: SparkSession) -> Table:
    return Table(factory, tmp_path, spark)


def test_statistics_are_stored_and_reproducible(table: Table) -> None:
    write(table.folder / "t", rows(1), rows(2))
    with opened(table.folder) as (handle, snapshot):
        first = table.profile(handle, snapshot)
        stored = table.stored(snapshot)
        second = table.profile(handle, snapshot)
    assert (first.files_total, first.files_profiled, first.files_known, first.failed) == (2, 2, 0, {})
    assert (second.files_profiled, second.files_known) == (0, 2)
    assert table.stored(snapshot) == stored
    [then] = statistics.statistics_history(table.factory.home, table.id.id)
    assert (then.snapshot_id, then.row_count) == (snapshot.id, 2 * ROWS)
    assert [
        set(each.properties) >= {"quantiles", "top_values"} for each in then.columns if each.column_name == "id"
    ] == [True]
    assert stored[0].row_count == 2 * ROWS
    assert {column.column_name for column in stored[1]} == {"id", "word"}
    assert all(column.ndv.exact and column.HasField("min") for column in stored[1])


def test_later_snapshot_does_not_read_old_data_files(
    table: Table, factory: ResourceFactory, spark: SparkSession
) -> None:
    """Profile 200 files, add two, and remove the data of the old ones before the next profile."""
    paths = write(table.folder / "t", *(rows(seed) for seed in range(200)))
    with opened(table.folder) as (handle, snapshot):
        assert table.profile(handle, snapshot).files_profiled == 200
    newer = write(table.folder / "new", rows(200), rows(201))
    for number, path in enumerate(newer):
        path.rename(table.folder / "t" / f"z-{number}.parquet")
    with opened(table.folder) as (handle, listed):
        later = Snapshot(snapshot.id + 1, listed.created_at, digest=listed.digest)
        handle.files(later)
        other = Table(new_factory(factory), table.folder, spark)
        full = other.profile(handle, later)
        for path in paths:
            path.unlink()
        report = table.profile(handle, later)
    assert (full.files_profiled, report.files_profiled, report.files_known) == (202, 2, 200)
    assert report.merged == full.merged
    assert table.stored(later)[0].row_count == 202 * ROWS


def new_factory(factory: ResourceFactory) -> ResourceFactory:
    from skiway.storage import open_stores

    return ResourceFactory(open_stores("memory://", clock=factory.clock), factory.clock)


def test_cancelled_run_on_spark_resumes_where_it_stopped(table: Table) -> None:
    write(table.folder / "t", *(rows(seed) for seed in range(4)))
    progress: list[tuple[Amounts, Amounts]] = []
    few = Budget(files=2)
    with opened(table.folder) as (handle, snapshot):
        with pytest.raises(Cancelled, match="after 2 of 4 files"):
            table.profile(
                handle,
                snapshot,
                budget=few,
                cancelled=lambda: True,
                on_progress=lambda *now: progress.append(now),
                small=None,
            )
        report = table.profile(handle, snapshot, budget=few, on_progress=lambda *now: progress.append(now))
    assert [(done.files, total.files) for done, total in progress] == [(0, 4), (2, 4), (0, 2), (2, 2)]
    sizes = [path.stat().st_size for path in sorted((table.folder / "t").iterdir())]
    counts = [len(rows(seed)) for seed in range(4)]
    assert progress[1] == ((2, sum(counts[:2]), sum(sizes[:2])), (4, sum(counts), sum(sizes)))
    assert (report.files_profiled, report.files_known) == (2, 2)


def test_failing_file_is_reported_and_retried(table: Table) -> None:
    paths = write(table.folder / "t", rows(1), rows(2))
    with opened(table.folder) as (handle, snapshot):
        handle.files(snapshot)
        moved_file = paths[0].rename(table.folder / "kept")
        report = table.profile(handle, snapshot)
        assert list(report.failed) == [str(paths[0])]
        assert table.stored(snapshot)[0].properties["files.profiled"] == "1"
        moved_file.rename(paths[0])
        assert table.profile(handle, snapshot).failed == {}
    assert table.stored(snapshot)[0].properties["files.profiled"] == "2"


def test_files_that_were_profiled_without_their_lists_are_profiled_again(table: Table) -> None:
    """An older version did not profile lists, and its index does not have the column that says so."""
    write(table.folder / "t", pa.table({"id": [1, 2], "tags": [["a"], ["b", "c"]]}))
    with opened(table.folder) as (handle, snapshot):
        table.profile(handle, snapshot)
        records = ProfileRecords(table.factory.home, table.id)
        index = records.index()
        old = pa.ipc.open_file(pa.py_buffer(index.content)).read_all()
        part = pa.ipc.open_file(pa.py_buffer(records.part(old["part"][0].as_py()))).read_all()
        old_part = written(part.drop_columns(["element_count"]).combine_chunks())
        old = old.drop_columns(["with_elements", "part"])
        old = old.append_column("part", pa.array([records.digest(old_part)]))
        records.publish(index, part=old_part, index=written(old.combine_chunks()))
        records.delete_parts(except_those=lambda: [records.digest(old_part)])
        report = table.profile(handle, snapshot)
    assert (report.files_profiled, report.files_known) == (1, 0)
    assert {each.column_name: each.value_count for each in table.stored(snapshot)[1]} == {"id": 2, "tags.element": 3}
