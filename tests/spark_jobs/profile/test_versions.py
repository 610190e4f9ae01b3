"""Stored profiles of older versions, and profiles that read all files again. No test here has a Spark session."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from metastore.managed_table_factory import ManagedTableFactory, id_of
from metastore.resource_factory import ResourceFactory
from metastore.upstreams import SECRETS, mirrored, parquet
from skiway.formats.files import Files
from skiway.formats.readers.parquet import checked_file
from skiway.metastore import connectors, quality, statistics
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.metastore.statistics.file_table import ProfileRecords, written
from skiway.model import v1
from skiway.spark_jobs.profile import scans, snapshots, store
from skiway.spark_jobs.profile.snapshots import ProfileReport
from skiway.spark_jobs.profile.values import ValueKind, value_kind
from skiway.spark_jobs.worker import SparkProfile, jobs_of
from spark_jobs.lakes import opened, write
from spark_jobs.profile.test_in_process import Table
from spark_jobs.profile.test_profile import no_spark
from spark_jobs.test_sync_worker import triggered, worker

VERSION_0 = Path(__file__).parent / "version_0"
"""What the code wrote before profiles had versions: an index without part, its part, and the statistics of table and columns."""

ROWS = (
    pa.table({"word": ["", "a"], "raw": [b"", b"x"], "id": [2**53 + 1, 2**53 + 3]}),
    pa.table({"word": ["b", None], "raw": [b"y", None], "id": [2**53 + 5, None]}),
)


@pytest.fixture
def opened_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files whose rows are read, in order."""
    found: list[str] = []
    original: Callable[..., Any] = checked_file

    def counted(access: Files, path: str) -> Any:
        found.append(Path(path).name)
        return original(access, path)

    monkeypatch.setattr(scans, "checked_file", counted)
    return found


class OldTable(Table):
    """A table whose files were profiled by version 0."""

    def __init__(self, factory: ResourceFactory, folder: Path) -> None:
        self.home, self.folder, self.factory = factory.home, folder, factory
        self.paths = write(folder / "t", *ROWS)
        with opened(folder) as (handle, snapshot):
            self.files, self.snapshot_id = handle.files(snapshot), snapshot.id
            self.record = factory.table("t", schema_json=handle.schema.json)
        factory.snapshot(self.record, snapshot.id)
        self._store()

    def _store(self) -> None:
        """Store what version 0 wrote, for these files."""
        records = ProfileRecords(self.home, self.record.resource_id)
        part = written(self._of_these_files(VERSION_0 / "part.arrow").combine_chunks())
        index = self._of_these_files(VERSION_0 / "index.arrow")
        assert {"version", "run"}.isdisjoint(index.column_names)
        index = index.append_column("part", pa.repeat(records.digest(part), index.num_rows))
        records.publish(records.index(), part=part, index=written(index.combine_chunks()))
        columns = v1.PutColumnStatsRequest.FromString((VERSION_0 / "columns.pb").read_bytes())
        assert {each.column_name: each.ndv.exact for each in columns.columns} == {"word": 2, "raw": 2, "id": 3}
        columns.table_id.CopyFrom(self.record.resource_id)
        columns.snapshot_id = self.snapshot_id
        statistics.put_columns(self.home, [columns])
        table = v1.TableStats.FromString((VERSION_0 / "table.pb").read_bytes())
        request = v1.PutTableStatsRequest(table_id=self.record.resource_id, snapshot_id=self.snapshot_id, stats=table)
        statistics.put_table(self.home, request)

    def _of_these_files(self, stored: Path) -> pa.Table:
        found = pa.ipc.open_file(stored).read_all()
        facts = {Path(row["path"]).name: row for row in self.files.select(["path", "size_bytes", "etag"]).to_pylist()}
        names = found["path"].to_pylist()
        for place, field in enumerate(found.schema):
            if field.name in ("path", "size_bytes", "etag"):
                found = found.set_column(
                    place, field, pa.array([facts[name][field.name] for name in names], field.type)
                )
        return found


@pytest.fixture
def old_table(factory: ResourceFactory, tmp_path: Path) -> OldTable:
    return OldTable(factory, tmp_path)


def distinct(report: ProfileReport) -> dict[str, int]:
    return {stats.column_name: stats.ndv.exact for stats in report.merged.columns}


def test_profiles_of_version_0_have_what_this_version_needs(old_table: OldTable, opened_files: list[str]) -> None:
    """The smallest value says whether there is an empty one, so no file is read again."""
    report = old_table.profile()
    assert distinct(report) == {"word": 3, "raw": 3, "id": 3}
    assert (report.files_profiled, report.files_known, opened_files) == (0, 2, [])
    stats = {each.column_name: each for each in report.merged.columns}
    assert stats["word"].properties["quality.ndv"] == "exact"
    assert stats["id"].properties["quality.quantiles"] == "estimate"


def test_statistics_of_version_0_are_computed_again(old_table: OldTable) -> None:
    """Until then, quality rules do not rely on the figures that are wrong in them."""
    table_id = old_table.record.resource_id
    before = statistics.table_statistics(old_table.home, table_id.id, old_table.snapshot_id)
    assert before is not None
    assert statistics.profile_version(before) == 0
    assert statistics.lacks_profiles(before, default=-1)
    old_table.profile()
    after = statistics.table_statistics(old_table.home, table_id.id, old_table.snapshot_id)
    assert after is not None
    assert statistics.profile_version(after) == statistics.CURRENT_VERSION
    assert not statistics.lacks_profiles(after, default=-1)


