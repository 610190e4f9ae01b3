"""Pruning by statistics, precisely: units that can match are kept, and all others are left out."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pyarrow as pa
import pytest

from airport.filters.predicates import Client
from formats.pushed_filters import sent_filter
from skiway.airport import filters
from skiway.airport.filters.nodes import BOOLEAN, ColumnRef, Compare, Comparison, Constant, Function, Operator, plain
from skiway.client import col
from skiway.client.airport.predicates import Predicate
from skiway.formats.schemas import with_id
from skiway.formats.statistics import _following, column_stats, constant_stats, pruned, stats_struct

SCHEMA = pa.schema(
    [
        with_id(pa.field(name, of), number)
        for number, (name, of) in enumerate(
            [("n", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_())], 1
        )
    ]
)


BIGINT = plain("BIGINT")


def unit(low: Any, high: Any, nulls: int | None = 0, values: int | None = 10, nans: int | None = 0) -> Any:
    return low, high, nulls, values, nans


def units(column: str, *given: Any) -> pa.Table:
    """A table of units, of which one column has statistics."""
    of, number = SCHEMA.field(column).type, SCHEMA.get_field_index(column) + 1
    low, high, nulls, values, nans = zip(*given, strict=True)
    counts = {"null_count": nulls, "value_count": values, **({"nan_count": nans} if pa.types.is_floating(of) else {})}
    known = {name: pa.array(each, pa.int64()) for name, each in counts.items()}
    stats = column_stats(of, len(given), min=pa.array(low, of), max=pa.array(high, of), **known)
    return pa.table({"unit": list(range(len(given))), "stats": stats_struct({number: stats}, len(given))})


@cache
def client() -> Client:
    """DuckDB with a table of the schema."""
    found = Client("SELECT 1")
    found.connection.register("own", pa.schema([pa.field(each.name, each.type) for each in SCHEMA]).empty_table())
    found.connection.execute("CREATE TABLE t AS FROM own")
    return found


def filter_of(predicate: str) -> filters.Filter:
    """The filter that DuckDB pushes down."""
    sent = client().sent(predicate)
    assert sent is not None, f"DuckDB pushes no filter down for {predicate}"
    return filters.parse(sent)


def kept(table: pa.Table, predicate: str | Predicate) -> list[int]:
    """The units that are left for a predicate as DuckDB sends it, or as our own client does."""
    sent = filter_of(predicate) if isinstance(predicate, str) else sent_filter(predicate, SCHEMA)
    found: list[int] = pruned(table, sent, SCHEMA)["unit"].to_pylist()
    return found


NUMBERS = units(
    "n",
    unit(1, 9),
    unit(10, 10, nulls=3),
    unit(11, 20, nulls=9),
    unit(None, None, nulls=10),
    unit(None, None),
    unit(30, 40, nulls=None),
    unit(30, 40, values=None),
)
UNKNOWN = [4]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("n = 9", [0]),
        ("n = 10", [1]),
        ("n = 0", []),
        ("n = 21", []),
        ("n < 10", [0]),
        ("n < 1", []),
        ("n <= 10", [0, 1]),
        ("n <= 0", []),
        ("n > 10", [2, 5, 6]),
        ("n > 40", []),
        ("n >= 10", [1, 2, 5, 6]),
        ("n >= 40", [5, 6]),
        ("n <> 10", [0, 2, 5, 6]),
        ("10 > n", [0]),
        ("n > 9 AND n < 11", [1]),
        ("n = 9 OR n = 40", [0, 5, 6]),
        ("n IN (1, 10)", [0, 1]),
        ("n IN (0, 21)", []),
        ("n IS NOT DISTINCT FROM 10", [1]),
    ],
)
def test_units_are_compared_with_their_bounds(predicate: str, expected: list[int]) -> None:
    assert kept(NUMBERS, predicate) == sorted({*expected, *UNKNOWN})


@pytest.mark.parametrize("count", [64, 65, 200])
def test_list_of_any_length_keeps_the_units_between_its_ends(count: int) -> None:
    """Units beyond the ends are left out; one in a gap between values may be kept."""
    values = [*range(100, 100 + 2 * (count - 1), 2), 1000]
    table = units(
        "n",
        *(unit(90, 99), unit(90, 100), unit(100, 100), unit(100, 1000), unit(1000, 1001), unit(1001, 1002)),
        *(unit(0, 2000), unit(100, 100, nulls=10), unit(None, None)),
    )
    assert kept(table, col("n").isin(values)) == [1, 2, 3, 4, 6, 8]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("n IS NULL", [1, 2, 3, 5]),
        ("n IS NOT NULL", [0, 1, 2, 4, 5, 6]),
        ("n IS DISTINCT FROM 10", [0, 1, 2, 3, 4, 5, 6]),
        ("n IS DISTINCT FROM NULL", [0, 1, 2, 4, 5, 6]),
        ("n IS NOT DISTINCT FROM NULL", [1, 2, 3, 5]),
    ],
)
def test_null_counts_decide_about_nulls(predicate: str, expected: list[int]) -> None:
    assert kept(NUMBERS, predicate) == expected


def test_comparison_with_null_keeps_no_unit() -> None:
    column, null, nine = ColumnRef("n", BIGINT), Constant(None, BIGINT), Constant(9, BIGINT)
    for node in (Comparison(Compare.EQ, column, null), Operator("IN", (column, null), BOOLEAN)):
        assert pruned(NUMBERS, filters.Filter((node,)), SCHEMA).num_rows == 0
    with_nine = filters.Filter((Operator("IN", (column, null, nine), BOOLEAN),))
    assert pruned(NUMBERS, with_nine, SCHEMA)["unit"].to_pylist() == [0, *UNKNOWN]


def test_units_with_one_unknown_bound_are_compared_with_the_other() -> None:
    table = units("n", unit(None, 20), unit(10, None))
    assert kept(table, "n = 30") == [1]
    assert kept(table, "n = 5") == [0]
    assert kept(table, "n <> 10") == kept(table, "n <> 20") == [0, 1]
    assert kept(table, "n IS NOT NULL") == [0, 1]


def test_units_of_one_value_are_distinct_from_it_only_with_nulls() -> None:
    table = units("n", unit(5, 5), unit(5, 5, nulls=1), unit(4, 5), unit(5, 6))
    assert kept(table, "n IS DISTINCT FROM 5") == [1, 2, 3]
    assert kept(table, "n <> 5") == [2, 3]


def test_nan_is_greater_than_all_numbers_and_outside_of_the_bounds() -> None:
    table = units("f", unit(1.0, 2.0), unit(1.0, 2.0, nans=1), unit(1.0, 2.0, nans=None), unit(3.0, 3.0))
    assert kept(table, "f > 2.0") == [1, 2, 3]
    assert kept(table, "f >= 2.5") == [1, 2, 3]
    assert kept(table, "f > 3.0") == [1, 2]
    assert kept(table, "f <> 3.0") == [0, 1, 2]
    assert kept(table, "f < 1.0") == []
    assert kept(table, "f = 5.0") == []
    assert kept(table, "f = 'nan'::DOUBLE") == [0, 1, 2, 3]


@pytest.mark.parametrize("count", [2, 65])
def test_list_with_nan_keeps_all_units(count: int) -> None:
    table = units("f", unit(100.0, 200.0, nans=1), unit(1.0, 2.0))
    assert kept(table, col("f").isin(map(float, range(count)))) == [1]
    assert kept(table, col("f").isin([*map(float, range(count)), math.nan])) == [0, 1]


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("s LIKE 'b%'", [1, 2]),
        ("s LIKE 'b_x%'", [1, 2]),
        ("starts_with(s, 'bb')", [1, 2]),
        ("s LIKE 'c%'", [3]),
        ("s LIKE 'a%'", [0]),
        ("s LIKE 'd%'", []),
        ("s LIKE '%b'", [0, 1, 2, 3, 4]),
    ],
)
def test_patterns_are_compared_by_their_prefix(predicate: str, expected: list[int]) -> None:
    table = units("s", unit("a", "az"), unit("b", "bz"), unit("bb", "bb"), unit("c", "cc"), unit("b", "b", nulls=10))
    assert kept(table, predicate) == expected


def test_units_with_an_unknown_bound_may_have_the_prefix() -> None:
    table = units("s", unit(None, None), unit(None, "b"), unit("c", None), unit(None, "a"), unit("d", None))
    assert kept(table, "s LIKE 'b%'") == [0, 1]
    assert kept(table, "s LIKE 'c%'") == [0, 2]


def test_prefix_that_bounds_cannot_decide_about_keeps_all_units() -> None:
    """It is empty, or the column has another type than the client knows."""
    text = plain("VARCHAR")
    for table, name, prefix in ((units("s", unit("a", "b")), "s", ""), (NUMBERS, "n", "b")):
        node = Function("starts_with", (ColumnRef(name, text), Constant(prefix, text)), BOOLEAN)
        assert pruned(table, filters.Filter((node,)), SCHEMA).num_rows == table.num_rows


def test_string_after_all_with_a_prefix() -> None:
    assert [_following(each) for each in ("a", "az", "a\x7f", "\U0010fffe")] == ["b", "a{", "a\x80", "\U0010ffff"]
    assert _following("a\U0010ffff") is None
    assert _following("a\ud7ff") is None
    assert _following("\ue000") == "\ue001"


def test_booleans() -> None:
    table = units("b", unit(True, True), unit(False, False), unit(False, True), unit(None, None))
    assert kept(table, "b") == [0, 2, 3]
    assert kept(table, "NOT b") == [1, 2, 3]


def test_nothing_is_left_out_without_statistics_or_a_filter() -> None:
    assert kept(NUMBERS, "s = 'x'") == list(range(7))
    assert pruned(NUMBERS, None, SCHEMA) is NUMBERS
    assert pruned(NUMBERS.slice(0, 0), filter_of("n = 1"), SCHEMA).num_rows == 0


def test_statistics_of_constants() -> None:
    counts = pa.array([3, 4, 5], pa.int64())
    numbers = constant_stats(pa.array([7, None, 8]), counts).to_pylist()
    assert [each["null_count"] for each in numbers] == [0, 4, 0]
    assert [(each["min"], each["max"], each["exact"]) for each in numbers] == [(7, 7, True), (None, None, False), (8, 8, True)]  # fmt: skip
    assert [(each["nan_count"], each["value_count"]) for each in numbers] == [(0, 3), (0, 4), (0, 5)]
    floats = constant_stats(pa.array([1.5, None, float("nan")]), counts).to_pylist()
    assert [each["nan_count"] for each in floats] == [0, 0, 5]
    assert [each["null_count"] for each in floats] == [0, 4, 0]
    assert [each["min"] for each in floats] == [1.5, None, None]
    assert [each["exact"] for each in floats] == [True, False, False]


@pytest.mark.parametrize(("value", "left"), [(True, [0, 1]), (False, []), (None, [])])
def test_constant_filter_keeps_all_units_or_none(value: bool | None, left: list[int]) -> None:
    constant = filters.Filter((Constant(value, BOOLEAN),))
    assert pruned(units("n", unit(1, 2), unit(3, 4)), constant, SCHEMA)["unit"].to_pylist() == left
