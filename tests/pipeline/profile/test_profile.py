"""The Spark job against DuckDB over the same files."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pipeline.lakes import SPARK, as_oracle_says, comparable, opened, oracle, quantiles, rows_of_all_types, write
from skiway.formats import Snapshot, TableHandle
from skiway.formats.schemas import leaves
from skiway.model import v1
from skiway.pipeline.profile.job import Budget, profile
from skiway.pipeline.profile.layouts import file_schemas
from skiway.pipeline.profile.merging import EXACT, merge
from skiway.pipeline.profile.sketches import distinct_count, union

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


class Lake:
    """A table of all types in five files, one of them empty, with its profile and statistics."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        tables = [rows_of_all_types(seed) for seed in range(4)]
        self.rows = pa.concat_tables(tables)
        self.paths = write(folder / "t", *tables, tables[0].slice(0, 0))
        with opened(folder) as (handle, snapshot):
            self.profiles = profiled(spark, handle, snapshot)
            self.merged = merge(self.profiles, handle.files(snapshot), handle.schema)
            self.ids = {".".join(leaf.path): leaf.id for leaf in leaves(handle.schema.arrow)}

    def column(self, path: str) -> v1.ColumnStats:
        wanted = path.replace('"', "")
        return next(column for column in self.merged.columns if column.column_name == wanted)

    def sketches(self, name: str, kind: str) -> list[bytes]:
        mine = self.profiles.filter(pc.field("column_id") == self.ids[name])
        return [sketch for sketch in mine[kind].to_pylist() if sketch is not None]


@pytest.fixture(scope="module")
def lake(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(spark, tmp_path_factory.mktemp("lake"))


@pytest.mark.parametrize("path", COLUMNS)
def test_counts_and_bounds_are_those_that_duckdb_finds(lake: Lake, path: str) -> None:
    said, stats = oracle(lake.rows, path), lake.column(path)
    assert stats.value_count == said.rows == lake.merged.table.row_count
    assert stats.null_count == said.nulls
    assert stats.nan_count == said.nans
    if said.values:
        assert comparable(stats.min, stats) == as_oracle_says(said.values[0])
        assert comparable(stats.max, stats) == as_oracle_says(said.values[-1])
        assert {stats.properties["quality.min"], stats.properties["quality.max"]} == {EXACT}
    else:
        assert not stats.HasField("min")
        assert not stats.HasField("max")


@pytest.mark.parametrize("path", COLUMNS)
def test_distinct_values_are_counted_within_the_bounds_that_are_told(lake: Lake, path: str) -> None:
    said, stats = oracle(lake.rows, path), lake.column(path)
    if stats.ndv.WhichOneof("mode") == "exact":
        assert stats.ndv.exact == said.distinct
    else:
        assert stats.ndv.approx.confidence_lower <= said.distinct <= stats.ndv.approx.confidence_upper
        assert stats.ndv.approx.confidence_upper < said.distinct * 1.1
        assert stats.ndv.approx.rows_seen == stats.ndv.approx.rows_total == said.rows


@pytest.mark.parametrize("path", [*RNG, "nanos", "clock", 'box."in.side"'])
def test_quantiles_and_histogram_are_within_the_rank_error(lake: Lake, path: str) -> None:
    stats = lake.column(path)
    values = [as_oracle_says(value) for value in oracle(lake.rows, path).values]
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
def test_the_union_of_the_sketches_of_files_is_the_sketch_of_all_values(
    spark: SparkSession, lake: Lake, column: str, fed: str
) -> None:
    from pyspark.sql.functions import expr

    name = column.split()[0]
    frame = spark.read.schema(column).parquet(*map(str, lake.paths))
    whole = frame.agg(expr(f"theta_sketch_agg({fed}, 12)")).toArrow().column(0)[0].as_py()
    parts = lake.sketches(name, "theta")
    assert len(parts) == 4
    assert union(parts) == union([whole])
    assert union([*parts, whole, *parts]) == union(parts)
    assert distinct_count(parts).estimate == oracle(lake.rows, name).distinct


def test_ints_and_days_are_hashed_as_their_four_bytes_lowest_first(spark: SparkSession, lake: Lake) -> None:
    """Which is how Iceberg hashes them; here with the bytes made in Python."""
    for name, as_int in (("number", lake.rows["number"]), ("day", lake.rows["day"].cast(pa.int32()))):
        values = as_int.drop_null().unique().to_pylist()
        table = pa.table({"b": pa.array([value.to_bytes(4, "little", signed=True) for value in values], pa.binary())})
        whole = spark.createDataFrame(table).selectExpr("theta_sketch_agg(b, 12)").toArrow().column(0)[0].as_py()
        assert union(lake.sketches(name, "theta")) == union([whole])


def test_frequent_values_are_told_with_their_counts(lake: Lake) -> None:
    import json

    for path in ("flag", "kinds"):
        shown = dict(json.loads(lake.column(path).properties["top_values"]))
        counted = {str(value).lower(): oracle(lake.rows, path).values.count(value) for value in (True, False, "a", "b")}
        assert shown == {value: count for value, count in counted.items() if count}
        assert lake.column(path).properties["quality.top_values"] == EXACT


def test_widths_are_those_of_the_values(lake: Lake) -> None:
    words = [word for word in lake.rows["word"].to_pylist() if word is not None]
    mean = sum(len(word.encode()) for word in words) / len(words)
    assert lake.column("word").properties["avg_width_bytes"] == f"{mean:.2f}"
    assert lake.column("long").properties["avg_width_bytes"] == "8.00"


def test_an_empty_file_is_profiled_as_one_without_rows(lake: Lake) -> None:
    empty = lake.profiles.filter(pc.field("path") == str(lake.paths[-1]))
    assert set(empty["row_count"].to_pylist()) == {0}
    assert empty["error"].null_count == empty.num_rows == len(lake.ids)
