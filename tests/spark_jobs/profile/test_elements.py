"""Statistics of values in lists and maps: the same as DuckDB computes after UNNEST."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from formats.managed import LooseTable
from lake.evolved_tables import Stage, add_catalogs, iceberg_table
from lake.lakes import opened_lake
from skiway.formats import TableSchema
from skiway.formats.iceberg.changes.evolution import AddColumn, RenameColumn, evolve
from skiway.formats.schemas import element_leaves, leaves, with_ids
from skiway.metastore import statistics
from skiway.metastore.statistics.bounds import check_column
from skiway.model import v1
from skiway.spark_jobs.profile.job import profile
from skiway.spark_jobs.profile.layouts import Found, file_schemas, layout_of
from skiway.spark_jobs.profile.snapshots import Merged, merge, profile_snapshot
from spark_jobs.lakes import SPARK, comparable, opened, write
from spark_jobs.sample_profiles import file_table, row
from spark_jobs.sample_profiles import profiles as profiles_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "tags": pa.list_(pa.string()),
        "points": pa.large_list(pa.struct({"x": pa.float64(), "label": pa.string(), "more": pa.list_(pa.int32())})),
        "matrix": pa.list_(pa.list_(pa.int64())),
        "counts": pa.map_(pa.string(), pa.int32()),
        "boxes": pa.map_(pa.int32(), pa.struct({"day": pa.date32(), "size": pa.int64()})),
        "box": pa.struct({"in.side": pa.list_(pa.decimal128(9, 2)), "flag": pa.bool_()}),
        "void": pa.list_(pa.int64()),
    }
)
VALUES = {
    "tags.element": "unnest(tags)",
    "points.element.x": "unnest(points).x",
    "points.element.label": "unnest(points).label",
    "points.element.more.element": "unnest(flatten([each.more for each in points if each.more IS NOT NULL]))",
    "matrix.element.element": "unnest(flatten([each for each in matrix if each IS NOT NULL]))",
    "counts.key": "unnest(map_keys(counts))",
    "counts.value": "unnest(map_values(counts))",
    "boxes.key": "unnest(map_keys(boxes))",
    "boxes.value.day": "unnest(map_values(boxes)).day",
    "boxes.value.size": "unnest(map_values(boxes)).size",
    "box.in.side.element": 'unnest(box."in.side")',
    "void.element": "unnest(void)",
}
"""How DuckDB reads the values, by the names of the columns."""


def rows(first: int, last: int) -> pa.Table:
    """Rows with NULLs, empty lists, and NULLs in lists and structs."""

    def row(n: int) -> dict[str, object]:
        point = {"x": n / 7 if n % 5 else float("nan"), "label": f"l{n % 9}", "more": [n, None] if n % 2 else None}
        return {
            "id": n,
            "tags": None if n % 6 == 0 else [f"t{n % 13}", None, f"t{(n + 1) % 17}"][: n % 4],
            "points": None if n % 7 == 0 else [point, None][: n % 3],
            "matrix": [[n, n + 1], None, [], [None]] if n % 3 else None,
            "counts": None if n % 8 == 0 else [(f"k{n % 3}", n), ("b", None)][: n % 3],
            "boxes": [(n, {"day": n, "size": None if n % 2 else n}), (n + 1, None)],
            "box": {"in.side": [n] if n % 2 else [], "flag": True} if n % 5 else None,
            "void": [],
        }

    return pa.Table.from_pylist([row(n) for n in range(first, last)], schema=SCHEMA)


@pytest.fixture(scope="module")
def merged(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Merged:
    """The statistics of a table with two files."""
    folder = tmp_path_factory.mktemp("lists")
    write(folder / "t", rows(0, 400), rows(400, 700))
    with opened(folder) as (handle, snapshot):
        files = handle.files(snapshot)
        profiles = profile(spark, files, handle.schema, schemas=file_schemas(handle, snapshot))
    assert profiles["error"].null_count == profiles.num_rows
    assert set(profiles["row_count"].to_pylist()) == {400, 300}
    return merge(profiles, files, handle.schema)


class TestWithSpark:
    pytestmark = SPARK

    @pytest.mark.parametrize("name", VALUES)
    def test_values_in_lists_and_maps_have_the_statistics_that_duckdb_computes(self, merged: Merged, name: str) -> None:
        stats = column(merged, name)
        is_nan = "isnan(v)" if name.endswith(".x") else "false"
        with duckdb.connect() as duck:
            duck.register("t", rows(0, 700))
            expected = duck.execute(
                f"SELECT count(*), count(*) - count(v), count(*) FILTER (WHERE {is_nan}), count(DISTINCT v), "
                f"min(v) FILTER (WHERE NOT {is_nan}), max(v) FILTER (WHERE NOT {is_nan}) "
                f"FROM (SELECT {VALUES[name]} AS v FROM t)"
            ).fetchone()
        assert expected is not None
        assert (stats.value_count, stats.null_count, stats.nan_count) == expected[:3]
        assert stats.ndv.exact == expected[3]
        bounds = [comparable(getattr(stats, side), stats) if stats.HasField(side) else None for side in ("min", "max")]
        assert bounds == list(expected[4:])
        assert (stats.properties["counted"], stats.properties["quality.value_count"]) == ("elements", "exact")
        if name in ("matrix.element.element", "boxes.value.day"):
            assert sum(stats.histogram.counts) == expected[0] - expected[1]

    def test_other_columns_are_not_affected(self, merged: Merged) -> None:
        stats = {each.column_name: each for each in merged.columns}
        assert (stats["id"].value_count, stats["box.flag"].null_count) == (700, 140)
        assert stats["id"].properties.get("counted") is None
        assert merged.table.row_count == 700
        assert stats.keys() == {"id", "box.flag", *VALUES}

    def test_frequent_values_of_lists(self, merged: Merged) -> None:
        stats = column(merged, "counts.key")
        with duckdb.connect() as duck:
            duck.register("t", rows(0, 700))
            counted = duck.execute(f"SELECT v, count(*) FROM (SELECT {VALUES['counts.key']} AS v FROM t) GROUP BY v")
            assert dict(json.loads(stats.properties["top_values"])) == dict(counted.fetchall())
        assert stats.properties["quality.top_values"] == "exact"

    def test_fields_that_were_added_in_lists_and_maps(self, spark: SparkSession, tmp_path: Path) -> None:
        """The figures are those of the rows, and unknown for fields that have a default in older files."""
        with opened_lake(tmp_path) as lake:
            add_catalogs(lake)
            table = iceberg_table(lake, "managed", Stage("nested", ("change", "append")), nested=True)
            handle = table.handle
            snapshot = handle.current()
            assert snapshot is not None
            report = profile_snapshot(lake.realm, table.id, snapshot, handle=handle, spark=lambda: spark)
            assert not report.failed
            found = statistics.column_statistics(lake.realm, table.id.id, snapshot.id)
        stored = {each.column_name: each for each in found}
        for column in ("items.element", "pairs.value"):
            assert (stored[f"{column}.kept"].min, stored[f"{column}.kept"].max) == ("1", "3")
            added = stored[f"{column}.added"]  # 5 in older files, which the profile does not count
            assert not added.HasField("min")
            assert "exact" not in {
                added.properties.get(f"quality.{each}") for each in ("value_count", "ndv", "top_values")
            }
        assert (stored["pairs.key"].min, stored["pairs.key"].max) == ("a", "c")

    def test_renamed_and_added_lists_are_matched_by_id(self, spark: SparkSession, tmp_path: Path) -> None:
        """A file that is older than a list has no values of it; one that was renamed is found under its old name."""
        table = LooseTable(tmp_path / "t", pa.schema({"id": pa.int64(), "tags": pa.list_(pa.int32())}))
        table.append(pa.record_batch({"id": [1, 2], "tags": pa.array([[1, 2], [3]], pa.list_(pa.int32()))}))
        table.change(evolve([RenameColumn("tags", "marks"), AddColumn("notes", pa.list_(pa.string()))]))
        new = {"id": [3], "marks": pa.array([[4, None]], pa.list_(pa.int32())), "notes": [["a", "b", "b"]]}
        table.append(pa.record_batch(new))
        handle, snapshot = table.handle, table.handle.current()
        assert snapshot is not None
        files = handle.files(snapshot)
        profiles = profile(spark, files, handle.schema, schemas=file_schemas(handle, snapshot))
        found = merge(profiles, files, handle.schema)
        marks, notes = column(found, "marks.element"), column(found, "notes.element")
        assert (marks.value_count, marks.null_count, marks.min, marks.max, marks.ndv.exact) == (5, 1, "1", "4", 4)
        assert (notes.value_count, notes.null_count, notes.min, notes.max, notes.ndv.exact) == (3, 0, "a", "b", 2)


def column(merged: Merged, name: str) -> v1.ColumnStats:
    [found] = [each for each in merged.columns if each.column_name == name]
    check_column(found)
    return found


# --- without Spark ----------------------------------------------------------------------------------------------------

LISTS = TableSchema.of(with_ids(pa.schema({"tags": pa.list_(pa.int64())})))
[TAGS] = element_leaves(LISTS.arrow)


def test_leaves_of_lists_and_maps_have_paths() -> None:
    schema = with_ids(SCHEMA)
    assert {".".join(leaf.path) for leaf in element_leaves(schema)} == VALUES.keys()
    assert [leaf.path for leaf in leaves(schema)] == [("id",), ("box", "flag")]


def test_partly_profiled_table_has_estimates() -> None:
    """One of two files is profiled: the number of values is extrapolated, and there is no upper bound of distinct ones."""
    files = file_table(LISTS, [10, 30])
    found = profiles_of(row(0, TAGS.id, [1, 2, 3, None], TAGS.type, row_count=10, element_count=4))
    stats = column(merge(found, files, LISTS), "tags.element")
    assert (stats.value_count, stats.properties["quality.value_count"]) == (16, "estimate")
    assert not stats.HasField("null_count")
    assert not stats.HasField("min")
    assert (stats.ndv.approx.estimate, stats.properties["quality.ndv"]) == (3, "bound")
    assert not stats.ndv.approx.HasField("confidence_upper")
    assert (stats.properties["rows.profiled"], stats.properties["rows.total"]) == ("10", "40")


@pytest.mark.parametrize("deleted", [{"deletes": [0]}, {"deleted_rows": [1]}])
def test_deleted_rows_make_figures_of_lists_bounds(deleted: dict[str, list[int]]) -> None:
    """A deleted row may have contained all values."""
    found = profiles_of(row(0, TAGS.id, [1, 2, 3], TAGS.type, row_count=10, element_count=3))
    stats = column(merge(found, file_table(LISTS, [10], **deleted), LISTS), "tags.element")
    qualities = {value for key, value in stats.properties.items() if key.startswith("quality.") and "_" in key}
    assert (qualities, stats.properties["quality.ndv"]) == ({"bound"}, "bound")
    assert stats.ndv.approx.confidence_lower == 0


def test_values_that_cannot_be_profiled_are_refused_with_a_reason() -> None:
    odd = pa.schema({"halves": pa.list_(pa.float16()), "keys": pa.map_(pa.float16(), pa.int64())})
    file = with_ids(odd)
    layout = layout_of(file, element_leaves(file))
    halves, key, value = element_leaves(file)
    assert dict(layout.refused) == dict.fromkeys((halves.id, key.id), "halffloat cannot be profiled as halffloat")
    assert dict(layout.found) == {value.id: Found(("keys",), ("value",))}


def test_values_are_found_below_the_first_list_or_map() -> None:
    of = with_ids(pa.schema({"box": pa.struct({"element": pa.list_(pa.struct({"c.d": pa.int64()}))})}))
    [leaf] = element_leaves(of)
    assert dict(layout_of(of, [leaf]).found) == {leaf.id: Found(("box", "element"), ("element", "c.d"))}
