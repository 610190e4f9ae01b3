"""Profiles merged into statistics, without Spark."""

from __future__ import annotations

import time
from pathlib import Path

import datasketches
import numpy as np
import pyarrow as pa
import pytest

import scope
from pipeline.sample_profiles import file_table, kll, profiles, row, schema, theta
from skiway.formats.statistics import column_stats, stats_struct
from skiway.metastore.statistics.validation import check_column, check_table
from skiway.model import v1
from skiway.pipeline.profile.figures import PROFILE
from skiway.pipeline.profile.merging import merge
from skiway.pipeline.profile.profiled_files import BOUND, ESTIMATE, EXACT
from skiway.pipeline.profile.sketches import distribution, union
from skiway.pipeline.profile.values import value_kind

LONG = pa.int64()
ONE = schema(n=LONG)
FILES = 10_000 if scope.ALL else 2000


def only(table: pa.Table, files: pa.Table) -> v1.ColumnStats:
    merged = merge(table, files, ONE)
    check_table(merged.table)
    (stats,) = merged.columns
    check_column(stats)
    return stats


def test_figures_of_files_are_summed() -> None:
    found = profiles(row(0, 1, [1, 2, None], LONG), row(1, 1, [2, 3], LONG))
    stats = only(found, file_table(ONE, [3, 2]))
    assert (stats.value_count, stats.null_count, stats.min, stats.max, stats.ndv.exact) == (5, 1, "1", "3", 3)
    assert stats.properties["avg_width_bytes"] == "8.00"
    assert {value for key, value in stats.properties.items() if key.startswith("quality.")} == {EXACT}
    assert sum(stats.histogram.counts) == 4


def test_exact_figures_of_the_file_table_are_used() -> None:
    files = file_table(ONE, [2])
    exact = column_stats(LONG, 1, exact=True, null_count=pa.array([0]), min=pa.array([-7]), max=pa.array([8]))
    files = files.set_column(files.column_names.index("stats"), "stats", stats_struct({1: exact}, 1))
    stats = only(profiles(row(0, 1, [1, 2], LONG)), files)
    assert (stats.min, stats.max, stats.properties["quality.min"]) == ("-7", "8", EXACT)


def test_file_without_exact_bounds_keeps_the_bounds_of_the_others() -> None:
    files = file_table(ONE, [2, 2])
    low, high = pa.array([-7, None], LONG), pa.array([8, None], LONG)
    some = column_stats(LONG, 2, exact=pa.array([True, False]), null_count=pa.array([0, None], LONG), min=low, max=high)
    files = files.set_column(files.column_names.index("stats"), "stats", stats_struct({1: some}, 2))
    stats = only(profiles(row(0, 1, [1, 2], LONG), row(1, 1, [3, 9], LONG)), files)
    assert (stats.min, stats.max, stats.null_count, stats.properties["quality.min"]) == ("-7", "9", 0, EXACT)


def test_profile_bounds_take_precedence_over_inexact_file_table_bounds() -> None:
    files = file_table(ONE, [2])
    loose = column_stats(LONG, 1, exact=False, null_count=pa.array([0]), min=pa.array([-7]), max=pa.array([8]))
    files = files.set_column(files.column_names.index("stats"), "stats", stats_struct({1: loose}, 1))
    assert only(profiles(row(0, 1, [1, 2], LONG)), files).max == "2"
    alone = only(PROFILE.empty_table(), files)
    assert (alone.max, alone.properties["quality.max"]) == ("8", BOUND)


def test_files_without_a_profile_yield_bounds_only() -> None:
    stats = only(profiles(row(0, 1, [1, 2, 2], LONG)), file_table(ONE, [3, 4]))
    assert not stats.HasField("null_count")
    assert not stats.HasField("min")
    approx = stats.ndv.approx
    assert (approx.estimate, approx.confidence_lower, approx.confidence_upper) == (2, 2, 6)
    assert (approx.rows_seen, approx.rows_total) == (3, 7)
    assert stats.properties["quality.ndv"] == BOUND
    assert stats.properties["rows.profiled"] == "3"


def test_without_profiles_nothing_is_known() -> None:
    stats = only(PROFILE.empty_table(), file_table(ONE, [3]))
    assert stats.ndv.WhichOneof("mode") is None
    assert not stats.HasField("histogram")


def test_table_without_files_has_no_rows_and_no_values() -> None:
    merged = merge(PROFILE.empty_table(), file_table(ONE, []), ONE)
    assert (merged.table.row_count, merged.table.data_file_count) == (0, 0)
    assert (merged.columns[0].null_count, merged.columns[0].HasField("min")) == (0, False)


