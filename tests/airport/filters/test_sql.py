from __future__ import annotations

import math
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    value,
)
from airport.filters.recorded import WITH_FILTER
from skiway.airport import filters
from skiway.airport.filters import Constant, Interval, LogicalType
from skiway.airport.filters.sql import literal
from skiway.airport.filters.translation import Inexpressible

S = column(1, "VARCHAR")
X = compare(S, "EQUAL", constant("VARCHAR", "x"))


def sql(*predicates: dict[str, Any], names: tuple[str, ...] = ("i", "s", "d"), **mapping: Any) -> str | None:
    return filters.to_sql(filters.parse(text(*predicates, names=names)), **mapping)


def recorded(predicate: str) -> str | None:
    (match,) = [each.filter for each in WITH_FILTER if each.predicate == predicate]
    return filters.to_sql(match)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        ("i32 = 5", '"i32" = 5'),
        ("i32 NOT BETWEEN 1 AND 10", '("i32" < 1 OR "i32" > 10)'),
        ("NOT (i32 = 1 OR s = 'x')", '"i32" <> 1 AND "s" <> \'x\''),
        ("(i32 = 1 AND s = 'x') OR (i32 = 2 AND s = 'y')", '("i32" = 1 AND "s" = \'x\' OR "i32" = 2 AND "s" = \'y\')'),
        ("s = 'it''s'", "\"s\" = 'it''s'"),
        ("s NOT LIKE 'a%'", "NOT prefix(\"s\", 'a')"),
        ("d = 'NaN'::DOUBLE", "\"d\" = 'nan'::DOUBLE"),
        ("bl = '\\xAA\\x01ab'::BLOB", "\"bl\" = '\\xAA\\x01\\x61\\x62'::BLOB"),
        ("dt = 'infinity'::DATE", "\"dt\" = 'infinity'::DATE"),
        ("CAST(s AS INTEGER) = 5", 'TRY(CAST("s" AS INTEGER) = 5) IS NOT FALSE'),
        ("i32 = 5 AND random() > 2", '"i32" = 5'),
        ("random() > 0.5", None),
        ("hash(i32) > 5", None),
        ("age(ts) > INTERVAL '3 years'", None),
        ("h = 170141183460469231731687303715884105727", None),
    ],
)
def test_recorded_predicates_read_well(predicate: str, expected: str | None) -> None:
    assert recorded(predicate) == expected


def test_and_omits_the_unsupported_child() -> None:
    assert sql(both(FIVE, UNKNOWN)) == '"i" = 5'
    assert sql(FIVE, UNKNOWN) == '"i" = 5'
    assert sql(either(both(FIVE, UNKNOWN), X)) == '("i" = 5 OR "s" = \'x\')'


def test_or_and_not_with_an_unsupported_child_are_omitted_entirely() -> None:
    assert sql(either(FIVE, UNKNOWN)) is None
    assert sql(negate(UNKNOWN)) is None
    assert sql(negate(both(FIVE, UNKNOWN))) is None
    assert sql(both(X, negate(both(FIVE, UNKNOWN)))) == "\"s\" = 'x'"


def test_negated_or_is_an_and_that_omits_the_unsupported_child() -> None:
    assert sql(negate(either(FIVE, UNKNOWN))) == '"i" <> 5'


def test_filter_without_supported_predicates_is_none() -> None:
    assert filters.to_sql(filters.parse("")) is None
    assert sql(UNKNOWN) is None
    assert sql(both()) is None
    assert sql(either()) is None


def test_columns_are_renamed_replaced_or_excluded() -> None:
    assert sql(FIVE, X, columns={"i": 'u"id'}) == '"u""id" = 5 AND "s" = \'x\''
    assert sql(X, expressions={"s": "concat(first, ' ', last)"}) == "(concat(first, ' ', last)) = 'x'"
    assert sql(FIVE, X, columns={"i": None}) == "\"s\" = 'x'"


def test_expression_is_parenthesized() -> None:
    where = sql(FIVE, expressions={"i": "a OR b"})
    assert where == "(a OR b) = 5"


