"""Profiles by Spark and by this process, compared with DuckDB over the same files."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from skiway.formats import Snapshot, TableHandle
from skiway.formats.schemas import leaves
from skiway.model import v1
from skiway.spark_jobs.profile.column_statistics import EXACT
from skiway.spark_jobs.profile.job import Budget, profile
from skiway.spark_jobs.profile.job import profiled as profiled_parts
from skiway.spark_jobs.profile.layouts import file_schemas
from skiway.spark_jobs.profile.scans import SMALL
from skiway.spark_jobs.profile.sketches import distinct_count, union
from skiway.spark_jobs.profile.snapshots import merge
from spark_jobs.lakes import SPARK, comparable, comparable_value, opened, oracle, quantiles, rows_of_all_types, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = SPARK

RNG = ["small", "number", "long", "unsigned", "float", "double", "price", "huge", "day", "moment", "instant", "millis"]
COLUMNS = [*RNG, "nanos", "clock", "word", "large", "bytes", "fixed", "uuid", "flag", "void", 'box."in.side"', "kinds"]


def profiled(spark: SparkSession, handle: TableHandle, snapshot: Snapshot, **budget: int) -> pa.Table:
    return profile(
        spark,
        handle.files(snapshot),
        handle.schema_at(snapshot),
        schemas=file_schemas(handle, snapshot),
        specs=handle.partition_specs,
        budget=Budget(**budget),
    )


def profiled_in_process(handle: TableHandle, snapshot: Snapshot) -> pa.Table:
    """The same profiles, without Spark."""
    parts = profiled_parts(
        no_spark,
        handle.files(snapshot),
        handle.schema_at(snapshot),
        schemas=file_schemas(handle, snapshot),
        specs=handle.partition_specs,
        access=handle.file_access,
        small=SMALL,
    )
    return pa.concat_tables(parts).sort_by([("path", "ascending"), ("column_id", "ascending")])


def no_spark() -> Any:
    raise AssertionError("Spark was started")


class Lake:
    """A table of all types in five files, one of them empty, with its profile and statistics."""

    def __init__(self, compute: Callable[[TableHandle, Snapshot], pa.Table], folder: Path) -> None:
        tables = [rows_of_all_types(seed) for seed in range(4)]
        self.rows = pa.concat_tables(tables)
        self.paths = write(folder / "t", *tables, tables[0].slice(0, 0))
        with opened(folder) as (handle, snapshot):
            self.profiles = compute(handle, snapshot)
            self.merged = merge(self.profiles, handle.files(snapshot), handle.schema)
            self.ids = {".".join(leaf.path): leaf.id for leaf in leaves(handle.schema.arrow)}

    def column(self, path: str) -> v1.ColumnStats:
        wanted = path.replace('"', "")
        return next(column for column in self.merged.columns if column.column_name == wanted)

    def sketches(self, name: str, kind: str) -> list[bytes]:
        mine = self.profiles.filter(pc.field("column_id") == self.ids[name])
        return [sketch for sketch in mine[kind].to_pylist() if sketch is not None]


@pytest.fixture(scope="module", params=["on Spark", "in process"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    spark = request.getfixturevalue("spark") if request.param == "on Spark" else None
    compute = partial(profiled, spark) if spark is not None else profiled_in_process
    return Lake(compute, tmp_path_factory.mktemp("lake"))


@pytest.mark.parametrize("path", COLUMNS)
def test_counts_and_bounds_match_duckdb(lake: Lake, path: str) -> None:
    computed, stats = oracle(lake.rows, path), lake.column(path)
    assert stats.value_count == computed.rows == lake.merged.table.row_count
    assert stats.null_count == computed.nulls
    assert stats.nan_count == computed.nans
    if computed.values:
        assert comparable(stats.min, stats) == comparable_value(computed.values[0])
        assert comparable(stats.max, stats) == comparable_value(computed.values[-1])
        assert {stats.properties["quality.min"], stats.properties["quality.max"]} == {EXACT}
    else:
        assert not stats.HasField("min")
        assert not stats.HasField("max")


@pytest.mark.parametrize("path", COLUMNS)
def test_distinct_count_is_within_the_reported_bounds(lake: Lake, path: str) -> None:
    computed, stats = oracle(lake.rows, path), lake.column(path)
    if stats.ndv.WhichOneof("mode") == "exact":
        assert stats.ndv.exact == computed.distinct
    else:
        assert stats.ndv.approx.confidence_lower <= computed.distinct <= stats.ndv.approx.confidence_upper
        assert stats.ndv.approx.confidence_upper < computed.distinct * 1.1
        assert stats.ndv.approx.rows_seen == stats.ndv.approx.rows_total == computed.rows


@pytest.mark.parametrize("path", [*RNG, "nanos", "clock", 'box."in.side"'])
def test_quantiles_and_histogram_are_within_the_rank_error(lake: Lake, path: str) -> None:
    stats = lake.column(path)
    values = [comparable_value(value) for value in oracle(lake.rows, path).values]
    allowed = float(stats.properties["quantiles.rank_error"]) * 1.5
    for rank, value in quantiles(stats).items():
        least, most = bisect_left(values, value) / len(values), bisect_right(values, value) / len(values)
        assert least - allowed <= rank <= most + allowed, (rank, value)
    assert sum(stats.histogram.counts) == len(values)
    done = 0
    for upper, count in zip(list(stats.histogram.bounds)[1:], stats.histogram.counts, strict=True):
        done += count
        value = comparable(upper, stats)
        least, most = bisect_left(values, value) / len(values), bisect_right(values, value) / len(values)
        assert least - allowed <= done / len(values) <= most + allowed


@pytest.mark.behavior(67)
@pytest.mark.parametrize(
    ("column", "fed"),
    [
        ("long BIGINT", "long"),
        ("word STRING", "word"),
        ("double DOUBLE", "double"),
        ("bytes BINARY", "bytes"),
        ("instant TIMESTAMP", "unix_micros(instant)"),
        ("flag BOOLEAN", "CASE WHEN flag THEN X'01' WHEN NOT flag THEN X'00' END"),
    ],
)
def test_union_of_file_sketches_is_the_sketch_of_all_values(
    spark: SparkSession, lake: Lake, column: str, fed: str
) -> None:
    from pyspark.sql.functions import expr

    name = column.split()[0]
    frame = spark.read.schema(column).parquet(*map(str, lake.paths))
    full_sketch = frame.agg(expr(f"theta_sketch_agg({fed}, 12)")).toArrow().column(0)[0].as_py()
    parts = lake.sketches(name, "theta")
    assert len(parts) == 4
    assert union(parts) == union([full_sketch])
    assert union([*parts, full_sketch, *parts]) == union(parts)
    assert distinct_count(parts).estimate == oracle(lake.rows, name).distinct


def test_ints_and_dates_are_hashed_as_four_little_endian_bytes(spark: SparkSession, lake: Lake) -> None:
    """This is how Iceberg hashes them; here the bytes are produced in Python."""
    for name, as_int in (("number", lake.rows["number"]), ("day", lake.rows["day"].cast(pa.int32()))):
        values = as_int.drop_null().unique().to_pylist()
        table = pa.table({"b": pa.array([value.to_bytes(4, "little", signed=True) for value in values], pa.binary())})
        full_sketch = spark.createDataFrame(table).selectExpr("theta_sketch_agg(b, 12)").toArrow().column(0)[0].as_py()
        assert union(lake.sketches(name, "theta")) == union([full_sketch])


def test_frequent_values_are_reported_with_their_counts(lake: Lake) -> None:
    import json

    for path in ("flag", "kinds"):
        shown = dict(json.loads(lake.column(path).properties["top_values"]))
        counted = {str(value).lower(): oracle(lake.rows, path).values.count(value) for value in (True, False, "a", "b")}
        assert shown == {value: count for value, count in counted.items() if count}
        assert lake.column(path).properties["quality.top_values"] == EXACT


def test_widths_match_the_values(lake: Lake) -> None:
    words = [word for word in lake.rows["word"].to_pylist() if word is not None]
    mean = sum(len(word.encode()) for word in words) / len(words)
    assert lake.column("word").properties["avg_width_bytes"] == f"{mean:.2f}"
    assert lake.column("long").properties["avg_width_bytes"] == "8.00"


def test_empty_file_has_a_profile_without_rows(lake: Lake) -> None:
    empty = lake.profiles.filter(pc.field("path") == str(lake.paths[-1]))
    assert set(empty["row_count"].to_pylist()) == {0}
    assert empty["error"].null_count == empty.num_rows == len(lake.ids)
