"""Profiles of difficult files and columns: evolved, partitioned, wide, unreadable or broken."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scope
from skiway.formats import open_source
from skiway.formats.schemas import leaves
from skiway.spark_jobs.profile.column_statistics import BOUND, EXACT
from skiway.spark_jobs.profile.figures import MAX_BOUND_LENGTH
from skiway.spark_jobs.profile.job import profile
from skiway.spark_jobs.profile.job import profiled as profiled_parts
from skiway.spark_jobs.profile.layouts import file_schemas
from skiway.spark_jobs.profile.scans import SMALL, SmallScan
from skiway.spark_jobs.profile.snapshots import merge
from spark_jobs.lakes import SPARK, comparable, comparable_value, opened, oracle, write
from spark_jobs.profile.test_profile import profiled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

WIDTH = 300 if scope.ALL else 130


def test_renamed_added_and_widened_columns_are_matched_by_id(spark: SparkSession, tmp_path: Path) -> None:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.types import LongType, StringType

    old = pa.table({"id": pa.array([1, 2, None], pa.int32()), "name": ["a", "b", "b"]})
    new = pa.table({"id": pa.array([2, 5_000_000_000], pa.int64()), "title": ["c", None], "more": ["x", "y"]})
    with SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w") as catalog:
        catalog.create_namespace("sales")
        table = catalog.create_table("sales.t", old.schema)
        table.append(old)
        with table.update_schema() as change:
            change.update_column("id", LongType())
            change.rename_column("name", "title")
            change.add_column("more", StringType())
        table.append(new)
    with open_source("iceberg", str(tmp_path / "w")) as source:
        handle = source.load(source.namespaces()[0], "t")
        snapshot = handle.current()
        assert snapshot is not None
        rows = handle.read(snapshot).read_all()
        merged = merge(profiled(spark, handle, snapshot), handle.files(snapshot), handle.schema_at(snapshot))
    assert [column.column_name for column in merged.columns] == ["id", "title", "more"]
    for stats in merged.columns:
        computed = oracle(rows, stats.column_name)
        assert (stats.null_count, stats.ndv.exact) == (computed.nulls, computed.distinct)
        assert comparable(stats.min, stats) == computed.values[0]
        assert comparable(stats.max, stats) == computed.values[-1]


def test_partition_values_in_paths_are_profiled_like_columns(spark: SparkSession, tmp_path: Path) -> None:
    plain = pa.table({"n": [1, 2, 3]})
    for year, place in ((2024, "a b%2Fc"), (2025, "é+[x]"), (2025, "__HIVE_DEFAULT_PARTITION__")):
        write(tmp_path / "t" / f"year={year}" / f"place={place}", plain)
    with opened(tmp_path) as (handle, snapshot):
        rows = handle.read(snapshot).read_all()
        profiles = profiled(spark, handle, snapshot)
        merged = merge(profiles, handle.files(snapshot), handle.schema)
    assert profiles["error"].null_count == profiles.num_rows
    for stats in merged.columns:
        computed = oracle(rows, stats.column_name)
        assert (stats.null_count, stats.ndv.exact, stats.value_count) == (computed.nulls, computed.distinct, 9)
        assert comparable(stats.max, stats) == comparable_value(computed.values[-1])
    (year,) = (stats for stats in merged.columns if stats.column_name == "year")
    assert sum(year.histogram.counts) == 9


@pytest.mark.full
def test_columns_of_a_wide_table_are_read_in_groups(spark: SparkSession, tmp_path: Path) -> None:
    wide = pa.table({f"c{number}": [number, None, number + 1] for number in range(WIDTH)})
    write(tmp_path / "t", wide, wide)
    with opened(tmp_path) as (handle, snapshot):
        profiles = profiled(spark, handle, snapshot, columns=60, top=0)
        merged = merge(profiles, handle.files(snapshot), handle.schema)
    assert profiles.num_rows == 2 * WIDTH
    assert [(c.min, c.max, c.null_count, c.ndv.exact) for c in merged.columns] == [
        (str(number), str(number + 1), 2, 2) for number in range(WIDTH)
    ]


@pytest.mark.parametrize("small", [None, SMALL], ids=["on Spark", "in process"])
def test_broken_and_missing_files_are_reported_and_the_others_are_profiled(
    spark: SparkSession, tmp_path: Path, small: SmallScan | None
) -> None:
    plain = pa.table({"n": pa.array(range(1000))})
    paths = write(tmp_path / "t", *[plain] * 6, compression="none", use_dictionary=False)
    with opened(tmp_path) as (handle, snapshot):
        handle.files(snapshot)
        page = pq.ParquetFile(paths[3]).metadata.row_group(0).column(0).data_page_offset
        paths[1].unlink()
        damage(paths[2], at=0, size=paths[2].stat().st_size)
        damage(paths[3], at=page, size=64)  # the footer is intact: only a scan notices
        pq.write_table(plain.slice(1), paths[4])
        schemas = file_schemas(handle, snapshot)
        parts = profiled_parts(
            lambda: spark,
            handle.files(snapshot),
            handle.schema,
            schemas=schemas,
            access=handle.file_access,
            small=small,
        )
        profiles = pa.concat_tables(parts).sort_by("path")
        merged = merge(profiles, handle.files(snapshot), handle.schema)
    failed = profiles.filter(profiles["error"].is_valid())
    assert failed["path"].to_pylist() == [str(path) for path in paths[1:5]]
    assert failed["column_id"].null_count == 4
    for reason, wanted in zip(failed["error"].to_pylist(), ("missing", "corrupt", "corrupt", "changed"), strict=True):
        assert wanted in reason
    assert profiles.num_rows == 6
    (stats,) = merged.columns
    assert (stats.properties["rows.profiled"], stats.properties["rows.total"]) == ("2000", "6000")
    assert stats.properties["quality.ndv"] == BOUND
    assert stats.ndv.approx.estimate == 1000
    assert stats.ndv.approx.confidence_upper == 5000
    assert (stats.min, stats.max, stats.properties["quality.max"]) == ("0", "999", EXACT)


def damage(path: Path, *, at: int, size: int) -> None:
    """Overwrite some bytes without changing the size or modification time."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_profile_succeeds_if_every_file_fails(spark: SparkSession, tmp_path: Path) -> None:
    (path,) = write(tmp_path / "t", pa.table({"a": range(1000), "b": range(1000)}), compression="none")
    with opened(tmp_path) as (handle, snapshot):
        handle.files(snapshot)
        damage(path, at=4, size=2000)
        found = profiled(spark, handle, snapshot, columns=1)
    assert found["column_id"].to_pylist() == [None]


