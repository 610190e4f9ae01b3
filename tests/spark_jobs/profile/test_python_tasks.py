"""Python in tasks and in this process computes the figures that Spark's aggregates compute."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from skiway.errors import PreconditionFailed
from skiway.formats import Content, TableSchema
from skiway.formats.schemas import with_id
from skiway.spark_jobs.profile import job, python_scans
from skiway.spark_jobs.profile import python_scans as python_tasks
from skiway.spark_jobs.profile.python_scans import tasks_have_this_python
from skiway.spark_jobs.profile.scanning import Scan, ScanResult, run_scan
from skiway.spark_jobs.profile.sketches import union
from skiway.spark_jobs.summaries.files import FilePart
from spark_jobs.lakes import SPARK, opened, rows_of_all_types, write
from spark_jobs.profile.test_profile import profiled, profiled_in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

PATIENCE_S = 20
SKETCHES = ("theta", "kll", "top")


def many_values(seed: int, rows: int = 20_000) -> pa.Table:
    """More distinct values than a sketch keeps, some of them frequent, and difficult texts, decimals and times."""
    rng = np.random.default_rng(seed)
    zipf = rng.zipf(1.3, rows) % 100_000
    return pa.table(
        {
            "long": zipf - 50,
            "text": pa.array([["", "é" * 300, f"value {number}", "x" * (number % 40)][number % 4] for number in zipf]),
            "tiny": pa.array([Decimal(int(number)).scaleb(-12) for number in zipf], pa.decimal128(30, 12)),
            "money": pa.array([Decimal(int(number) - 500).scaleb(-2) for number in zipf], pa.decimal128(12, 2)),
            "double": np.where(zipf == 1, np.nan, np.where(zipf == 2, -0.0, zipf - 3.0)),
            "seconds": pa.array((zipf % 86_400).astype(np.int32)).cast(pa.time32("s")).cast(pa.time32("ms")),
            "before 1970": pa.array(-zipf.astype(np.int64) * 10**9 - 1, pa.timestamp("ns")),
            "inner": pa.array([None if number == 3 else {"a.b": {"c": int(number)}} for number in zipf]),
        }
    )


class Profiles(NamedTuple):
    """The profiles of a table: by Python in this process without Spark, by Python in tasks, where Spark may read nothing, and by Spark."""

    in_process: pa.Table
    in_tasks: pa.Table
    by_spark: pa.Table


ProfilesOf: TypeAlias = Callable[[Path], Profiles]


@pytest.fixture
def profiles_of(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> ProfilesOf:
    """Computes the profiles of the table in a folder."""

    def compute(folder: Path) -> Profiles:
        with opened(folder) as (handle, snapshot):
            in_process = profiled_in_process(handle, snapshot)
            with monkeypatch.context() as changed:
                changed.setattr(python_tasks, "run_scan", forbidden)
                in_tasks = profiled(spark, handle, snapshot)
            with monkeypatch.context() as changed:
                changed.setattr(job, "scan_files", run_scan)
                return Profiles(in_process, in_tasks, profiled(spark, handle, snapshot))

    return compute


def forbidden(*_: object) -> Any:
    raise AssertionError("Spark read the files itself")


def assert_all_alike(profiles: Profiles) -> None:
    assert_alike(profiles.in_tasks, profiles.by_spark)
    assert_alike(profiles.in_process, profiles.by_spark)


def assert_alike(by_python: pa.Table, by_spark: pa.Table) -> None:
    plain = [name for name in by_spark.column_names if name not in SKETCHES]
    for name in plain:
        assert by_python[name].to_pylist() == by_spark[name].to_pylist(), name
    for place in range(by_spark.num_rows):
        ours, theirs = ({name: table[name][place].as_py() for name in SKETCHES} for table in (by_python, by_spark))
        assert (ours["theta"] is None) == (theirs["theta"] is None)
        assert theirs["theta"] is None or union([ours["theta"]]) == union([theirs["theta"]])
        assert (ours["kll"] is None) == (theirs["kll"] is None)
        if theirs["kll"] is not None:
            assert_same_ranks(ours["kll"], theirs["kll"])
        assert_alike_top(ours["top"] or [], theirs["top"] or [], error=by_spark["row_count"][place].as_py() // 768)


def assert_alike_top(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], *, error: int) -> None:
    """The same counts. Which values of the same count are listed is arbitrary, and for Spark, NULL is one of them."""
    assert len(theirs) <= len(ours) <= len(theirs) + 1
    for one, other in zip(ours, theirs, strict=False):
        assert abs(one["count"] - other["count"]) <= error
    clear = {each["value"]: each["count"] for each in theirs if each["count"] > theirs[-1]["count"] + error}
    found = {each["value"]: each["count"] for each in ours}
    assert all(abs(found[value] - count) <= error for value, count in clear.items())


def assert_same_ranks(ours: bytes, theirs: bytes) -> None:
    some, others = map(datasketches.kll_doubles_sketch.deserialize, (ours, theirs))
    assert (some.n, some.k) == (others.n, others.k)
    if some.n:
        assert (some.get_min_value(), some.get_max_value()) == (others.get_min_value(), others.get_max_value())
        for rank in (0.1, 0.5, 0.9):
            value = some.get_quantile(rank)
            near = 3 * some.normalized_rank_error(False)  # both are estimates
            assert others.get_rank(value, False) - near <= rank <= others.get_rank(value, True) + near


def test_figures_of_all_types_are_those_of_spark(profiles_of: ProfilesOf, tmp_path: Path) -> None:
    write(tmp_path / "t", rows_of_all_types(1), rows_of_all_types(2).slice(0, 0), rows_of_all_types(3, 50))
    assert_all_alike(profiles_of(tmp_path))


def test_figures_of_many_values_are_those_of_spark(profiles_of: ProfilesOf, tmp_path: Path) -> None:
    write(tmp_path / "t" / "place=a%20b" / "day=2024-02-29", many_values(1))
    write(tmp_path / "t" / "place=__HIVE_DEFAULT_PARTITION__" / "day=2024-03-01", many_values(2))
    assert_all_alike(profiles_of(tmp_path))


def test_parts_of_a_large_file_are_merged(
    profiles_of: ProfilesOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write(tmp_path / "t", many_values(1, 3000), row_group_size=500)
    monkeypatch.setattr(python_scans, "_PART_BYTES", path.stat().st_size // 4)
    found = profiles_of(tmp_path)
    assert pc.unique(found.in_tasks["row_count"]).to_pylist() == [3000]
    assert_all_alike(found)


def test_spark_reads_files_that_python_cannot_read(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task that reads a file raises an error, or all of them do."""
    paths = write(tmp_path / "t", *[pa.table({"n": [1, 2, 2]})] * 2)
    read: list[str] = []

    def scan_by_spark(session: SparkSession, scan: Scan, files: pa.Table) -> ScanResult:
        read.extend(files["path"].to_pylist())
        return run_scan(session, scan, files)

    monkeypatch.setattr(python_tasks, "run_scan", scan_by_spark)
    broken = str(paths[1])
    with opened(tmp_path) as (handle, snapshot):
        with monkeypatch.context() as changed:
            changed.setattr(
                python_scans,
                "FilePart",
                lambda number, path, *rest: FilePart(number, path + ("x" if path == broken else ""), *rest),
            )
            partly = profiled(spark, handle, snapshot)
        assert read == [broken]
        with monkeypatch.context() as changed:
            changed.setattr(python_tasks, "summarized", pickled_with_an_error)
            wholly = profiled(spark, handle, snapshot)
        assert sorted(read[1:]) == [str(path) for path in paths]
    for found in (partly, wholly):
        assert found["error"].to_pylist() == [None, None]
        assert [top for (top, *_) in found["top"].to_pylist()] == [{"value": "2", "count": 2}] * 2


