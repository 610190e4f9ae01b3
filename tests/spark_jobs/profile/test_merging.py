"""Profiles merged into statistics, without Spark."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasketches
import numpy as np
import pyarrow as pa
import pytest

import scope
from skiway.formats import TableSchema
from skiway.formats.schemas import with_ids
from skiway.formats.statistics import column_stats, stats_struct
from skiway.metastore.statistics.bounds import check_column, check_table
from skiway.model import v1
from skiway.spark_jobs.profile.column_statistics import BOUND, ESTIMATE, EXACT
from skiway.spark_jobs.profile.figures import ADDED_LATER, PROFILE
from skiway.spark_jobs.profile.sketches import distribution, estimate, union
from skiway.spark_jobs.profile.snapshots import merge
from skiway.spark_jobs.profile.values import value_kind
from spark_jobs.sample_profiles import file_table, kll, profiles, row, schema, theta

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


@pytest.mark.parametrize("of", [pa.string(), pa.binary()])
@pytest.mark.parametrize(
    ("files", "expected"),
    [([["x"]], 1), ([[""]], 1), ([["", "x"]], 2), ([["x"], [""], ["", "y"]], 3), ([["x"], [None]], 1), ([[None]], 0)],
)
def test_empty_value_is_a_distinct_value(of: pa.DataType, files: list[list[str | None]], expected: int) -> None:
    """In any of the files. Sketches do not contain it, because those of Iceberg do not."""
    table = schema(word=of)
    rows = [
        row(number, 1, pa.array(texts, of).to_pylist(), of, theta=theta([text for text in texts if text]))
        for number, texts in enumerate(files)
    ]
    merged = merge(profiles(*rows), file_table(table, list(map(len, files))), table)
    (stats,) = merged.columns
    assert (stats.ndv.exact, stats.properties["quality.ndv"]) == (expected, EXACT)
    assert estimate(merged.sketches[1]) == expected - any("" in texts for texts in files)


def test_empty_value_is_one_more_than_the_estimate() -> None:
    words, table = [f"w{number}" for number in range(10_000)], schema(word=pa.string())

    def approx(values: list[str]) -> v1.NdvApprox:
        merged = merge(profiles(row(0, 1, values, pa.string())), file_table(table, [20_000]), table)
        return merged.columns[0].ndv.approx

    without, with_empty = approx(words), approx(["", *words])
    for figure in ("estimate", "confidence_lower", "confidence_upper"):
        assert getattr(with_empty, figure) == getattr(without, figure) + 1


def with_bounds(row_counts: Sequence[int | None]) -> pa.Table:
    """Two files whose statistics have bounds and the number of NULLs."""
    files = file_table(ONE, row_counts)  # type: ignore[arg-type]
    known = column_stats(LONG, 2, exact=True, null_count=pa.array([1, 0]), min=pa.array([1, 0]), max=pa.array([2, 3]))
    return files.set_column(files.column_names.index("stats"), "stats", stats_struct({1: known}, 2))


def test_file_without_profile_and_row_count_leaves_other_figures_inexact() -> None:
    """The profile has all values that are known, but not all values."""
    top = [{"value": "1", "count": 1}, {"value": "2", "count": 1}]
    merged = merge(profiles(row(0, 1, [1, 2, None], LONG, top=top)), with_bounds([3, None]), ONE)
    (stats,) = merged.columns
    exact = {name.removeprefix("quality.") for name, value in stats.properties.items() if value == EXACT}
    assert exact == {"null_count", "nan_count", "min", "max"}
    assert not stats.ndv.approx.HasField("confidence_upper")
    assert stats.properties["quantiles.rank_error"] == "1.0000"
    assert merged.table.properties["quality.row_count"] == ESTIMATE


def test_values_without_profile_are_an_error_of_the_ranks() -> None:
    stats = only(profiles(row(0, 1, [1, 2, None], LONG)), with_bounds([3, 2]))
    assert stats.properties["quality.quantiles"] == ESTIMATE
    assert stats.properties["quantiles.rank_error"] == "0.5000"


@pytest.mark.parametrize(
    ("of", "value", "is_exact"),
    [
        (LONG, 2**53 - 1, True),
        (LONG, 2**53 + 1, False),
        (LONG, -(2**53) - 1, False),
        (pa.float64(), 1e300, True),
        (pa.decimal128(20, 2), Decimal(2**52 - 1).scaleb(-2), True),
        (pa.decimal128(20, 2), Decimal(2**53 + 1).scaleb(-2), False),
        (pa.timestamp("us"), 2**53 - 1, True),
        (pa.timestamp("us"), 2**53 + 1, False),
        (pa.timestamp("ns"), 5000, True),
        (pa.timestamp("ns"), 5001, False),
        (pa.date32(), 2**20, True),
    ],
)
def test_rounded_quantiles_are_not_exact(of: pa.DataType, value: Any, is_exact: bool) -> None:
    table, (number,) = schema(n=of), pa.array([value], of).to_pylist()
    given = row(0, 1, [number], of, kll=kll([float(value)]), theta=theta([]))
    (stats,) = merge(profiles(given), file_table(table, [1]), table).columns
    assert (stats.properties["quality.quantiles"] == EXACT) is is_exact
    assert (stats.properties["quality.histogram"] == EXACT) is is_exact
    assert ("quantiles.rounded" in stats.properties) is not is_exact
    if is_exact and not pa.types.is_temporal(of) and not pa.types.is_floating(of):
        assert Decimal(json.loads(stats.properties["quantiles"])["0.5"]) == Decimal(value)


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
    table = merge(PROFILE.empty_table(), file_table(ONE, [3, None]), ONE).table
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
    page = (Path(__file__).parents[3] / "docs" / "statistics.md").read_text()
    found = profiles(row(0, 1, [1, 2], LONG, top=[{"value": "1", "count": 1}], error=None))
    merged = merge(found, file_table(ONE, [2]), ONE)
    properties = {*merged.table.properties, *merged.columns[0].properties}
    assert len(properties) > 10
    missing = [name for name in properties if not name.startswith("quality.") and f"`{name}`" not in page]
    assert missing == []
    types = [LONG, pa.int8(), pa.float32(), pa.string(), pa.binary(), pa.bool_(), pa.timestamp("ns"), pa.uuid()]
    kinds = [kind for of in types if (kind := value_kind(of))]
    assert [kind.domain for kind in kinds if f"`{kind.domain}`" not in page] == []


@pytest.mark.parametrize(
    "older", [[row(0, 9, [1, 2], LONG)], [row(0, 1, [None] * 2, LONG, error=ADDED_LATER, null_count=None)]]
)
def test_files_that_are_older_than_a_column_have_its_default(older: list[dict[str, Any]]) -> None:
    """Whether they were profiled before the column was added, or later."""
    newer = row(1, 1, [50, None], LONG, top=[{"value": "50", "count": 1}])
    merged = merge(profiles(*older, newer), file_table(ONE, [2, 2]), ONE, defaults={1: pa.scalar(42, LONG)})
    (stats,) = merged.columns
    check_column(stats)
    assert (stats.value_count, stats.null_count, stats.min, stats.max) == (4, 1, "42", "50")
    assert {stats.properties[f"quality.{name}"] for name in ("null_count", "min", "max")} == {EXACT}
    assert stats.ndv.approx.confidence_lower <= 2 <= stats.ndv.approx.confidence_upper < 3
    assert stats.properties["quality.ndv"] == BOUND  # so it is in no Puffin file
    assert stats.properties["top_values"] == '[["42", 2], ["50", 1]]'
    assert not stats.HasField("histogram")
    assert "errors" not in stats.properties


def test_column_that_no_file_has_has_its_default_everywhere() -> None:
    found = merge(profiles(row(0, 9, [1, 2], LONG)), file_table(ONE, [2]), ONE, defaults={1: pa.scalar(42, LONG)})
    (stats,) = found.columns
    assert (stats.null_count, stats.min, stats.max, stats.value_count) == (0, "42", "42", 2)


@pytest.mark.parametrize(("defaults", "nulls"), [({}, 2), ({2: pa.scalar(42, LONG)}, None)])
def test_field_with_a_default_is_null_where_its_struct_is(defaults: dict[int, pa.Scalar], nulls: int | None) -> None:
    """Nothing is known about a field that files do not have: it has its default only in rows with a struct."""
    numbers = {("box",): 1, ("box", "x"): 2}
    nested = TableSchema.of(with_ids(pa.schema({"box": pa.struct({"x": LONG})}), numbers.__getitem__))
    (stats,) = merge(profiles(row(0, 9, [1, 2], LONG)), file_table(nested, [2]), nested, defaults=defaults).columns
    assert (stats.null_count if stats.HasField("null_count") else None) == nulls
    assert not stats.HasField("min")


@pytest.mark.parametrize(("known", "quality"), [(3, ESTIMATE), (9, EXACT)])
def test_new_field_of_structs_in_lists_is_counted_only_if_files_have_no_lists(known: int, quality: str) -> None:
    """A file with other fields of the structs has values of the new one, too: NULLs or defaults."""
    numbers = {("l",): 1, ("l", "element"): 2, ("l", "element", "old"): 3, ("l", "element", "new"): 4}
    of = pa.schema({"l": pa.list_(pa.struct({"old": LONG, "new": LONG}))})
    nested = TableSchema.of(with_ids(of, numbers.__getitem__))
    found = profiles(row(0, known, [1, 2], LONG, element_count=2, row_count=1))
    new = next(each for each in merge(found, file_table(nested, [1]), nested).columns if each.column_id == 4)
    assert (new.value_count, new.properties["quality.value_count"]) == (0, quality)
