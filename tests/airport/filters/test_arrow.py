from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from airport.filters.building import (
    FIVE,
    UNKNOWN,
    both,
    call,
    cast,
    column,
    compare,
    constant,
    either,
    kind,
    negate,
    operator,
    text,
)
from airport.filters.recorded import WITH_FILTER, special_rows
from skiway.airport import filters

S = column(1, "VARCHAR")
D = column(2, "DOUBLE")
NAMES = ("i", "s", "d")
ROWS = pa.table(
    {
        "i": pa.array([5, 6, None, 5], pa.int32()),
        "s": ["abc", "a\nc", None, "%"],
        "d": [math.nan, 1.0, None, -0.0],
    }
)


def arrow(*predicates: dict[str, Any], schema: pa.Schema | None = None, names: tuple[str, ...] = NAMES) -> Any:
    return filters.to_arrow(filters.parse(text(*predicates, names=names)), schema)


def kept(*predicates: dict[str, Any]) -> list[int]:
    rows = ROWS.append_column("row", pa.array(range(ROWS.num_rows)))
    expression = arrow(*predicates, schema=ROWS.schema)
    return rows.filter(expression)["row"].to_pylist() if expression is not None else list(range(ROWS.num_rows))


def number(op: str, value: float | None) -> dict[str, Any]:
    return compare(D, op, constant("DOUBLE", value))


def test_and_drops_a_child_or_and_not_the_whole() -> None:
    assert kept(both(FIVE, UNKNOWN)) == [0, 3]
    assert arrow(either(FIVE, UNKNOWN)) is None
    assert arrow(negate(both(FIVE, UNKNOWN))) is None
    assert arrow(UNKNOWN) is None
    assert filters.to_arrow(filters.parse("")) is None


def test_null_is_never_equal_and_never_different() -> None:
    assert kept(negate(FIVE)) == [1]
    assert kept(compare(column(0), "EQUAL", constant("INTEGER", None))) == []
    assert kept(compare(column(0), "NOT_DISTINCT_FROM", constant("INTEGER", None))) == [2]
    assert kept(compare(column(0), "DISTINCT_FROM", constant("INTEGER", 5))) == [1, 2]
    assert kept(operator("COMPARE_IN", column(0), constant("INTEGER", 6), constant("INTEGER", None))) == [1]
    assert kept(operator("COMPARE_NOT_IN", column(0), constant("INTEGER", 6))) == [0, 3]
    assert kept(operator("COMPARE_NOT_IN", column(0), constant("INTEGER", 6), constant("INTEGER", None))) == []


@pytest.mark.parametrize("op", ["GREATERTHAN", "GREATERTHANOREQUALTO", "NOTEQUAL", "DISTINCT_FROM"])
def test_a_comparison_that_nan_satisfies_is_not_said(op: str) -> None:
    assert arrow(number(op, 0.5)) is None
    assert arrow(number("EQUAL", math.nan)) is None
    assert arrow(operator("COMPARE_NOT_IN", D, constant("DOUBLE", 0.5))) is None
    assert arrow(call("isnan", D)) is None


def test_nan_is_greater_than_every_number() -> None:
    assert kept(number("LESSTHAN", math.inf)) == [1, 3]
    assert kept(number("LESSTHANOREQUALTO", math.nan)) == [0, 1, 3]
    assert kept(negate(call("isnan", D))) == [1, 3]


def test_zero_has_no_sign() -> None:
    assert kept(number("EQUAL", 0.0)) == [3]
    assert kept(operator("COMPARE_IN", D, constant("DOUBLE", 0.0), constant("DOUBLE", 7.0))) == [3]


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [("a%", [0, 1]), ("a_c", [0, 1]), ("%\n%", [1]), ("\\%", []), ("%", [0, 1, 3]), ("", [])],
)
def test_like_is_matched_as_duckdb_does(pattern: str, rows: list[int]) -> None:
    assert kept(call("~~", S, constant("VARCHAR", pattern))) == rows
    assert kept(call("!~~", S, constant("VARCHAR", pattern))) == [row for row in (0, 1, 3) if row not in rows]


def test_an_escaped_wildcard_is_a_letter() -> None:
    assert kept(call("like_escape", S, constant("VARCHAR", "$%"), constant("VARCHAR", "$"))) == [3]
    assert arrow(call("like_escape", S, constant("VARCHAR", "a$"), constant("VARCHAR", "$"))) is None


def test_letters_are_not_folded_since_arrow_knows_other_letters() -> None:
    assert arrow(compare(call("lower", S, of="VARCHAR"), "EQUAL", constant("VARCHAR", "abc"))) is None
    assert arrow(call("~~*", S, constant("VARCHAR", "a%"))) is None


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (pa.int8(), True),
        (pa.uint64(), True),
        (pa.dictionary(pa.int8(), pa.int64()), True),
        (pa.float64(), False),
        (pa.string(), False),
        (pa.decimal128(9, 0), False),
    ],
    ids=str,
)
def test_a_literal_takes_the_columns_type_or_the_predicate_is_left_out(stored: pa.DataType, said: bool) -> None:
    expression = arrow(FIVE, schema=pa.schema({"i": stored}))
    assert (expression is not None) is said
    if said:
        assert pa.table({"i": pa.array([5, 6], stored)}).filter(expression).num_rows == 1


