"""The statistics of all columns are merged at once; the simple way, column by column, gives the expected values."""

from __future__ import annotations

import random
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from skiway.formats.statistics import column_stats, constant_stats, merged_stats, merged_units, stats_struct

VALUES: dict[pa.DataType, list[Any]] = {
    pa.int64(): [-5, 0, 7, 2**62],
    pa.uint64(): [0, 2**64 - 1],
    pa.bool_(): [False, True],
    pa.float32(): [-1.5, 0.0, float("inf")],
    pa.float16(): [1.5, 2.5],
    pa.string(): ["", "a", "ä", "z" * 100],
    pa.binary(): [b"", b"\0", b"\xff"],
    pa.binary(4): [b"abcd", b"\xff" * 4],
    pa.decimal128(38, 10): [Decimal("-1.5"), Decimal("12345678901234567890.5")],
    pa.decimal256(60, 0): [Decimal(1), Decimal(10**50)],
    pa.date32(): [date(1, 1, 1), date(9999, 12, 31)],
    pa.time64("us"): [0, 86_399_999_999],
    pa.timestamp("us"): [datetime(1500, 1, 1), datetime(2026, 1, 1)],
    pa.timestamp("ns", tz="UTC"): [0, 2**62],
    pa.null(): [],
}


def _column(of: pa.DataType, units: int, chance: random.Random) -> pa.StructArray:
    def some(values: list[Any], kind: pa.DataType) -> pa.Array:
        return pa.array([chance.choice([*values, None]) for _ in range(units)], kind)

    ends = [sorted(chance.choices(VALUES[of], k=2)) if VALUES[of] else [None, None] for _ in range(units)]
    is_known = [chance.random() < 0.9 for _ in range(units)]
    bounds = {
        name: pa.array([end[place] if known else None for end, known in zip(ends, is_known, strict=True)], of)
        for place, name in enumerate(("min", "max"))
    }
    counts = {name: some([0, 3, 3, 10], pa.int64()) for name in ("value_count", "null_count", "nan_count")}
    return column_stats(of, units, exact=chance.random() < 0.5, **counts, **bounds)


@pytest.mark.parametrize("units", [0, 1, 2, 7])
@pytest.mark.parametrize("rows_at_once", [1, 10, 1 << 20])
def test_all_columns_are_merged_like_one(units: int, rows_at_once: int) -> None:
    chance = random.Random(units)
    types = [of for of in VALUES for _ in range(5) if units or of != pa.float16()]
    chance.shuffle(types)
    columns = {number: _column(of, units, chance) for number, of in enumerate(types, 1)}
    for number in columns:  # Arrow cannot compare half floats
        if types[number - 1] == pa.float16():
            columns[number] = column_stats(pa.float16(), units)

    merged = merged_units(stats_struct(columns, units), rows_at_once=rows_at_once)

    assert len(merged) == 1
    assert merged.type.names == [str(number) for number in columns]
    for number, column in columns.items():
        if types[number - 1] == pa.float16():
            assert merged.field(str(number))[0]["min"].as_py() is None
        else:
            assert merged.field(str(number)).to_pylist() == merged_stats(column).to_pylist(), types[number - 1]
            assert merged.field(str(number)).type == merged_stats(column).type


def test_a_table_without_columns_has_no_statistics() -> None:
    assert merged_units(stats_struct({}, 3)).type.num_fields == 0


def test_a_bound_is_known_only_if_every_unit_with_values_has_it() -> None:
    def column(lows: list[int | None], nulls: list[int]) -> pa.StructArray:
        counts = {"value_count": pa.array([5, 5]), "null_count": pa.array(nulls)}
        return column_stats(pa.int64(), 2, **counts, min=pa.array(lows, pa.int64()), max=pa.array(lows, pa.int64()))

    columns = {1: column([3, 1], [0, 0]), 2: column([3, None], [0, 0]), 3: column([3, None], [0, 5])}
    merged = merged_units(stats_struct(columns, 2))
    assert [merged.field(str(number))[0]["min"].as_py() for number in columns] == [1, None, 3]


def test_units_with_only_nan_do_not_hide_the_bounds_of_others() -> None:
    nan, ends = float("nan"), pa.array([1.5, None, None, None])

    def bounds(nans: list[int | None]) -> tuple[Any, ...]:
        counts = {"value_count": pa.array([5] * 4), "null_count": pa.array([0, 2, 5, 0])}
        of = column_stats(pa.float64(), 4, exact=True, **counts, nan_count=pa.array(nans), min=ends, max=ends)
        one, several = merged_stats(of)[0].as_py(), merged_units(stats_struct({1: of}, 4)).field("1")[0].as_py()
        assert one == several
        return one["min"], one["max"], one["nan_count"], one["exact"]

    assert bounds([0, 3, 0, 5]) == (1.5, 1.5, 8, True)
    assert bounds([0, 2, 0, 5]) == (None, None, 7, False), "a unit has another value"
    assert bounds([0, 3, 0, None]) == (None, None, None, False), "a unit may have other values"
    constant = constant_stats(pa.array([nan, 1.0]), pa.array([2, 2]))
    assert merged_stats(constant)[0]["max"].as_py() == 1.0