def test_file_with_an_unexpected_row_count_is_reported(spark: SparkSession, tmp_path: Path) -> None:
    paths = write(tmp_path / "t", *[pa.table({"n": [1, 2, 3]})] * 3)
    with opened(tmp_path) as (handle, snapshot):
        hidden = paths[2].rename(paths[2].with_name("_hidden.parquet"))  # which Spark itself would ignore
        files = handle.files(snapshot)
        for name, values in (("row_count", [3, 2, 3]), ("path", [str(paths[0]), str(paths[1]), str(hidden)])):
            place = files.column_names.index(name)
            files = files.set_column(place, name, pa.array(values, files.schema.field(name).type))
        found = profile(spark, files, handle.schema, schemas=file_schemas(handle, snapshot))
    errors = dict(zip(found["path"].to_pylist(), found["error"].to_pylist(), strict=True))
    assert errors == {
        str(paths[0]): None,
        str(paths[1]): "3 rows were found in it, but the table has 2",
        str(hidden): None,
    }


def test_columns_that_cannot_be_profiled_are_rejected_individually(spark: SparkSession, tmp_path: Path) -> None:
    table = pa.table({"half": pa.array([1.0, 2.0], pa.float16()), "n": [1, 2]})
    write(tmp_path / "t", table)
    with opened(tmp_path) as (handle, snapshot):
        profiles = profiled(spark, handle, snapshot)
        names = {leaf.id: leaf.path[0] for leaf in leaves(handle.schema.arrow)}
    errors = {names[row["column_id"]]: row["error"] for row in profiles.to_pylist()}
    assert errors == {"half": "halffloat cannot be profiled", "n": None}


def test_long_texts_are_truncated_to_bounds(spark: SparkSession, tmp_path: Path) -> None:
    words = ["a" * 1000, "b" * 1000, "\U0010ffff" * 300]
    write(tmp_path / "t", pa.table({"w": words[:2]}), pa.table({"w": words[2:]}), write_statistics=False)
    with opened(tmp_path) as (handle, snapshot):
        profiles = profiled(spark, handle, snapshot)
    first, last = profiles.to_pylist()
    assert first["min"] == "a" * MAX_BOUND_LENGTH
    assert first["max"] == "b" * (MAX_BOUND_LENGTH - 1) + "c"
    assert first["max"] > words[1]
    assert first["exact"] is False
    assert last["max"] is None  # there is no upper bound
    assert first["top"] == []


def test_session_settings_are_restored(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "t", pa.table({"n": [1]}))
    before = {name: spark.conf.get(name) for name in ("spark.sql.ansi.enabled", "spark.sql.caseSensitive")}
    with opened(tmp_path) as (handle, snapshot):
        profiled(spark, handle, snapshot)
    assert before == {name: spark.conf.get(name) for name in before}
    assert before["spark.sql.ansi.enabled"] == "true"
