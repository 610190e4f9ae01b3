"""Samples of files: which are chosen, and that the stated confidence holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from metastore.resource_factory import ResourceFactory
from skiway.formats.schemas import leaves
from skiway.formats.statistics import column_stats, stats_struct
from skiway.metastore import statistics
from skiway.metastore.statistics.bounds import check_column
from skiway.model import v1
from skiway.spark_jobs.profile.snapshots import Sampling, merge, profile_snapshot, with_confidence
from spark_jobs.lakes import SPARK, opened, write
from spark_jobs.sample_profiles import file_table, profiles, row, schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = pa.int64()
ONE = schema(n=LONG)
FILES, ROWS = 40, 200


def paths(files: pa.Table | None) -> list[str]:
    assert files is not None
    found: list[str] = files["path"].to_pylist()
    return found


def test_everything_is_read_unless_too_much_would_have_to_be() -> None:
    files = file_table(ONE, [ROWS] * 10)  # of 1000 bytes each
    sampling = Sampling(above_bytes=5000, sample_bytes=3000)
    assert sampling.chosen(files, files.slice(0, 5)) is None
    assert len(paths(sampling.chosen(files, files.slice(0, 6)))) == 3


def test_later_samples_choose_the_same_files() -> None:
    sampling = Sampling(above_bytes=5000, sample_bytes=3000)
    before, later = (file_table(ONE, [ROWS] * count) for count in (10, 11))
    first, second = (paths(sampling.chosen(files, files)) for files in (before, later))
    assert first == paths(sampling.chosen(before, before.slice(2)))
    assert len(set(first) & set(second)) >= 2
    assert first != sorted(first)


def test_sample_has_at_least_two_files() -> None:
    files = file_table(ONE, [ROWS] * 10)
    assert len(paths(Sampling(above_bytes=1, sample_bytes=1).chosen(files, files))) == 2
    assert Sampling(above_bytes=1, sample_bytes=1).chosen(files.slice(0, 2), files) is None


class Population:
    """Files whose NULLs and values differ from file to file; bounds are known from footers, counts of NULLs are not."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.values: list[list[int | None]] = []
        for _ in range(FILES):
            nulls, centre = rng.uniform(0, 0.4), rng.normal(0, 300)
            numbers = rng.normal(centre, 1000, ROWS).astype(int)
            self.values.append(
                [None if lost else int(n) for n, lost in zip(numbers, rng.random(ROWS) < nulls, strict=True)]
            )
        every = [[n for n in file if n is not None] for file in self.values]
        self.numbers = sorted(n for file in every for n in file)
        files = file_table(ONE, [ROWS] * FILES)
        bounds = column_stats(
            LONG, FILES, exact=pa.repeat(True, FILES), min=pa.array(map(min, every)), max=pa.array(map(max, every))
        )
        [leaf] = leaves(ONE.arrow)
        self.files = files.set_column(
            files.column_names.index("stats"), "stats", stats_struct({leaf.id: bounds}, FILES)
        )

    def statistics(self) -> v1.ColumnStats:
        sample = Sampling(above_bytes=1000, sample_bytes=10_000).chosen(self.files, self.files)
        chosen = [int(path[-14:-8]) for path in paths(sample)]
        found = profiles(*(row(number, 1, self.values[number], LONG) for number in chosen))
        merged = with_confidence(merge(found, self.files, ONE), found, sample, self.files)
        assert (merged.table.properties["files.sample"], merged.table.properties["files.profiled"]) == ("10", "10")
        [stats] = merged.columns
        check_column(stats)
        return stats


def test_stated_confidence_holds() -> None:
    """In 95.4 % of the cases the truth is in the interval; of 30 populations, at least 25 must be."""
    nulls = quantiles = 0
    for seed in range(30):
        truth = Population(seed)
        stats = truth.statistics()
        share = 1 - len(truth.numbers) / (FILES * ROWS)
        interval = [float(stats.properties[f"null_share.{side}"]) for side in ("lower", "upper")]
        nulls += interval[0] <= share <= interval[1]
        assert interval[1] - interval[0] < 0.25
        error = float(stats.properties["quantiles.rank_error"])
        assert 0.0133 < error < 0.2
        median = int(json.loads(stats.properties["quantiles"])["0.5"])
        rank = np.searchsorted(truth.numbers, median, side="right") / len(truth.numbers)
        quantiles += abs(rank - 0.5) <= error
        lower, upper = stats.ndv.approx.confidence_lower, stats.ndv.approx.confidence_upper
        assert lower <= len(set(truth.numbers)) <= upper
        assert 0.5 < stats.ndv.approx.estimate / len(set(truth.numbers)) < 2
    assert nulls >= 25
    assert quantiles >= 25