class _NotThere:
    """Cannot be loaded in a task, like a module that is missing there."""

    def __reduce__(self) -> Any:
        return __import__, ("a_module_that_does_not_exist",)


pickled_with_an_error: Any = _NotThere()


@pytest.mark.parametrize(
    ("master", "python", "answer"),
    [
        ("local[2]", sys.executable, True),
        ("local", "/usr/bin/python3.9", False),
        ("spark://a:7077", sys.executable, False),
    ],
)
def test_tasks_must_have_this_python(master: str, python: str, answer: bool) -> None:
    context = SimpleNamespace(master=master, pythonExec=python)
    assert tasks_have_this_python(SimpleNamespace(_sc=context)) is answer  # type: ignore[arg-type]
    assert not tasks_have_this_python(SimpleNamespace())  # type: ignore[arg-type]


def test_footers_are_read_while_spark_starts() -> None:
    """Both wait for each other's beginning. No file can be read, so that no session is needed."""
    reading, starting = threading.Event(), threading.Event()

    def footer(path: str) -> pa.Schema:
        reading.set()
        assert starting.wait(PATIENCE_S)
        raise PreconditionFailed(f"{path} is missing")

    def spark() -> Any:
        starting.set()
        assert reading.wait(PATIENCE_S)

    schema = TableSchema.of(pa.schema([with_id(pa.field("n", pa.int64()), 1)]))
    files = pa.table({"path": ["a", "b"], "size_bytes": [1, 1], "etag": ["", ""], "format": ["parquet"] * 2})
    files = files.append_column("content", pa.array([Content.DATA] * 2))
    (found,) = job.profiled(spark, files, schema, schemas=footer)
    assert found["error"].to_pylist() == ["a is missing", "b is missing"]
