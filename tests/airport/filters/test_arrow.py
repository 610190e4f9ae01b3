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


def selected(*predicates: dict[str, Any]) -> list[int]:
    rows = ROWS.append_column("row", pa.array(range(ROWS.num_rows)))
    expression = arrow(*predicates, schema=ROWS.schema)
    return rows.filter(expression)["row"].to_pylist() if expression is not None else list(range(ROWS.num_rows))


def number(op: str, value: float | None) -> dict[str, Any]:
    return compare(D, op, constant("DOUBLE", value))


def test_and_omits_unsupported_child_but_or_and_not_are_omitted_entirely() -> None:
    assert selected(both(FIVE, UNKNOWN)) == [0, 3]
    assert arrow(either(FIVE, UNKNOWN)) is None
    assert arrow(negate(both(FIVE, UNKNOWN))) is None
    assert arrow(UNKNOWN) is None
    assert filters.to_arrow(filters.parse("")) is None


def test_null_is_neither_equal_nor_unequal() -> None:
    assert selected(negate(FIVE)) == [1]
    assert selected(compare(column(0), "EQUAL", constant("INTEGER", None))) == []
    assert selected(compare(column(0), "NOT_DISTINCT_FROM", constant("INTEGER", None))) == [2]
    assert selected(compare(column(0), "DISTINCT_FROM", constant("INTEGER", 5))) == [1, 2]
    assert selected(operator("COMPARE_IN", column(0), constant("INTEGER", 6), constant("INTEGER", None))) == [1]
    assert selected(operator("COMPARE_NOT_IN", column(0), constant("INTEGER", 6))) == [0, 3]
    assert selected(operator("COMPARE_NOT_IN", column(0), constant("INTEGER", 6), constant("INTEGER", None))) == []


@pytest.mark.parametrize("op", ["GREATERTHAN", "GREATERTHANOREQUALTO", "NOTEQUAL", "DISTINCT_FROM"])
def test_comparison_that_nan_satisfies_is_not_encoded(op: str) -> None:
    assert arrow(number(op, 0.5)) is None
    assert arrow(number("EQUAL", math.nan)) is None
    assert arrow(operator("COMPARE_NOT_IN", D, constant("DOUBLE", 0.5))) is None
    assert arrow(call("isnan", D)) is None


def test_nan_is_greater_than_every_number() -> None:
    assert selected(number("LESSTHAN", math.inf)) == [1, 3]
    assert selected(number("LESSTHANOREQUALTO", math.nan)) == [0, 1, 3]
    assert selected(negate(call("isnan", D))) == [1, 3]


def test_negative_zero_equals_zero() -> None:
    assert selected(number("EQUAL", 0.0)) == [3]
    assert selected(operator("COMPARE_IN", D, constant("DOUBLE", 0.0), constant("DOUBLE", 7.0))) == [3]


@pytest.mark.parametrize(
    ("pattern", "rows"),
    [("a%", [0, 1]), ("a_c", [0, 1]), ("%\n%", [1]), ("\\%", []), ("%", [0, 1, 3]), ("", [])],
)
def test_like_matches_as_in_duckdb(pattern: str, rows: list[int]) -> None:
    assert selected(call("~~", S, constant("VARCHAR", pattern))) == rows
    assert selected(call("!~~", S, constant("VARCHAR", pattern))) == [row for row in (0, 1, 3) if row not in rows]


def test_escaped_wildcard_is_literal() -> None:
    assert selected(call("like_escape", S, constant("VARCHAR", "$%"), constant("VARCHAR", "$"))) == [3]
    assert arrow(call("like_escape", S, constant("VARCHAR", "a$"), constant("VARCHAR", "$"))) is None


def test_case_insensitive_matching_is_not_encoded_because_arrow_folds_other_letters() -> None:
    assert arrow(compare(call("lower", S, of="VARCHAR"), "EQUAL", constant("VARCHAR", "abc"))) is None
    assert arrow(call("~~*", S, constant("VARCHAR", "a%"))) is None