@pytest.mark.parametrize(
    ("check", "expected"),
    [
        ({"distinct_count": v1.DistinctCountCheck(column="word", max=2)}, v1.RST_FAILED),
        ({"distinct_count": v1.DistinctCountCheck(column="word", min=3)}, v1.RST_PASSED),
        ({"distinct_count": v1.DistinctCountCheck(column="raw", max=2)}, v1.RST_FAILED),
        ({"quantile": v1.QuantileCheck(column="id", quantile=0.5, min=str(2**53 + 3))}, v1.RST_UNKNOWN),
    ],
)
def test_rules_are_open_with_version_0_and_decided_after_a_profile(
    old_table: OldTable, check: dict[str, Any], expected: v1.RuleStatus.ValueType
) -> None:
    table_id = old_table.record.resource_id
    spec = v1.QualityRuleSpec(display_name="r", table_id=table_id, check=v1.RuleCheck(**check), estimates_only=True)
    quality.CALLS.create(old_table.home, v1.CreateRuleRequest(spec=spec))

    def status() -> v1.RuleStatus.ValueType:
        found = quality.check(old_table.home, v1.CheckRulesRequest(table_id=table_id))
        return found.rules[0].result.status

    assert status() == v1.RST_UNKNOWN
    old_table.profile()
    assert status() == expected


def since(version: int, *, of: pa.DataType) -> Callable[[pa.DataType], ValueKind | None]:
    """Profiles of columns of this type are right only since a version."""

    def kind(given: pa.DataType) -> ValueKind | None:
        found = value_kind(given)
        return replace(found, since=version) if found is not None and given == of else found

    return kind


def test_fix_of_a_kind_of_columns_reads_files_again_once(
    old_table: OldTable, opened_files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "value_kind", since(1, of=pa.bool_()))
    assert old_table.profile().files_profiled == 0, "the table has no such column"
    monkeypatch.setattr(snapshots, "value_kind", since(1, of=pa.string()))
    report = old_table.profile()
    assert (report.files_profiled, report.files_known, len(opened_files)) == (2, 0, 2)
    assert distinct(report) == {"word": 3, "raw": 3, "id": 3}
    assert old_table.profile().files_known == 2
    monkeypatch.setattr(store, "CURRENT_VERSION", 2)
    monkeypatch.setattr(snapshots, "value_kind", since(2, of=pa.string()))
    assert [old_table.profile().files_profiled for _ in range(2)] == [2, 0], "version 1 is too old now"


# --- all files again --------------------------------------------------------------------------------------------------


def test_run_that_reads_again_reads_each_file_once(old_table: OldTable, opened_files: list[str]) -> None:
    names = [path.name for path in old_table.paths]
    report = old_table.profile(again="run 1")
    assert (report.files_profiled, report.files_known, sorted(opened_files)) == (2, 0, names)
    assert old_table.profile(again="run 1").files_known == 2, "another snapshot, or a second attempt"
    assert old_table.profile().files_known == 2
    assert sorted(opened_files) == names
    assert old_table.profile(again="run 2").files_profiled == 2
    assert len(opened_files) == 4


def test_new_profile_replaces_the_stored_one(old_table: OldTable) -> None:
    """Otherwise reading the files again would change nothing."""
    records = ProfileRecords(old_table.home, old_table.record.resource_id)
    index = pa.ipc.open_file(pa.py_buffer(records.index().content)).read_all()
    wrong = pa.ipc.open_file(pa.py_buffer(records.part(index["part"][0].as_py()))).read_all()
    place = wrong.column_names.index("null_count")
    wrong = wrong.set_column(place, "null_count", pa.array([0] * wrong.num_rows, pa.int64()))
    place = wrong.column_names.index("theta")
    wrong = wrong.set_column(place, wrong.schema.field("theta"), pa.nulls(wrong.num_rows, pa.large_binary()))
    part = written(wrong.combine_chunks())
    index = index.drop_columns(["part"]).append_column("part", pa.repeat(records.digest(part), index.num_rows))
    records.publish(records.index(), part=part, index=written(index.combine_chunks()))
    assert distinct(old_table.profile())["id"] == 0
    assert distinct(old_table.profile(again="run 1")) == {"word": 3, "raw": 3, "id": 3}
    assert distinct(old_table.profile()) == {"word": 3, "raw": 3, "id": 3}


def test_full_profile_of_a_managed_table_reads_its_files_again(
    managed_lake: ManagedTableFactory, opened_files: list[str]
) -> None:
    table = managed_lake.append(managed_lake.append(managed_lake.create(), 1), 2)
    reconciler = Reconciler(SECRETS, SparkProfile(no_spark), warehouse=managed_lake.warehouse)
    work = worker(managed_lake.factory, jobs_of(managed_lake.factory.realm, reconciler))
    reads = []
    for full in (False, False, True, True):
        request = v1.TriggerReconcileRequest(table_id=id_of(table), full_rescan=full)
        connectors.trigger(managed_lake.home, request)
        assert work.work_once()
        reads.append(len(opened_files))
    assert reads == [2, 2, 4, 6]


def test_full_sync_of_a_connector_reads_its_files_again(
    live_lake: ResourceFactory, tmp_path: Path, opened_files: list[str]
) -> None:
    parquet(tmp_path, "people", id=[1, 2])
    reconciler = Reconciler(SECRETS, SparkProfile(no_spark))
    work = worker(live_lake, jobs_of(live_lake.realm, reconciler))
    triggered(live_lake, str(tmp_path))
    assert work.work_once()
    assert len(opened_files) == 1
    (found,) = mirrored(live_lake).values()
    for full, reads in ((False, 1), (True, 2)):
        request = v1.TriggerReconcileRequest(connector_id=found.upstream.connector_id, full_rescan=full)
        connectors.trigger(live_lake.home, request)
        assert work.work_once()
        assert len(opened_files) == reads