def test_conditions_within_expressions_are_parenthesized() -> None:
    assert sql(compare(FIVE, "EQUAL", X)) == '("i" = 5) = ("s" = \'x\')'
    assert sql(operator("OPERATOR_IS_NULL", either(FIVE, X))) == '(("i" = 5) OR ("s" = \'x\')) IS NULL'
    assert sql(compare(negate(FIVE), "EQUAL", X)) == '(NOT ("i" = 5)) = ("s" = \'x\')'


def test_names_and_strings_cannot_escape_their_quotes() -> None:
    names = ('i" = 5; DROP TABLE t; --', "s'; DROP TABLE t; --")
    evil = compare(column(1, "VARCHAR"), "EQUAL", constant("VARCHAR", "'; DROP TABLE t; --"))
    where = sql(FIVE, evil, names=names)
    connection = duckdb.connect()
    connection.execute('CREATE TABLE t("i"" = 5; DROP TABLE t; --" INTEGER, "s\'; DROP TABLE t; --" VARCHAR)')
    connection.execute("INSERT INTO t VALUES (5, '''; DROP TABLE t; --'), (5, 'x')")
    assert connection.execute(f"SELECT count(*) FROM t WHERE {where}").fetchone() == (1,)


def test_type_names_from_clients_are_checked_before_they_reach_sql() -> None:
    evil = kind("INTEGER) OR true OR CAST(1 AS INTEGER")
    assert sql(compare(cast(S, evil), "EQUAL", constant("INTEGER", 1))) is None
    assert sql(compare(column(0, evil), "EQUAL", constant(evil, None))) is None


def test_functions_of_other_catalogs_are_never_called() -> None:
    assert sql(call("prefix", S, constant("VARCHAR", "a"), catalog="lake", schema="main")) is None
    assert sql(call("nextval", constant("VARCHAR", "ids"), of="BIGINT")) is None


def test_only_division_by_a_nonzero_constant_is_encoded() -> None:
    for divisor, supported in [(constant("INTEGER", 2), True), (constant("INTEGER", 0), False), (column(0), False)]:
        where = sql(operator("OPERATOR_IS_NULL", call("%", column(0), divisor, of="INTEGER")))
        assert (where is not None) is supported


def test_expressions_that_depend_on_the_clients_time_zone_are_not_encoded() -> None:
    zoned = column(0, "TIMESTAMP WITH TIME ZONE")
    assert sql(compare(call("year", zoned, of="BIGINT"), "EQUAL", constant("BIGINT", 2024))) is None
    assert sql(compare(cast(zoned, "DATE"), "EQUAL", constant("DATE", 1))) is None
    assert sql(compare(cast(S, "TIMESTAMP WITH TIME ZONE"), "EQUAL", zoned)) is None
    assert (
        sql(compare(zoned, "EQUAL", constant("TIMESTAMP WITH TIME ZONE", 0)))
        == "\"i\" = '1970-01-01 00:00:00+00'::TIMESTAMP WITH TIME ZONE"
    )


def test_cast_that_failed_in_the_client_is_not_encoded() -> None:
    assert sql(compare(column(0), "EQUAL", cast(constant("VARCHAR", "x"), "INTEGER"))) is None


def test_only_null_checks_are_encoded_for_named_types() -> None:
    geometry = column(0, kind("BLOB", type="GENERIC_TYPE_INFO", alias="GEOMETRY"))
    assert sql(compare(geometry, "EQUAL", constant("BLOB", "a"))) is None
    assert sql(operator("OPERATOR_IS_NULL", geometry)) == '"i" IS NULL'


def test_rows_on_which_the_client_would_fail_are_not_filtered_out() -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT unnest(['5', '6', 'five', NULL]) AS s")
    for op, other in [("EQUAL", "5"), ("NOTEQUAL", "6")]:
        where = sql(compare(cast(S, "INTEGER"), op, constant("INTEGER", 5)))
        selected = {s for (s,) in connection.execute(f"SELECT s FROM t WHERE {where}").fetchall()}
        assert selected == {"five", None, other}