@pytest.mark.parametrize(
    ("stored", "supported"),
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
def test_literal_is_cast_to_the_column_type_or_the_predicate_is_omitted(stored: pa.DataType, supported: bool) -> None:
    expression = arrow(FIVE, schema=pa.schema({"i": stored}))
    assert (expression is not None) is supported
    if supported:
        assert pa.table({"i": pa.array([5, 6], stored)}).filter(expression).num_rows == 1


@pytest.mark.parametrize(
    ("of", "raw", "stored", "supported"),
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
def test_equivalent_types_are_encoded(of: Any, raw: Any, stored: pa.DataType, supported: bool) -> None:
    expression = arrow(compare(column(0, of), "EQUAL", constant(of, raw)), schema=pa.schema({"i": stored}))
    assert (expression is not None) is supported
    if supported:
        assert pa.schema({"i": stored}).empty_table().filter(expression).num_rows == 0


def test_missing_or_duplicate_column_is_omitted() -> None:
    assert arrow(FIVE, schema=pa.schema({"s": pa.string()})) is None
    assert arrow(operator("OPERATOR_IS_NULL", column(0)), schema=pa.schema({"s": pa.string()})) is None
    twice = pa.schema([pa.field("i", pa.int32()), pa.field("i", pa.int32())])
    assert arrow(FIVE, schema=twice) is None
    assert arrow(operator("OPERATOR_IS_NULL", column(0)), schema=twice) is None


def test_struct_field_is_case_insensitive_and_null_in_a_null_struct() -> None:
    struct = kind("STRUCT", child_types=[{"first": "Size", "second": kind("INTEGER")}])
    field = call("struct_extract", column(0, struct), constant("VARCHAR", "sIZE"), of="INTEGER")
    rows = pa.table({"i": pa.array([None, {"Size": 5}, {"Size": None}], pa.struct({"Size": pa.int32()}))})
    assert rows.filter(arrow(compare(field, "EQUAL", constant("INTEGER", 5)), schema=rows.schema)).num_rows == 1
    assert rows.filter(arrow(operator("OPERATOR_IS_NULL", field), schema=rows.schema)).num_rows == 2


def test_null_check_of_a_union_is_not_encoded_because_arrow_differs() -> None:
    union = kind(
        "UNION", child_types=[{"first": "", "second": kind("UTINYINT")}, {"first": "a", "second": kind("INTEGER")}]
    )
    assert arrow(operator("OPERATOR_IS_NULL", column(0, union))) is None


def equal(count: int) -> list[dict[str, Any]]:
    return [compare(column(0), "EQUAL", constant("INTEGER", n)) for n in range(count)]


def test_or_too_wide_for_arrow_is_omitted() -> None:
    assert selected(either(*equal(500))) == [0, 1, 3]
    assert arrow(either(*equal(501))) is None
    assert arrow(either(*equal(10_000))) is None


def test_only_the_first_of_too_many_conditions_are_encoded() -> None:
    assert selected(FIVE, *[negate(each) for each in equal(5)] * 200) == [0, 3]


def test_casts_that_may_fail_are_not_encoded() -> None:
    assert arrow(compare(cast(S, "INTEGER"), "EQUAL", constant("INTEGER", 5))) is None
    assert arrow(compare(cast(column(0), "TINYINT"), "EQUAL", constant("TINYINT", 5))) is None
    assert selected(compare(cast(column(0), "BIGINT"), "EQUAL", constant("BIGINT", 5))) == [0, 3]


def test_decimals_are_compared_exactly() -> None:
    wide = kind("DECIMAL", width=38, scale=10)
    raw = {"upper": 669260594276348691, "lower": 14143994772844922133}
    exact = Decimal("1234567890123456789012345678.0123456789")
    rows = pa.table({"i": pa.array([exact, Decimal("1234567890123456789012345678.0123456788")], pa.decimal128(38, 10))})
    assert rows.filter(arrow(compare(column(0, wide), "EQUAL", constant(wide, raw)))).num_rows == 1


def test_row_group_statistics_hide_nan_from_arrow(tmp_path: Path) -> None:
    """The reason why NaN is not encoded: if this changed, `f > 1` could be encoded as `f > 1 or is_nan(f)`."""
    pq.write_table(pa.table({"f": [0.5, math.nan]}), tmp_path / "f.parquet")
    assert ds.dataset(tmp_path / "f.parquet").to_table(filter=pc.is_nan(pc.field("f"))).num_rows == 0


def test_schema_of_the_recordings_does_not_change_what_is_encoded() -> None:
    schema = special_rows(1).schema
    for each in WITH_FILTER:
        assert str(filters.to_arrow(each.filter, schema)) == str(filters.to_arrow(each.filter)), each.predicate
