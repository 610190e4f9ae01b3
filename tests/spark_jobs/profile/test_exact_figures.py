"""Profiles of random tables by all paths, compared with exact SQL of DuckDB over the same files."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasketches
import duckdb
import pyarrow as pa
import pytest

import scope
from skiway.formats import Snapshot, TableHandle
from skiway.metastore.statistics.bounds import bound, logical_type
from skiway.model import v1
from skiway.spark_jobs.profile import scans
from skiway.spark_jobs.profile.column_statistics import EXACT, RANKS
from skiway.spark_jobs.profile.sketches import write_puffin
from skiway.spark_jobs.profile.snapshots import Merged, merge
from spark_jobs.lakes import SPARK, comparable, opened, quantiles, write
from spark_jobs.profile.test_profile import profiled, profiled_in_process

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EPOCH = datetime(1970, 1, 1)

# Values of each type that are likely to be treated in a wrong way.
SPECIAL: Mapping[str, tuple[pa.DataType, list[Any]]] = {
    "text": (
        pa.string(),
        [
            *("", " ", "\0", "a\0", "a\0b", "a", "b", "\n", "NaN", "NULL", "\u00e9", "e\u0301", "\U0001d11e"),
            *("\U0010ffff" * 300, "x" * 256, "x" * 257, "x" * 300, "y" * 5000, "y" * 5000 + "\0"),
        ],
    ),
    "bytes": (pa.binary(), [b"", b"\0", b"\0\0", b"a", b"a\0", b"\xff" * 256, b"\xff" * 300, b"z" * 5000, b"\xff"]),
    "fixed": (pa.binary(3), [b"\0\0\0", b"abc", b"ab\0", b"\xff\xff\xff"]),
    "double": (
        pa.float64(),
        [0.0, -0.0, math.nan, -math.nan, math.inf, -math.inf, 5e-324, -5e-324, 1.5, 1e308, 0.1, 2.0**53 + 2],
    ),
    "float": (pa.float32(), [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, 0.1, -0.1, 1e-45]),
    "long": (pa.int64(), [0, 1, -1, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, -(2**53) - 1]),
    "int": (pa.int32(), [0, 1, -1, 2**31 - 1, -(2**31)]),
    "tiny": (pa.int8(), [0, 1, -1, 127, -128]),
    "unsigned": (pa.uint64(), [0, 1, 2**64 - 1, 2**63]),
    "flag": (pa.bool_(), [True, False]),
    "price": (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-0.01"), Decimal("1.50"), Decimal("9999999.99")]),
    "huge": (
        pa.decimal128(38, 12),
        [Decimal(0), Decimal("1e-12"), Decimal("-1e-12"), Decimal("12345678901234567890.5")],
    ),
    "day": (pa.date32(), [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)]),
    "moment": (
        pa.timestamp("us"),
        [EPOCH, EPOCH - timedelta(microseconds=1), datetime(9999, 12, 31, 23, 59, 59, 999999)],
    ),
    "instant": (pa.timestamp("us", "UTC"), [datetime(2024, 2, 29, 1, 2, 3, 4, UTC), datetime(1, 1, 1, tzinfo=UTC)]),
    "nanos": (pa.timestamp("ns"), [0, 1, 999, 1000, 1001, -1, 1_700_000_000_000_000_001]),
    "clock": (pa.time64("us"), [time(0), time(23, 59, 59, 999999), time(1)]),
    "void": (pa.int64(), []),
    "nothing": (pa.string(), []),
}


def random_table(rng: random.Random) -> pa.Table:
    """A table whose columns have a few of these values, all of them, only one, many others, or none."""
    rows = rng.choice([0, 1, 3, 40, 200])
    columns = {name: _column(rng, of, special, rows) for name, (of, special) in SPECIAL.items()}
    text, number = (columns[name].to_pylist() for name in ("text", "double"))
    return pa.table(
        columns
        | {
            "box": pa.array(
                [None if rng.random() < 0.1 else {"a.b": one, "n": two} for one, two in zip(text, number, strict=True)],
                pa.struct({"a.b": pa.string(), "n": pa.float64()}),
            ),
            "kinds": _column(rng, *SPECIAL["text"], rows).dictionary_encode(),
            "large": _column(rng, *SPECIAL["text"], rows).cast(pa.large_string()),
            "tags": pa.array(
                [rng.choice([None, [], rng.choices([*text, None, ""], k=3)]) for _ in range(rows)],
                pa.list_(pa.string()),
            ),
        }
    )


def _column(rng: random.Random, of: pa.DataType, special: list[Any], rows: int) -> pa.Array:
    how = rng.choice(["few", "all", "one", "none"])
    some = special if how == "all" else rng.sample(special, min(len(special), 2 if how == "few" else how == "one"))
    nulls = rng.choice([0.0, 0.2])
    return pa.array([rng.choice(some) if some and rng.random() >= nulls else None for _ in range(rows)], of)


# --- what DuckDB computes ---------------------------------------------------------------------------------------------

IN_STRUCTS = {"box.a.b": 'box."a.b"', "box.n": "box.n"}
AS_NUMBERS = {"moment": "epoch_us(moment)", "instant": "epoch_us(instant)", "nanos": "epoch_ns(nanos)"}


def exact_figures(paths: Sequence[Path], *, with_lists: bool) -> dict[str, dict[str, Any]]:
    """The figures of all columns by name."""
    columns = {name: AS_NUMBERS.get(name, name) for name in (*SPECIAL, "kinds", "large")} | IN_STRUCTS
    files = f"read_parquet({[str(path) for path in paths]})"
    with duckdb.connect() as duck:
        figures = {name: _figures(duck, sql, files) for name, sql in columns.items()}
        if with_lists:
            figures["tags.element"] = _figures(duck, "tag", f"(SELECT unnest(tags) AS tag FROM {files})")
    return figures


def _figures(duck: duckdb.DuckDBPyConnection, sql: str, source: str) -> dict[str, Any]:
    is_nan = f"isnan({sql})" if sql in ("double", "float", "box.n") else "false"
    ranks = ", ".join(f"{rank}::DOUBLE" for rank in RANKS)
    query = f"""
        SELECT count(*) AS rows, count(*) - count({sql}) AS nulls, count_if({is_nan}) AS nans, count(DISTINCT {sql}) AS ndv,
               min({sql}) FILTER (NOT {is_nan}) AS least, max({sql}) FILTER (NOT {is_nan}) AS most,
               quantile_disc({sql}, [{ranks}]) FILTER (NOT {is_nan}) AS quantiles
        FROM {source}"""
    figures = duck.execute(query).fetchone()
    assert figures is not None
    names = ("rows", "nulls", "nans", "ndv", "least", "most", "quantiles")
    counted = duck.execute(f"SELECT {sql}, count(*) FROM {source} WHERE {sql} IS NOT NULL GROUP BY 1").fetchall()
    return dict(zip(names, figures, strict=True)) | {"counts": dict(counted)}


# --- the comparison ---------------------------------------------------------------------------------------------------


def differences(merged: Merged, exact: Mapping[str, dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """Every figure that claims to be exact or a bound, and whether it is."""
    by_name = {stats.column_name: stats for stats in merged.columns}
    assert by_name.keys() == exact.keys()
    for name, stats in by_name.items():
        for what, is_right in _differences(name, stats, exact[name]):
            yield f"{name}: {what}", is_right


def _differences(name: str, stats: v1.ColumnStats, exact: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    quality = {
        each: stats.properties.get(f"quality.{each}") for each in ("ndv", "min", "max", "top_values", "quantiles")
    }
    yield "rows", stats.value_count == exact["rows"]
    yield "nulls", stats.null_count == exact["nulls"]
    yield "nans", stats.nan_count == exact["nans"]
    yield "ndv", stats.ndv.exact == exact["ndv"] if exact["rows"] else not stats.HasField("ndv")
    for side, is_outside in (("min", lambda one, other: one <= other), ("max", lambda one, other: one >= other)):
        if stats.HasField(side):  # type: ignore[arg-type]
            ours, truth = (
                _plain(name, comparable(getattr(stats, side), stats)),
                exact["least" if side == "min" else "most"],
            )
            yield side, ours == truth if quality[side] == EXACT else is_outside(ours, truth)
    if quality["top_values"] == EXACT:
        kind = logical_type(stats.logical_type)
        shown = {bound(kind, text).value: count for text, count in json.loads(stats.properties["top_values"])}
        yield "top values", all(exact["counts"][value] == count for value, count in shown.items())
    if quality["quantiles"] == EXACT:
        ours = [_plain(name, value) for value in quantiles(stats).values()]
        yield "quantiles", ours == exact["quantiles"]


def _plain(name: str, value: Any) -> Any:
    """A timestamp as a number, as in `AS_NUMBERS`."""
    if name not in AS_NUMBERS:
        return value
    return (value - EPOCH) // timedelta(microseconds=1) * (1000 if name == "nanos" else 1)


Compute = Callable[[TableHandle, Snapshot], pa.Table]


def compared(folder: Path, seeds: Sequence[int], compute: Compute, *, with_lists: bool, **options: Any) -> int:
    """Profile random tables in this way, and return how many figures were compared."""
    count, wrong = 0, []
    for seed in seeds:
        rng = random.Random(seed)
        tables = [random_table(rng) for _ in range(3)]
        tables = tables if with_lists else [each.drop_columns(["tags"]) for each in tables]
        paths = write(folder / str(seed) / "t", *tables, **options)
        with opened(folder / str(seed)) as (handle, snapshot):
            merged = merge(compute(handle, snapshot), handle.files(snapshot), handle.schema)
            schema = handle.schema
        exact = exact_figures(paths, with_lists=with_lists)
        found = list(differences(merged, exact))
        wrong += [f"table {seed}, {what}" for what, is_right in found if not is_right]
        count += len(found)
        puffin = write_puffin(merged.sketches, schema, snapshot_id=1, sequence_number=1)
        for blob in puffin.blobs:  # as in Iceberg, the empty value is in no sketch
            (number,) = blob["fields"]
            stats = next(each for each in merged.columns if each.column_id == number)
            sketch = datasketches.compact_theta_sketch.deserialize(merged.sketches[number])
            own = exact[stats.column_name]
            expected = own["ndv"] - ("" in own["counts"] or b"" in own["counts"])
            if not (sketch.get_estimate() == int(blob["properties"]["ndv"]) == expected):
                wrong.append(f"table {seed}, {stats.column_name}: Puffin")
            count += 1
    assert wrong == []
    return count


def test_figures_of_this_process_are_those_of_exact_sql(tmp_path: Path) -> None:
    tables = range(100 if scope.ALL else 10)
    count = compared(tmp_path, tables, profiled_in_process, with_lists=False)
    assert count > 100 * len(tables), count


class TestWithSpark:
    pytestmark = SPARK
    tables = range(1000, 1010 if scope.ALL else 1001)

    @pytest.mark.parametrize("row_group_size", [None, 20])
    def test_figures_of_tasks_are_those_of_exact_sql(
        self, tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, row_group_size: int | None
    ) -> None:
        """Of files with several row groups, each part is summarized by another task."""
        if row_group_size:
            monkeypatch.setattr(scans, "_PART_BYTES", 8_000)
        compute = partial(profiled, spark)
        count = compared(tmp_path, self.tables, compute, with_lists=True, row_group_size=row_group_size)
        assert count > 100 * len(self.tables), count