def test_or_too_wide_for_duckdb_is_omitted() -> None:
    def many(count: int) -> str | None:
        return sql(either(*(compare(column(0), "EQUAL", constant("INTEGER", n)) for n in range(count))))

    connection = duckdb.connect()
    connection.execute("CREATE TABLE t AS SELECT range AS i FROM range(5000)")
    assert connection.execute(f"SELECT count(*) FROM t WHERE {many(1000)}").fetchone() == (1000,)
    assert many(1001) is None


# Every type, with its full range: DuckDB must read back the value that was encoded.
INFINITE = 2**63 - 1
plain = [
    (LogicalType("TINYINT"), st.integers(-128, 127)),
    (LogicalType("BIGINT"), st.integers(-(2**63), 2**63 - 1)),
    (LogicalType("UBIGINT"), st.integers(0, 2**64 - 1)),
    (LogicalType("HUGEINT"), st.integers(-(2**127), 2**127 - 1)),
    (LogicalType("UHUGEINT"), st.integers(0, 2**128 - 1)),
    (LogicalType("BIGNUM"), st.integers(-(2**200), 2**200)),
    (LogicalType("BOOLEAN"), st.booleans()),
    (LogicalType("VARCHAR"), st.text(st.characters(exclude_categories=["Cs"]))),
    (LogicalType("BLOB"), st.binary()),
    (LogicalType("UUID"), st.uuids()),
]


@pytest.mark.parametrize(("of", "values"), plain, ids=lambda each: getattr(each, "id", ""))
def test_literals_round_trip(of: LogicalType, values: st.SearchStrategy[Any]) -> None:
    connection = duckdb.connect()

    @given(values)
    def check(expected: Any) -> None:
        actual, kind = (
            connection.execute(f"SELECT v, typeof(v) FROM (SELECT {literal(Constant(expected, of))} AS v)").fetchone()
            or ()
        )
        assert (str(actual) if of.id == "BIGNUM" else actual) == (str(expected) if of.id == "BIGNUM" else expected)
        assert kind == of.sql

    check()


@given(st.floats(allow_nan=True))
def test_doubles_round_trip_to_the_last_bit(expected: float) -> None:
    encoded = literal(Constant(expected, LogicalType("DOUBLE")))
    (actual,) = duckdb.sql(f"SELECT {encoded}").fetchone() or (None,)
    assert actual is not None
    assert (math.isnan(actual) and math.isnan(expected)) or actual.hex() == expected.hex()


