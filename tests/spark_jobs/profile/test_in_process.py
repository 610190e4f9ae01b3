"""Small profiles, which this process computes itself. No test here has a Spark session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from metastore.resource_factory import ResourceFactory
from metastore.upstreams import SECRETS, mirrored, parquet
from skiway.config import load
from skiway.errors import Cancelled
from skiway.formats import TableSchema
from skiway.formats.files import Files, Reach
from skiway.formats.readers import pages
from skiway.formats.schemas import leaves, with_id
from skiway.metastore import jobs, quality, statistics
from skiway.metastore.jobs.attempts import Amounts
from skiway.metastore.jobs.queue import JobRules
from skiway.metastore.reconcile.reconciler import Reconciler
from skiway.model import v1
from skiway.security.source_access import location
from skiway.spark_jobs.profile import scans
from skiway.spark_jobs.profile.figures import PROFILE, failed_files
from skiway.spark_jobs.profile.job import profiled
from skiway.spark_jobs.profile.layouts import file_schemas, layout_of
from skiway.spark_jobs.profile.scans import SMALL, InProcessScans, Scan, ScanResult, SmallScan
from skiway.spark_jobs.profile.snapshots import ProfileReport, profile_snapshot
from skiway.spark_jobs.profile.store import ProfileStore
from skiway.spark_jobs.summaries import files as summary_files
from skiway.spark_jobs.worker import SparkProfile, jobs_of
from spark_jobs.lakes import opened, write
from spark_jobs.profile.test_failures import damage
from spark_jobs.profile.test_profile import no_spark
from spark_jobs.test_sync_worker import job, triggered, until, worker

SOON_S = 20
PAGE = Path(__file__).parents[3] / "docs" / "statistics.md"


class Table:
    """A table of Parquet files in a folder, and its record in the metastore."""

    def __init__(self, factory: ResourceFactory, folder: Path) -> None:
        self.home, self.folder, self.factory = factory.home, folder, factory
        self.record = factory.table("t")

    def profile(self, **how: Any) -> ProfileReport:
        with opened(self.folder) as (handle, snapshot):
            self.factory.snapshot(self.record, snapshot.id)
            given = {"spark": no_spark} | how
            return profile_snapshot(self.home, self.record.resource_id, snapshot, handle=handle, **given)

    def unknown_files(self) -> int:
        with opened(self.folder) as (handle, snapshot):
            return ProfileStore(self.home, self.record.resource_id).unknown(handle.files(snapshot)).num_rows


@pytest.fixture
def table(factory: ResourceFactory, tmp_path: Path) -> Table:
    return Table(factory, tmp_path)


def test_small_profile_starts_no_spark_and_reports_progress(table: Table) -> None:
    paths = write(table.folder / "t", *[pa.table({"n": [1, 2, 3], "word": ["a", "b", "b"]})] * 2)
    progress: list[tuple[Amounts, Amounts]] = []
    report = table.profile(on_progress=lambda *now: progress.append(now))
    everything = Amounts(2, 6, sum(path.stat().st_size for path in paths))
    assert progress == [(Amounts(), everything), (everything, everything)]
    assert (report.files_profiled, report.failed) == (2, {})
    assert {stats.column_name: stats.ndv.exact for stats in report.merged.columns} == {"n": 3, "word": 2}


def test_rules_count_the_empty_value(factory: ResourceFactory, tmp_path: Path) -> None:
    write(tmp_path / "t", pa.table({"word": ["", "a"]}), pa.table({"word": ["b"]}))
    table = Table(factory, tmp_path)
    with opened(tmp_path) as (handle, _):
        table.record = factory.table("words", schema_json=handle.schema.json)
    checks = {
        "at most 2": v1.RuleCheck(distinct_count=v1.DistinctCountCheck(column="word", max=2)),
        "at least 3": v1.RuleCheck(distinct_count=v1.DistinctCountCheck(column="word", min=3)),
        "unique": v1.RuleCheck(unique=v1.UniqueCheck(columns=["word"])),
    }
    for name, check in checks.items():
        spec = v1.QualityRuleSpec(display_name=name, table_id=table.record.resource_id, check=check)
        quality.CALLS.create(table.home, v1.CreateRuleRequest(spec=spec))
    table.profile()
    found = quality.check(table.home, v1.CheckRulesRequest(table_id=table.record.resource_id)).rules
    assert {each.result.method for each in found} == {v1.RMT_PROFILE}
    assert {each.rule.display_name: each.result.status for each in found} == {
        "at most 2": v1.RST_FAILED,
        "at least 3": v1.RST_PASSED,
        "unique": v1.RST_PASSED,
    }


# --- what is small ----------------------------------------------------------------------------------------------------

PLAIN = TableSchema.of(pa.schema([with_id(pa.field(name, pa.int64()), number) for number, name in enumerate("ab", 1)]))
LISTS = TableSchema.of(pa.schema([with_id(pa.field("a", pa.list_(with_id(pa.field("element", pa.int64()), 2))), 1)]))


def listed(*paths: str, size: int | None = 50, rows: int | None = 12_000) -> pa.Table:
    numbers = {"size_bytes": [size] * len(paths), "row_count": [rows] * len(paths)}
    return pa.table({"path": list(paths)} | {name: pa.array(each, pa.int64()) for name, each in numbers.items()})


@pytest.mark.parametrize(
    ("files", "schema", "answer"),
    [
        pytest.param(listed("/a", "/b"), PLAIN, True, id="at the limits"),
        pytest.param(listed(), PLAIN, True, id="no files"),
        pytest.param(listed("/a", "/b", "/c", size=1, rows=1), PLAIN, False, id="too many small files"),
        pytest.param(listed("/a", "/b", size=51), PLAIN, False, id="too many bytes in sum"),
        pytest.param(listed("/a", "/b", rows=12_001), PLAIN, False, id="too many values in sum"),
        pytest.param(listed("/a", size=None), PLAIN, False, id="an unknown size"),
        pytest.param(listed("/a", rows=None), PLAIN, False, id="an unknown number of rows"),
        pytest.param(listed("/a"), LISTS, False, id="lists"),
        pytest.param(listed("/data/_a"), PLAIN, True, id="a file that Spark would hide"),
        pytest.param(listed("s3://bucket/a"), PLAIN, True, id="a bucket"),
    ],
)
def test_small_scans_are_within_all_limits(files: pa.Table, schema: TableSchema, answer: bool) -> None:
    assert SmallScan(bytes=100, values=48_000).includes(files, schema) is answer


def test_setting_and_documentation_have_these_limits() -> None:
    assert load().profiles.in_process_bytes == SMALL.bytes
    page = PAGE.read_text()
    assert f"- {SMALL.bytes >> 20} MiB (`profiles.in_process_bytes`" in page
    assert f"- {SMALL.values // 10**6} million values" in page
    assert f"at least {scans._LEAST_ROWS:,} rows" in page


class SparkWasStarted(Exception):
    """Raised instead of starting Spark."""


def starting() -> Any:
    raise SparkWasStarted


def test_larger_profile_uses_spark(table: Table) -> None:
    paths = write(table.folder / "t", *[pa.table({"n": [1, 2, 3]})] * 2)
    size = sum(path.stat().st_size for path in paths)
    for too_small in (SmallScan(bytes=size - 1), SmallScan(values=19_999), None):
        with pytest.raises(SparkWasStarted):
            table.profile(spark=starting, small=too_small)
    assert table.profile(small=SmallScan(bytes=size, values=20_000)).files_profiled == 2


def test_only_new_files_count(table: Table) -> None:
    """A small addition to a large table is small."""
    rows = pa.table({"n": [1, 2, 3]})
    (first,) = write(table.folder / "t", rows)
    table.profile()
    pq.write_table(rows, table.folder / "t" / "new.parquet")
    assert table.profile(small=SmallScan(bytes=first.stat().st_size)).files_profiled == 1


# --- cancellation -----------------------------------------------------------------------------------------------------


def test_cancelled_scan_stops_within_a_file(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary_files, "_BATCH_ROWS", 10)
    write(table.folder / "t", pa.table({"n": range(100)}))
    asked: list[None] = []

    def cancelled() -> bool:
        asked.append(None)
        return len(asked) == 3

    with pytest.raises(Cancelled):
        table.profile(cancelled=cancelled)
    assert (len(asked), table.unknown_files()) == (3, 1)
    assert table.profile(cancelled=lambda: False).files_profiled == 1


# --- as a job of a worker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_most", "state"), [(0, v1.JS_FAILED), (None, v1.JS_SUCCEEDED)])
def test_worker_reads_as_much_as_its_setting_says(
    live_lake: ResourceFactory, tmp_path: Path, at_most: int | None, state: v1.JobState.ValueType
) -> None:
    parquet(tmp_path, "people", id=[1, 2])
    job_id = triggered(live_lake, str(tmp_path))
    reconciler = Reconciler(SECRETS, SparkProfile(starting, in_process_bytes=at_most))
    assert worker(live_lake, jobs_of(live_lake.realm, reconciler)).work_once()
    assert job(live_lake, job_id).state == state, job(live_lake, job_id)


@pytest.mark.parametrize(("stops", "state"), [("the job", v1.JS_CANCELLED), ("the worker", v1.JS_QUEUED)])
def test_job_that_must_stop_ends_as_cancelled_or_returns_to_the_queue(
    live_lake: ResourceFactory, tmp_path: Path, stops: str, state: v1.JobState.ValueType
) -> None:
    parquet(tmp_path, "people", id=[1, 2])
    job_id, begun = triggered(live_lake, str(tmp_path)), threading.Event()

    def profile(*args: Any, cancelled: Callable[[], bool], **more: Any) -> ProfileReport:
        begun.set()
        until(cancelled)
        return SparkProfile(no_spark)(*args, cancelled=cancelled, **more)

    working = worker(live_lake, jobs_of(live_lake.realm, Reconciler(SECRETS, profile)), JobRules(lease_s=0.6))
    working.start()
    assert begun.wait(SOON_S)
    if stops == "the job":
        jobs.cancel(live_lake.home, v1.CancelReconcileJobRequest(job_id=job_id))
        until(lambda: job(live_lake, job_id).state != v1.JS_RUNNING, SOON_S)
    assert working.stop()
    assert job(live_lake, job_id).state == state
    (found,) = mirrored(live_lake).values()
    request = v1.ListColumnStatsRequest(table_id=found.resource_id, snapshot=v1.SnapshotRef(special=v1.SS_CURRENT))
    assert not statistics.list_columns(live_lake.home, request).columns


# --- files that this process cannot read ------------------------------------------------------------------------------


def scanned(folder: Path, access: Files | None = None) -> tuple[list[str], list[str]]:
    """Scan the files of the table in a folder: the names of those that were read here, and of those that are left to Spark."""

    left: list[str] = []

    def on_spark(_scan: Scan, files: pa.Table) -> ScanResult:
        left.extend(names(files))
        return ScanResult(PROFILE.empty_table(), files.slice(0, 0), failed_files(files, "left to Spark"))

    with opened(folder) as (handle, snapshot):
        columns = tuple(leaves(handle.schema.arrow))
        scan = Scan(layout_of(handle.schema.arrow, columns), columns)
        _, read, failed = InProcessScans(on_spark, access or handle.file_access, lambda: False)(
            scan, handle.files(snapshot)
        )
    assert names(failed) == left
    return names(read), left


def names(files: pa.Table) -> list[str]:
    return [Path(path).name for path in files["path"].to_pylist()]


def test_only_files_that_cannot_be_read_are_left_to_spark(tmp_path: Path) -> None:
    paths = write(tmp_path / "t", *[pa.table({"n": range(1000)})] * 3, compression="none", use_dictionary=False)
    page = pq.ParquetFile(paths[1]).metadata.row_group(0).column(0).data_page_offset
    damage(paths[1], at=page, size=64)
    assert scanned(tmp_path) == ([paths[0].name, paths[2].name], [paths[1].name])


def test_file_with_too_large_pages_is_left_to_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tasks of Spark decompress them in other processes."""
    paths = write(tmp_path / "t", *[pa.table({"n": range(rows)}) for rows in (10, 1000)], use_dictionary=False)
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 1_000)
    assert scanned(tmp_path) == ([paths[0].name], [paths[1].name])


def test_file_with_another_number_of_rows_has_failed(table: Table) -> None:
    """Spark would find the same number, so it is not started."""
    write(table.folder / "t", pa.table({"n": [1, 2, 3]}))
    with opened(table.folder) as (handle, snapshot):
        files = handle.files(snapshot)
        files = files.set_column(files.column_names.index("row_count"), "row_count", pa.array([2], pa.int64()))
        schemas = file_schemas(handle, snapshot)
        (found,) = profiled(no_spark, files, handle.schema, schemas=schemas, access=handle.file_access, small=SMALL)
    assert found["error"].to_pylist() == ["3 rows were found in it, but the table has 2"]


def test_files_are_opened_with_the_access_of_their_source(tmp_path: Path) -> None:
    (path,) = write(tmp_path / "t", pa.table({"n": [1]}))
    for folder, found in ((tmp_path, ([path.name], [])), (tmp_path / "other", ([], [path.name]))):
        access = Files({}, Reach((location(str(folder)),)))
        assert scanned(tmp_path, access) == found
