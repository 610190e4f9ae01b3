"""Tasks of Spark compute the figures that this process computes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import datasketches
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from skiway.errors import PreconditionFailed
from skiway.formats import Content, TableSchema
from skiway.formats.schemas import with_id
from skiway.spark_jobs.profile import job, scans
from skiway.spark_jobs.profile.sketches import union
from skiway.spark_jobs.summaries.files import FilePart, summarized
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
    """The profiles of a table: by this process without Spark, and by tasks."""

    in_process: pa.Table
    in_tasks: pa.Table


def profiles_of(spark: SparkSession, folder: Path) -> Profiles:
    """The profiles of the table in a folder."""
    with opened(folder) as (handle, snapshot):
        return Profiles(profiled_in_process(handle, snapshot), profiled(spark, handle, snapshot))


def assert_alike(one: pa.Table, other: pa.Table) -> None:
    plain = [name for name in other.column_names if name not in SKETCHES]
    for name in plain:
        assert one[name].to_pylist() == other[name].to_pylist(), name
    for place in range(other.num_rows):
        ours, theirs = ({name: table[name][place].as_py() for name in SKETCHES} for table in (one, other))
        assert (ours["theta"] is None) == (theirs["theta"] is None)
        assert theirs["theta"] is None or union([ours["theta"]]) == union([theirs["theta"]])
        assert (ours["kll"] is None) == (theirs["kll"] is None)
        if theirs["kll"] is not None:
            assert_same_ranks(ours["kll"], theirs["kll"])
        assert_alike_top(ours["top"] or [], theirs["top"] or [], error=other["row_count"][place].as_py() // 768)


def assert_alike_top(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], *, error: int) -> None:
    """The same counts. Which values of the same count are listed is arbitrary."""
    for one, other in zip(ours, theirs, strict=True):
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


def test_figures_of_all_types_are_alike(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "t", rows_of_all_types(1), rows_of_all_types(2).slice(0, 0), rows_of_all_types(3, 50))
    assert_alike(*profiles_of(spark, tmp_path))


def test_figures_of_many_values_are_alike(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "t" / "place=a%20b" / "day=2024-02-29", many_values(1))
    write(tmp_path / "t" / "place=__HIVE_DEFAULT_PARTITION__" / "day=2024-03-01", many_values(2))
    assert_alike(*profiles_of(spark, tmp_path))


def test_parts_of_a_large_file_are_merged(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (path,) = write(tmp_path / "t", many_values(1, 3000), row_group_size=500)
    whole = profiles_of(spark, tmp_path)
    monkeypatch.setattr(scans, "_PART_BYTES", path.stat().st_size // 4)
    in_parts = profiles_of(spark, tmp_path)
    assert pc.unique(in_parts.in_tasks["row_count"]).to_pylist() == [3000]
    for found in in_parts:
        assert_alike(found, whole.in_process)


def summarized_unless_last() -> Callable[..., pa.RecordBatch]:
    """A function that ends the process that reads the file `last.parquet`. Its code is sent to tasks, which cannot import this module."""

    def run(file: FilePart, *arguments: Any, **named: Any) -> pa.RecordBatch:
        if file.path.endswith("last.parquet"):
            os._exit(1)
        return summarized(file, *arguments, **named)

    return run


def test_file_that_ends_its_task_fails_alone(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, last, _ = write(tmp_path / "t", *[pa.table({"n": [1, 2, 2]})] * 3)
    last = last.rename(last.with_name("last.parquet"))
    monkeypatch.setattr(scans, "summarized", summarized_unless_last())
    with opened(tmp_path) as (handle, snapshot):
        found = profiled(spark, handle, snapshot)
    assert found.filter(found["error"].is_valid())["path"].to_pylist() == [str(last)]
    assert found["row_count"].drop_null().to_pylist() == [3, 3]


class _NotThere:
    """Cannot be loaded in a task, like a module that is missing there."""

    def __reduce__(self) -> Any:
        return __import__, ("a_module_that_does_not_exist",)


def test_tasks_without_skiway_are_explained(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "t", pa.table({"n": [1]}))
    monkeypatch.setattr(scans, "summarized", _NotThere())
    with (
        opened(tmp_path) as (handle, snapshot),
        pytest.raises(PreconditionFailed, match="with Skiway, on each machine"),
    ):
        profiled(spark, handle, snapshot)


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