def test_figures_are_scaled_to_the_whole_table_and_say_that_they_are_from_a_sample() -> None:
    stats = Population(1).statistics()
    sure = dict.fromkeys(("value_count", "nan_count", "min", "max"), "exact")
    sampled = ("null_count", "ndv", "histogram", "quantiles")
    assert {name.removeprefix("quality."): text for name, text in stats.properties.items() if "quality." in name} == {
        **sure,
        **dict.fromkeys(sampled, "sample"),
    }
    assert sum(stats.histogram.counts) == pytest.approx(stats.value_count - stats.null_count, rel=0.01)


def test_counts_of_frequent_values_are_scaled() -> None:
    files = file_table(ONE, [ROWS] * 10)
    sample = Sampling(above_bytes=1, sample_bytes=4000).chosen(files, files)
    chosen = [int(path[-14:-8]) for path in paths(sample)]
    top: dict[str, Any] = {"top": [{"value": "7", "count": ROWS}]}
    found = profiles(*(row(number, 1, [7] * ROWS, LONG, **top) for number in chosen))
    [stats] = with_confidence(merge(found, files, ONE), found, sample, files).columns
    assert json.loads(stats.properties["top_values"]) == [["7", 10 * ROWS]]
    assert (stats.null_count, stats.properties["null_share.upper"]) == (0, "0.000000")
    assert stats.ndv.approx.estimate == 1  # it does not grow


def test_files_that_are_older_than_a_column_have_only_nulls_of_it() -> None:
    two = schema(n=LONG, added=LONG)
    files = file_table(two, [ROWS] * 10)
    sample = Sampling(above_bytes=1, sample_bytes=4000).chosen(files, files)
    chosen = [int(path[-14:-8]) for path in paths(sample)]
    found = [row(number, 1, [7] * ROWS, LONG) for number in chosen]
    found += [row(number, 2, [7] * ROWS, LONG) for number in chosen[:2]]
    merged = with_confidence(merge(profiles(*found), files, two), profiles(*found), sample, files)
    assert [each.null_count for each in merged.columns] == [0, 5 * ROWS]


class TestWithSpark:
    pytestmark = SPARK

    def test_sample_is_profiled_once_and_sketches_are_not_published(
        self, factory: ResourceFactory, spark: SparkSession, tmp_path: Path
    ) -> None:
        write(tmp_path / "t", *(pa.table({"n": range(first, first + 50)}) for first in range(0, 500, 50)))
        table = factory.table("t")
        with opened(tmp_path) as (handle, snapshot):
            size = handle.files(snapshot)["size_bytes"][0].as_py()
            factory.snapshot(table, snapshot.id)
            sampling = Sampling(above_bytes=5 * size, sample_bytes=3 * size)
            reports = [
                profile_snapshot(
                    factory.home,
                    table.resource_id,
                    snapshot,
                    handle=handle,
                    spark=lambda: spark,
                    sampling=sampling,
                )
                for _ in range(2)
            ]
        assert [(each.files_total, each.files_profiled, each.files_known) for each in reports] == [
            (10, 3, 0),
            (10, 0, 3),
        ]
        stats = statistics.table_statistics(factory.home, table.resource_id.id, snapshot.id)
        assert stats is not None
        assert (stats.row_count, stats.properties["files.sample"], stats.properties["rows.profiled"]) == (
            500,
            "3",
            "150",
        )
        assert not statistics.lacks_profiles(stats, default=-1)
        [column] = reports[1].merged.columns
        assert (column.min, column.max, column.null_count) == ("0", "499", 0)
        assert column.ndv.approx.confidence_lower <= 500 <= column.ndv.approx.confidence_upper
        assert column.ndv.approx.estimate == pytest.approx(500)  # all values are new in each file
        assert reports[1].puffin().blobs == []
