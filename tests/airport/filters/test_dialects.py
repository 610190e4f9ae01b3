"""Filters in the SQL of other databases, run by real ones: they lose no row that the client keeps."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import assume, given, settings
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
)
from airport.filters.databases import Database, Postgres, SQLite, values_of
from airport.filters.predicates import Client, conditions
from airport.filters.recorded import PREDICATES, WITH_FILTER, special_rows
from skiway.airport import filters
from skiway.airport.filters.sql import Dialect
from skiway.errors import InvalidArgument
from storage.homes import running_postgres

OTHERS: tuple[Any, ...] = ("postgres", "sqlite", "generic")
BY_DATABASE = {"sqlite": ("sqlite",), "postgres": ("postgres", "generic")}


@pytest.fixture(scope="module")
def postgres_url() -> Iterator[str]:
    with running_postgres() as url:
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> Iterator[tuple[Database, tuple[Any, ...]]]:
    rows = values_of(special_rows(120))
    if request.param == "sqlite":
        found: Any = SQLite(rows)
    else:
        found = Postgres(rows, request.getfixturevalue("postgres_url"))
    yield found, BY_DATABASE[request.param]
    found.connection.close()


@pytest.fixture(scope="module")
def client() -> Client:
    return Client()


def test_no_recorded_predicate_loses_a_row(database: Any) -> None:
    rows, dialects = database
    expected = rows.oracle.kept_by_client(PREDICATES)
    for dialect in dialects:
        translated = selective = 0
        for each, kept in zip(WITH_FILTER, expected, strict=True):
            where = filters.to_sql(each.filter, dialect=dialect)
            if where is None:
                continue
            found = rows.kept(where)
            assert kept <= found, (dialect, each.predicate, where)
            translated += 1
            selective += len(found) < 60
        assert translated > 60, dialect
        assert selective > translated * 0.6, dialect  # a translation to TRUE would lose no row either


@given(predicate=conditions())
@settings(max_examples=settings.default.max_examples)
def test_no_random_predicate_loses_a_row(database: Any, client: Client, predicate: str) -> None:
    rows, dialects = database
    sent = client.sent(predicate)
    assume(sent is not None)
    parsed = filters.parse(sent)
    (expected,) = rows.oracle.kept_by_client([predicate])
    for dialect in dialects:
        if (where := filters.to_sql(parsed, dialect=dialect)) is not None:
            assert expected <= rows.kept(where), where


@given(
    value=st.floats(allow_nan=False),
    other=st.floats(allow_nan=False, width=32),
    op=st.sampled_from(["=", "<", ">=", "<>"]),
)
def test_floating_point_numbers_are_found_in_sqlite(value: float, other: float, op: str) -> None:
    """SQLite may read a number as its neighbor, and stores a FLOAT as a DOUBLE that is only close to it."""
    names = {"=": "EQUAL", "<": "LESSTHAN", ">=": "GREATERTHANOREQUALTO", "<>": "NOTEQUAL"}
    with sqlite3.connect(":memory:") as connection:
        for of, constant_value, stored in (("DOUBLE", value, value), ("FLOAT", other, float(f"{other:.9g}"))):
            for row in (stored, constant_value, 0.0, 1.0, -1.0):
                where = sql(compare(column(0, of), names[op], constant(of, constant_value)), "sqlite")
                client_sees = row if of == "DOUBLE" else as_single(row)
                keeps = {"=": client_sees == constant_value, "<": client_sees < constant_value}.get(
                    op, client_sees >= constant_value if op == ">=" else client_sees != constant_value
                )
                if keeps and where is not None:
                    query = f'SELECT count(*) FROM (SELECT ? AS "i") WHERE {where}'
                    assert connection.execute(query, [row]).fetchone() == (1,), (where, row)
    connection.close()


def as_single(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def sql(predicate: dict[str, Any], dialect: Dialect, **options: Any) -> str | None:
    return filters.to_sql(filters.parse(text(predicate)), dialect=dialect, **options)


S = column(1, "VARCHAR")


def like(pattern: str) -> dict[str, Any]:
    return call("~~", S, constant("VARCHAR", pattern))


CASES: list[tuple[dict[str, Any], tuple[str | None, str | None, str | None]]] = [
    (FIVE, ('"i" = 5', '"i" = 5', '"i" = 5')),
    (compare(S, "EQUAL", constant("VARCHAR", "it's")), ("\"s\" = 'it''s'",) * 3),
    (
        compare(S, "LESSTHAN", constant("VARCHAR", "b")),
        ('"s" COLLATE "C" < \'b\'', "\"s\" COLLATE BINARY < 'b'", None),
    ),
    (
        compare(S, "NOTEQUAL", constant("VARCHAR", "b")),
        ('"s" COLLATE "C" <> \'b\'', "\"s\" COLLATE BINARY <> 'b'", None),
    ),
    (compare(S, "EQUAL", constant("VARCHAR", "a\\b")), (None, "\"s\" = 'a\\b'", None)),
    (compare(S, "EQUAL", constant("VARCHAR", "a\0b")), (None, None, None)),
    (compare(S, "EQUAL", constant("VARCHAR", "é")), ("\"s\" = 'é'", "\"s\" = 'é'", None)),
    (
        like("50!%_x"),
        (
            "\"s\" COLLATE \"C\" LIKE '50!!%_x' ESCAPE '!'",
            "\"s\" COLLATE BINARY >= '50!' AND \"s\" COLLATE BINARY < '50\"' AND INSTR(\"s\", 'x') > 0",
            "\"s\" LIKE '50!%_x'",
        ),
    ),
    (like("%"), ("\"s\" COLLATE \"C\" LIKE '%' ESCAPE '!'", 'NOT "s" IS NULL', "\"s\" LIKE '%'")),
    (like("[a]%"), ("\"s\" COLLATE \"C\" LIKE '[a]%' ESCAPE '!'", "\"s\" COLLATE BINARY >= '[a]' AND \"s\" COLLATE BINARY < '[a^'", None)),
    (
        call("prefix", S, constant("VARCHAR", "a\U0010ffff")),
        (
            "\"s\" COLLATE \"C\" LIKE 'a\U0010ffff%' ESCAPE '!'",
            "\"s\" COLLATE BINARY >= 'a\U0010ffff' AND \"s\" COLLATE BINARY < 'b'",
            None,
        ),
    ),
    (negate(like("a%")), ("NOT \"s\" COLLATE \"C\" LIKE 'a%' ESCAPE '!'", None, None)),
    (
        operator("COMPARE_NOT_IN", S, constant("VARCHAR", "a")),
        ('NOT "s" COLLATE "C" IN (\'a\')', "NOT \"s\" COLLATE BINARY IN ('a')", None),
    ),
    (operator("COMPARE_NOT_IN", column(0), constant("INTEGER", 1), constant("INTEGER", None)), (None, None, None)),
    (operator("COMPARE_IN", column(0), constant("INTEGER", 1), constant("INTEGER", None)), ('"i" IN (1)',) * 3),
    (compare(cast(column(0), "BIGINT"), "EQUAL", constant("BIGINT", 5)), ('"i" = 5',) * 3),
    (compare(cast(column(0), "TINYINT"), "EQUAL", constant("TINYINT", 5)), (None, None, None)),
    (compare(column(2, "DATE"), "EQUAL", constant("DATE", -200000)), ("\"d\" = CAST('1422-06-03' AS DATE)", None, None)),
    (compare(column(2, "DATE"), "EQUAL", constant("DATE", 2**31 - 1)), (None, None, None)),
    (
        compare(column(2, "UUID"), "LESSTHAN", constant("UUID", {"upper": -(2**63), "lower": 7})),
        ("\"d\" < CAST('00000000-0000-0000-0000-000000000007' AS UUID)", None, None),
    ),
    (operator("OPERATOR_IS_NULL", column(2, kind("STRUCT", child_types=[]))), (None, None, None)),
    (operator("OPERATOR_IS_NULL", column(2, kind("VARCHAR", alias="JSON"))), ('"d" IS NULL',) * 3),
    (compare(column(2, kind("VARCHAR", alias="JSON")), "EQUAL", constant("VARCHAR", "1")), (None, None, None)),
    (both(FIVE, UNKNOWN), ('"i" = 5',) * 3),
    (either(FIVE, UNKNOWN), (None, None, None)),
]  # fmt: skip


@pytest.mark.parametrize(("predicate", "expected"), CASES)
def test_conditions_in_each_dialect(predicate: Any, expected: tuple[str | None, ...]) -> None:
    assert tuple(sql(predicate, dialect) for dialect in OTHERS) == expected


def test_collation_of_the_column_loses_no_row_in_sqlite() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute('CREATE TABLE t ("s" TEXT COLLATE NOCASE)')
    connection.executemany("INSERT INTO t VALUES (?)", [["a"], ["A"], ["b"]])
    for predicate, least in (
        (compare(S, "NOTEQUAL", constant("VARCHAR", "a")), {"A", "b"}),
        (compare(S, "LESSTHAN", constant("VARCHAR", "a")), {"A"}),
        (compare(S, "EQUAL", constant("VARCHAR", "a")), {"a"}),
        (operator("COMPARE_NOT_IN", S, constant("VARCHAR", "A")), {"a", "b"}),
        (like("A%"), {"A"}),
    ):
        where = sql(predicate, "sqlite")
        assert least <= {row for (row,) in connection.execute(f"SELECT s FROM t WHERE {where}")}, where
    connection.close()


@pytest.mark.parametrize("dialect", OTHERS)
def test_columns_are_renamed_replaced_and_left_out(dialect: Dialect) -> None:
    assert sql(FIVE, dialect, columns={"i": 'my "id"'}) == '"my ""id""" = 5'
    assert sql(FIVE, dialect, columns={"i": None}) is None
    assert sql(FIVE, dialect, expressions={"i": "a + 1"}) == "(a + 1) = 5"