@pytest.mark.parametrize(
    ("of", "raw", "stored", "said"),
    [
        ("TIMESTAMP", 1, pa.timestamp("us"), True),
        ("TIMESTAMP", 1, pa.timestamp("ns"), False),
        ("TIMESTAMP", 1, pa.timestamp("us", tz="UTC"), False),
        ("TIMESTAMP WITH TIME ZONE", 1, pa.timestamp("us", tz="Europe/Berlin"), True),
        ("TIMESTAMP WITH TIME ZONE", 1, pa.timestamp("us"), False),
        ("VARCHAR", "a", pa.large_string(), True),
        ("VARCHAR", "a", pa.dictionary(pa.int32(), pa.string()), True),
        ("VARCHAR", "a", pa.binary(), False),
        ("BLOB", "a", pa.large_binary(), True),
        ("BLOB", "a", pa.binary(1), False),
        ("FLOAT", 1.5, pa.float64(), False),
        ("DATE", 1, pa.date64(), False),
        ("INTEGER", 300, pa.int8(), False),
        (kind("DECIMAL", width=9, scale=2), 125, pa.decimal128(18, 2), True),
        (kind("DECIMAL", width=9, scale=2), 125, pa.decimal128(18, 3), False),
    ],
    ids=str,
)
def test_types_that_mean_the_same_are_said(of: Any, raw: Any, stored: pa.DataType, said: bool) -> None:
    expression = arrow(compare(column(0, of), "EQUAL", constant(of, raw)), schema=pa.schema({"i": stored}))
    assert (expression is not None) is said
    if said:
        assert pa.schema({"i": stored}).empty_table().filter(expression).num_rows == 0


def test_a_column_that_the_schema_lacks_or_has_twice_is_left_out() -> None:
    assert arrow(FIVE, schema=pa.schema({"s": pa.string()})) is None
    assert arrow(operator("OPERATOR_IS_NULL", column(0)), schema=pa.schema({"s": pa.string()})) is None
    twice = pa.schema([pa.field("i", pa.int32()), pa.field("i", pa.int32())])
    assert arrow(FIVE, schema=twice) is None
    assert arrow(operator("OPERATOR_IS_NULL", column(0)), schema=twice) is None


def test_a_struct_field_is_found_in_any_case_and_null_in_a_null_struct() -> None:
    struct = kind("STRUCT", child_types=[{"first": "Size", "second": kind("INTEGER")}])
    field = call("struct_extract", column(0, struct), constant("VARCHAR", "sIZE"), of="INTEGER")
    rows = pa.table({"i": pa.array([None, {"Size": 5}, {"Size": None}], pa.struct({"Size": pa.int32()}))})
    assert rows.filter(arrow(compare(field, "EQUAL", constant("INTEGER", 5)), schema=rows.schema)).num_rows == 1
    assert rows.filter(arrow(operator("OPERATOR_IS_NULL", field), schema=rows.schema)).num_rows == 2


def test_a_union_may_be_null_to_the_client_but_not_to_arrow() -> None:
    union = kind(
        "UNION", child_types=[{"first": "", "second": kind("UTINYINT")}, {"first": "a", "second": kind("INTEGER")}]
    )
    assert arrow(operator("OPERATOR_IS_NULL", column(0, union))) is None


def equal(count: int) -> list[dict[str, Any]]:
    return [compare(column(0), "EQUAL", constant("INTEGER", n)) for n in range(count)]


def test_an_or_too_wide_for_arrow_is_left_out() -> None:
    assert kept(either(*equal(500))) == [0, 1, 3]
    assert arrow(either(*equal(501))) is None
    assert arrow(either(*equal(10_000))) is None


def test_of_too_many_conditions_the_first_are_said() -> None:
    assert kept(FIVE, *[negate(each) for each in equal(5)] * 200) == [0, 3]


def test_casts_that_may_fail_are_not_said() -> None:
    assert arrow(compare(cast(S, "INTEGER"), "EQUAL", constant("INTEGER", 5))) is None
    assert arrow(compare(cast(column(0), "TINYINT"), "EQUAL", constant("TINYINT", 5))) is None
    assert kept(compare(cast(column(0), "BIGINT"), "EQUAL", constant("BIGINT", 5))) == [0, 3]


def test_decimals_are_compared_digit_by_digit() -> None:
    wide = kind("DECIMAL", width=38, scale=10)
    raw = {"upper": 669260594276348691, "lower": 14143994772844922133}
    exact = Decimal("1234567890123456789012345678.0123456789")
    rows = pa.table({"i": pa.array([exact, Decimal("1234567890123456789012345678.0123456788")], pa.decimal128(38, 10))})
    assert rows.filter(arrow(compare(column(0, wide), "EQUAL", constant(wide, raw)))).num_rows == 1


def test_statistics_of_a_row_group_hide_nan_from_arrow(tmp_path: Path) -> None:
    """Why NaN is not spoken of: were this to change, `f > 1` could be said as `f > 1 or is_nan(f)`."""
    pq.write_table(pa.table({"f": [0.5, math.nan]}), tmp_path / "f.parquet")
    assert ds.dataset(tmp_path / "f.parquet").to_table(filter=pc.is_nan(pc.field("f"))).num_rows == 0


def test_what_the_schema_of_the_recordings_takes_is_what_is_said_without_it() -> None:
    schema = special_rows(1).schema
    for each in WITH_FILTER:
        assert str(filters.to_arrow(each.filter, schema)) == str(filters.to_arrow(each.filter)), each.predicate