def test_profile_of_different_content_at_the_same_path_is_ignored() -> None:
    found = profiles(row(0, 1, [1], LONG, size_bytes=999), row(0, 1, [1], LONG, etag="old"))
    assert only(found, file_table(ONE, [1])).properties["rows.profiled"] == "0"


def test_known_deletes_lower_the_bound_of_rows() -> None:
    files = file_table(ONE, [3, 3], deletes=[0, 1], deleted_rows=[2, None])
    table = merge(PROFILE.empty_table(), files, ONE).table
    assert (table.row_count, table.properties["quality.row_count"]) == (4, BOUND)


def test_rows_of_files_without_a_count_are_no_bound() -> None:
    table = merge(PROFILE.empty_table(), file_table(ONE, [3, None]), ONE).table  # type: ignore[list-item]
    assert (table.row_count, table.properties["quality.row_count"]) == (3, ESTIMATE)


@pytest.mark.parametrize(("deleted", "lower", "rows"), [(1, 1, 2), (None, 0, 3)])
def test_deleted_rows_turn_figures_into_bounds(deleted: int | None, lower: int, rows: int) -> None:
    files = file_table(ONE, [3], deletes=[0], deleted_rows=[deleted])
    merged = merge(profiles(row(0, 1, [1, 2, None], LONG)), files, ONE)
    (stats,) = merged.columns
    assert merged.table.row_count == rows
    assert merged.table.properties["quality.row_count"] == (BOUND if deleted is None else EXACT)
    for figure in ("value_count", "null_count", "min", "max", "ndv"):
        assert stats.properties[f"quality.{figure}"] == BOUND, figure
    assert (stats.ndv.approx.confidence_lower, stats.ndv.approx.confidence_upper) == (lower, 2)


def test_column_added_after_a_file_was_profiled_is_null_in_it() -> None:
    both = schema(n=LONG, later=pa.string())
    table = profiles(row(0, 1, [1, 2], LONG), row(1, 1, [3], LONG), row(1, 2, ["x"], pa.string()))
    later = merge(table, file_table(both, [2, 1]), both).columns[1]
    assert (later.null_count, later.ndv.exact, later.min) == (2, 1, "x")


def test_sketches_of_different_encodings_are_not_merged() -> None:
    """A column that was an int when a file was profiled."""
    table = profiles(row(0, 1, [1, 2], pa.int32()), row(1, 1, [2, 3, 4], LONG))
    stats = only(table, file_table(ONE, [2, 3]))
    assert (stats.min, stats.max) == ("1", "4")
    approx = stats.ndv.approx
    assert (approx.estimate, approx.confidence_lower, approx.confidence_upper) == (3, 3, 5)
    assert stats.properties["quality.ndv"] == BOUND
    assert not stats.ndv.sketches


def test_distinct_count_estimate_is_within_its_bounds() -> None:
    parts = [range(20_000), range(10_000, 30_000)]
    stats = only(
        profiles(*(row(file, 1, part, LONG) for file, part in enumerate(parts))), file_table(ONE, [20_000] * 2)
    )
    assert stats.properties["quality.ndv"] == ESTIMATE
    assert stats.ndv.approx.confidence_lower < 30_000 < stats.ndv.approx.confidence_upper
    assert 0 < stats.ndv.approx.relative_standard_error < 0.02


def test_largest_numbers_have_a_histogram() -> None:
    most = 2**63 - 1
    stats = only(profiles(row(0, 1, [-most, 0, most], LONG)), file_table(ONE, [3]))
    assert (stats.histogram.bounds[0], stats.histogram.bounds[-1]) == (str(-most), str(most))
    assert sum(stats.histogram.counts) == 3


def test_timestamps_that_the_metastore_cannot_write_are_omitted() -> None:
    of = schema(n=pa.timestamp("us"))
    far = pa.array([400_000_000_000_000_000], pa.timestamp("us"))  # the year 14645
    exact = column_stats(pa.timestamp("us"), 1, exact=True, min=pa.array([0], far.type), max=far)
    files = file_table(of, [1])
    files = files.set_column(files.column_names.index("stats"), "stats", stats_struct({1: exact}, 1))
    (stats,) = merge(PROFILE.empty_table(), files, of).columns
    assert stats.min == "1970-01-01T00:00:00"
    assert not stats.HasField("max")