@pytest.mark.parametrize("dialect", OTHERS)
def test_long_filters_are_shortened(dialect: Dialect) -> None:
    where = sql(both(*[FIVE] * 1000), dialect)
    assert where is not None
    assert where.count("= 5") == 200
    members = [constant("INTEGER", number) for number in range(10_001)]
    assert sql(operator("COMPARE_IN", column(0), *members), dialect) is None


def test_sqlite_runs_the_longest_filter() -> None:
    nested = FIVE
    for _ in range(70):
        nested = either(both(nested, FIVE), FIVE)
    connection = sqlite3.connect(":memory:")
    for predicate in (both(*[FIVE] * 1000), either(*[FIVE] * 200), nested):
        where = sql(predicate, "sqlite")
        assert where is not None
        assert where.count("(") < 30
        assert connection.execute(f'SELECT 1 FROM (SELECT 5 AS "i") WHERE {where}').fetchone() == (1,)
    connection.close()


def test_unknown_dialect_is_rejected() -> None:
    with pytest.raises(
        InvalidArgument, match="unknown SQL dialect 'oracle': use 'duckdb', 'generic', 'postgres', 'sqlite'"
    ):
        filters.to_sql(filters.Filter(), dialect="oracle")  # type: ignore[arg-type]
    assert get_args(Dialect) == ("duckdb", "generic", "postgres", "sqlite")


def test_sqlglot_is_loaded_only_for_other_dialects() -> None:
    program = """
import sys
from skiway.airport import filters
filters.to_sql(filters.Filter())
assert "sqlglot" not in sys.modules
sys.modules["sqlglot"] = None
try:
    filters.to_sql(filters.Filter(), dialect="sqlite")
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == (
        "filters in the SQL of sqlite needs sqlglot, which is not installed: pip install 'skiway[sql]'\n"
    )