RAW = {
    "DATE": ("'1970-01-01'::DATE", st.integers(2 - 2**31, 2**31 - 2)),
    "TIMESTAMP": ("epoch_us", st.integers(-9223372022400000000, INFINITE - 1)),
    "TIMESTAMP WITH TIME ZONE": ("epoch_us", st.integers(-9223372022400000000, INFINITE - 1)),
    "TIMESTAMP_S": ("epoch_us", st.integers(-9223372022400, INFINITE // 10**6 - 1)),
    "TIMESTAMP_MS": ("epoch_us", st.integers(-9223372022400000, INFINITE // 10**3 - 1)),
    "TIMESTAMP_NS": ("epoch_ns", st.integers(-9223286400000000000, INFINITE - 1)),
}
PER_UNIT = {"TIMESTAMP_S": 10**6, "TIMESTAMP_MS": 10**3}


@pytest.mark.parametrize("type_id", RAW)
def test_dates_and_timestamps_round_trip_exactly(type_id: str) -> None:
    connection = duckdb.connect()
    how, counts = RAW[type_id]

    @given(counts)
    def check(count: int) -> None:
        encoded = literal(Constant(count, LogicalType(type_id)))
        raw = f"{encoded} - {how}" if type_id == "DATE" else f"{how}({encoded})"
        actual = connection.execute(f"SELECT {raw}, typeof({encoded})").fetchone()
        assert actual == (count * PER_UNIT.get(type_id, 1), type_id)

    check()


@pytest.mark.parametrize(("type_id", "count"), [(name, 2**31 - 1 if name == "DATE" else INFINITE) for name in RAW])
def test_infinite_dates_stay_infinite(type_id: str, count: int) -> None:
    for sign, expected in [(1, "infinity"), (-1, "-infinity")]:
        actual = duckdb.sql(f"SELECT ({literal(Constant(sign * count, LogicalType(type_id)))})::VARCHAR").fetchone()
        assert actual == (expected,)


@given(st.integers(0, 86400 * 10**6))
def test_times_round_trip_exactly(count: int) -> None:
    micros = literal(Constant(count, LogicalType("TIME")))
    nanos = literal(Constant(count * 1000, LogicalType("TIME_NS")))
    parts = "extract(hour FROM v) * 3600000000 + extract(minute FROM v) * 60000000 + extract(microsecond FROM v)"
    assert duckdb.sql(f"SELECT {parts} FROM (SELECT {micros} AS v)").fetchone() == (count,)
    assert duckdb.sql(f"SELECT {nanos}::TIME = {micros}").fetchone() == (True,)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63) + 1, 2**63 - 1))
def test_intervals_round_trip_with_their_parts(months: int, days: int, micros: int) -> None:
    encoded = literal(Constant(Interval(months, days, micros), LogicalType("INTERVAL")))
    parts = "datepart('year', v) * 12 + datepart('month', v), datepart('day', v)"
    assert duckdb.sql(f"SELECT {parts} FROM (SELECT {encoded} AS v)").fetchone() == (months, days)
    zero = literal(Constant(Interval(0, 0, micros), LogicalType("INTERVAL")))
    assert duckdb.sql(f"SELECT {zero} = to_microseconds({micros})").fetchone() == (True,)


@pytest.mark.parametrize(
    ("constant", "expected"),
    [
        (Constant("101", LogicalType("BIT")), "101"),
        (Constant("big", LogicalType("ENUM", members=("small", "big"))), "big"),
        (Constant((1, None), LogicalType("LIST", fields=(("", LogicalType("INTEGER")),))), "[1, NULL]"),
        (Constant((), LogicalType("LIST", fields=(("", LogicalType("DATE")),))), "[]"),
        (
            Constant(
                (("k", 1),),
                LogicalType("MAP", fields=(("key", LogicalType("VARCHAR")), ("value", LogicalType("INTEGER")))),
            ),
            "{k=1}",
        ),
        (Constant((1,), LogicalType("STRUCT", fields=(("it's", LogicalType("INTEGER")),))), "{'it\\'s': 1}"),
    ],
    ids=lambda each: getattr(getattr(each, "type", None), "id", ""),
)
def test_other_literals_round_trip(constant: Constant, expected: str) -> None:
    encoded = literal(constant)
    assert duckdb.sql(f"SELECT ({encoded})::VARCHAR, typeof({encoded})").fetchone() == (
        expected,
        constant.type.sql,
    )


@pytest.mark.parametrize(
    "unsayable",
    [
        Constant(5, LogicalType("TIME WITH TIME ZONE")),
        Constant(Interval(0, 0, -(2**63)), LogicalType("INTERVAL")),
        Constant(2**62, LogicalType("TIMESTAMP_S")),
        Constant(None, LogicalType("NULL")),
    ],
)
def test_constant_without_an_exact_literal_is_not_encoded(unsayable: Constant) -> None:
    with pytest.raises(Inexpressible):
        literal(unsayable)


def test_nested_constants_are_encoded_with_their_types() -> None:
    ints = kind("LIST", type="LIST_TYPE_INFO", child_type=kind("TINYINT"))
    result = sql(
        compare(
            column(0, ints), "EQUAL", constant(ints, {"children": [value("TINYINT", -128), value("TINYINT", None)]})
        )
    )
    assert result == "\"i\" = CAST(['-128'::TINYINT, CAST(NULL AS TINYINT)] AS TINYINT[])"