def test_rejected_column_states_the_reason() -> None:
    refused = {"error": "Spark cannot read it", "theta": None, "kll": None, "null_count": None, "exact": None}
    stats = only(profiles(row(0, 1, [], LONG, row_count=2, **refused)), file_table(ONE, [2]))
    assert stats.properties["errors"] == "Spark cannot read it"
    assert stats.properties["rows.profiled"] == "0"
    assert not stats.HasField("null_count")


@pytest.mark.behavior(67)
def test_union_is_idempotent_and_commutative() -> None:
    a, b = theta(range(9000)), theta(range(4000, 20_000))
    assert union([a, b]) == union([b, a, a, b]) == union([union([a, b]), a])


@pytest.mark.parametrize("count", [1, 2, 150, 200, 201, 5000, 100_000])
def test_sketch_is_read_as_by_its_library(count: int) -> None:
    numbers = np.random.default_rng(count).normal(size=count)
    sketch = kll(numbers.tolist())
    own = datasketches.kll_doubles_sketch.deserialize(sketch)
    ranks = [0.01, 0.1, 0.5, 0.9, 1.0]
    found = distribution([sketch], buckets=10, ranks=ranks)
    assert found is not None
    assert list(found.quantiles.values()) == own.get_quantiles(ranks, True)
    assert (found.count, found.exact) == (count, not own.is_estimation_mode())
    assert (found.bounds[0], found.bounds[-1]) == (numbers.min(), numbers.max())
    assert sum(found.counts) == count


def test_merged_sketches_stay_within_the_rank_error() -> None:
    numbers = np.random.default_rng(1).normal(size=100_000)
    found = distribution([kll(part.tolist()) for part in np.split(numbers, 20)], buckets=16, ranks=[0.1, 0.5, 0.9])
    assert found is not None
    for rank, value in found.quantiles.items():
        assert abs((numbers <= value).mean() - rank) <= found.rank_error
    assert distribution([], buckets=4, ranks=[]) is distribution([kll([])], buckets=4, ranks=[]) is None


def test_thousands_of_files_with_twenty_columns_are_merged_in_seconds() -> None:
    wide = schema(**{f"c{number}": LONG for number in range(20)})
    thetas = [theta(range(start * 500, start * 500 + 500)) for start in range(50)]
    klls = [kll([float(value) for value in range(start, start + 2000)]) for start in range(50)]
    count = FILES * 20
    # A file has 2,000 rows of 500 values here.
    figures = {
        "path": [f"/lake/{number // 20:06d}.parquet" for number in range(count)],
        "size_bytes": pa.repeat(1000, count),
        "column_id": [number % 20 + 1 for number in range(count)],
        "row_count": pa.repeat(2000, count),
        "null_count": pa.repeat(0, count),
        "min": pa.repeat("0", count),
        "max": pa.repeat("9", count),
        "exact": pa.repeat(True, count),
        "theta": [thetas[number % 50] for number in range(count)],
        "domain": pa.repeat("long", count),
        "kll": [klls[number % 50] for number in range(count)],
        "top": [[{"value": str(number % 7), "count": 3}] for number in range(count)],
    }
    columns = [
        pa.array(figures[field.name], field.type) if field.name in figures else pa.nulls(count, field.type)
        for field in PROFILE
    ]
    table = pa.table(columns, schema=PROFILE)
    files = file_table(wide, [2000] * FILES)
    started = time.process_time()
    merged = merge(table, files, wide)
    spent = time.process_time() - started
    print(f"merged {count:,} profiles in {spent:.1f} s of processor time")
    assert spent < FILES * 0.003
    assert {column.value_count for column in merged.columns} == {FILES * 2000}


def test_page_names_every_property_and_every_domain() -> None:
    page = (Path(__file__).parents[3] / "docs" / "pipeline.md").read_text()
    found = profiles(row(0, 1, [1, 2], LONG, top=[{"value": "1", "count": 1}], error=None))
    merged = merge(found, file_table(ONE, [2]), ONE)
    properties = {*merged.table.properties, *merged.columns[0].properties}
    assert len(properties) > 10
    missing = [name for name in properties if not name.startswith("quality.") and f"`{name}`" not in page]
    assert missing == []
    types = [LONG, pa.int8(), pa.float32(), pa.string(), pa.binary(), pa.bool_(), pa.timestamp("ns"), pa.uuid()]
    kinds = [kind for of in types if (kind := value_kind(of))]
    assert [kind.domain for kind in kinds if f"`{kind.domain}`" not in page] == []
