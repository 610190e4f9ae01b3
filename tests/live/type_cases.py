"""Every type of DuckDB in every kind of statement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from live.cases import ATTACH_AGAIN, LOSSLESS, Case, Step, case

__all__ = ["TYPES", "type_cases"]


@dataclass(frozen=True, slots=True)
class Type:
    """A type with literals: different values that are not NULL, in ascending order where the type has one."""

    name: str
    sql: str
    values: tuple[str, ...]

    def rows(self) -> str:
        """A query for `id` and `v`: each value, then NULL."""
        values = [*self.values, "NULL"]
        return " UNION ALL ".join(
            f"SELECT {i}::INTEGER AS id, {self.cast(value)} AS v" for i, value in enumerate(values)
        )

    def cast(self, value: str) -> str:
        return f"CAST({value} AS {self.sql})"


def _type(name: str, *values: str, sql: str = "") -> Type:
    return Type(name, sql or name, values)


TYPES = (
    _type("BOOLEAN", "false", "true"),
    _type("TINYINT", "-128", "-1", "0", "127"),
    _type("SMALLINT", "-32768", "0", "32767"),
    _type("INTEGER", "-2147483648", "0", "2147483647"),
    _type("BIGINT", "-9223372036854775808", "0", "9223372036854775807"),
    _type("HUGEINT", "'-170141183460469231731687303715884105728'", "0", "'170141183460469231731687303715884105727'"),
    _type("small HUGEINT", "-5", "0", "12345678901234567890123", sql="HUGEINT"),
    _type("UTINYINT", "0", "127", "255"),
    _type("USMALLINT", "0", "32768", "65535"),
    _type("UINTEGER", "0", "2147483648", "4294967295"),
    _type("UBIGINT", "0", "9223372036854775808", "18446744073709551615"),
    _type("UHUGEINT", "0", "1", "'340282366920938463463374607431768211455'"),
    _type("FLOAT", "'-inf'", "-1.5", "-0.0", "1e-38", "3.4028235e38", "'inf'", "'nan'"),
    _type("DOUBLE", "'-inf'", "-1.5", "5e-324", "1.7976931348623157e308", "'inf'", "'nan'"),
    _type("DECIMAL(4,1)", "-999.9", "0", "999.9"),
    _type("DECIMAL(9,2)", "-9999999.99", "0", "9999999.99"),
    _type("DECIMAL(18,3)", "-999999999999999.999", "0", "999999999999999.999"),
    _type(
        "DECIMAL(38,10)", "'-9999999999999999999999999999.9999999999'", "0", "'9999999999999999999999999999.9999999999'"
    ),
    _type("VARCHAR", "''", "'Ada'", "'Zürich'", "'日本 🎿'", "'it''s'"),
    _type("long VARCHAR", "'a'", "repeat('x', 5000)", sql="VARCHAR"),
    _type("BLOB", "''", r"'\x00\xFF'", "'abc'"),
    _type("DATE", "'1582-10-15'", "'1970-01-01'", "'2024-02-29'", "'9999-12-31'"),
    _type("wide DATE", "'4000-01-01 (BC)'", "'0044-03-15 (BC)'", "'0001-01-01'", "'12345-01-01'", sql="DATE"),
    _type("infinite DATE", "'-infinity'", "'1970-01-01'", "'infinity'", sql="DATE"),
    _type("TIME", "'00:00:00'", "'12:34:56.789012'", "'23:59:59.999999'"),
    _type("midnight TIME", "'23:59:59'", "'24:00:00'", sql="TIME"),
    _type("TIME_NS", "'00:00:00'", "'12:34:56.789012'", "'12:34:56.789012345'"),
    _type("short TIME_NS", "'00:00:00'", "'12:34:56.789012'", "'23:59:59.999999'", sql="TIME_NS"),
    _type("TIMETZ", "'00:00:00+02'", "'12:34:56.789012-05:30'"),
    _type("TIMESTAMP", "'1969-12-31 23:59:59.999999'", "'2024-02-29 12:34:56.789012'", "'9999-12-31 23:59:59'"),
    _type("wide TIMESTAMP", "'0044-03-15 (BC) 12:00:00'", "'0001-01-01 00:00:00'", "'12345-01-01'", sql="TIMESTAMP"),
    _type("infinite TIMESTAMP", "'-infinity'", "'1970-01-01'", "'infinity'", sql="TIMESTAMP"),
    _type("TIMESTAMP_S", "'1969-12-31 23:59:59'", "'2024-02-29 12:34:56'"),
    _type("TIMESTAMP_MS", "'1969-12-31 23:59:59.999'", "'2024-02-29 12:34:56.789'"),
    _type("TIMESTAMP_NS", "'1969-12-31 23:59:59.999999999'", "'2024-02-29 12:34:56.789012345'"),
    _type("TIMESTAMPTZ", "'1969-12-31 23:59:59+00'", "'2024-02-29 12:34:56.789012+05:30'"),
    _type("INTERVAL", "'1 day'", "'14 months 3 days 04:05:06.789'"),
    _type("UUID", "'00000000-0000-0000-0000-000000000000'", "'7f1ff8a7-b1a9-4d1f-8f9a-0123456789ab'"),
    _type("BIT", "'0'", "'101010101010101'"),
    _type("ENUM", "'low'", "'mid'", "'high'", sql="ENUM('low', 'mid', 'high')"),
    _type("JSON", "'[]'", """'{"a": [1, null, "x"]}'"""),
    _type("BIGNUM", "-5", "'123456789012345678901234567890123456789012345678901234567890'"),
    _type("GEOMETRY", "'POINT (1 2)'", "'LINESTRING (0 0, 1 1, 2 0)'"),
    _type("VARIANT", "1", "'x'", "[1, 2]"),
    _type("INTEGER[]", "[]", "[1, NULL, 3]"),
    _type("TINYINT[]", "[]", "[1, NULL, -128]"),
    _type("VARCHAR[]", "[]", "['a', NULL, '']"),
    _type("BOOLEAN[]", "[]", "[true, false, NULL, true]"),
    _type("UUID[]", "[]", "['7f1ff8a7-b1a9-4d1f-8f9a-0123456789ab']"),
    _type("INTEGER[][]", "[]", "[[1], [], NULL, [2, NULL]]"),
    _type("INTEGER[3]", "[1, 2, 3]", "[4, NULL, 6]"),
    _type("VARCHAR[2]", "['a', 'b']", "['', NULL]"),
    _type("STRUCT", "{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': NULL}", sql="STRUCT(a INTEGER, b VARCHAR)"),
    _type("small STRUCT", "{'a': 1, 'b': true}", "{'a': NULL, 'b': false}", sql="STRUCT(a UTINYINT, b BOOLEAN)"),
    _type("STRUCT[]", "[]", "[{'a': 1}, NULL, {'a': NULL}]", sql="STRUCT(a INTEGER)[]"),
    _type("MAP", "MAP {}", "MAP {'k': 1, 'l': NULL}", sql="MAP(VARCHAR, INTEGER)"),
    _type("MAP of lists", "MAP {}", "MAP {1: ['x'], 2: []}", sql="MAP(INTEGER, VARCHAR[])"),
    _type("deep", "{'m': MAP {'x': [{'d': DATE '2024-01-01'}]}}", sql="STRUCT(m MAP(VARCHAR, STRUCT(d DATE)[]))"),
    _type("UNION", "union_value(n := 1)", "union_value(t := 'x')", sql="UNION(n INTEGER, t VARCHAR)"),
)

NUMBERS_AND_TIMES = {"BOOLEAN", "INTEGER", "HUGEINT", "small HUGEINT", "UHUGEINT", "BIGNUM", "TIME_NS", "TIMETZ"}
SENT_DIFFERENTLY = NUMBERS_AND_TIMES | {
    "UUID",
    "BIT",
    "JSON",
    "GEOMETRY",
    "BOOLEAN[]",
    "UUID[]",
    "small STRUCT",
    "UNION",
}
"""The types that lossless conversion changes, alone or nested, and one that it does not."""

ORDERED = "SELECT * FROM {s}.t ORDER BY id"
CREATE = "CREATE TABLE {{s}}.t (id INTEGER, v {sql})"


def type_cases() -> Iterator[Case]:
    """Each type in each kind of statement, with DuckDB's default settings and with lossless conversion."""
    for mode, settings in (("default", ()), ("lossless", (LOSSLESS,))):
        for each in (each for each in TYPES if mode == "default" or each.name in SENT_DIFFERENTLY):
            for kind, steps in _kinds(each).items():
                targets = ("memory", "lake") if kind == "time travel" else ("memory", "file", "lake")
                yield case(f"types/{mode}/{each.name}/{kind}", *steps, targets=targets, settings=settings)
    yield case("types/default/NULL/ctas", "CREATE TABLE {s}.t AS SELECT 1 AS id, NULL AS v", "DESCRIBE {s}.t", ORDERED)


def _kinds(each: Type) -> dict[str, list[str | Step]]:
    create = CREATE.format(sql=each.sql)
    filled: list[str | Step] = [create, f"INSERT INTO {{s}}.t {each.rows()}"]
    one, other = each.cast(each.values[0]), each.cast(each.values[-1])
    return {
        "create": [create, "DESCRIBE {s}.t", "SELECT * FROM {s}.t"],
        "ctas": [f"CREATE TABLE {{s}}.t AS {each.rows()}", "DESCRIBE {s}.t", ORDERED],
        "insert": [
            create,
            *(f"INSERT INTO {{s}}.t VALUES ({i}, {each.cast(value)})" for i, value in enumerate(each.values)),
            f"INSERT INTO {{s}}.t {each.rows()}",
            "INSERT INTO {s}.t (id) VALUES (99)",
            ORDERED,
        ],
        "update": [
            *filled,
            f"UPDATE {{s}}.t SET v = {other} WHERE id = 0",
            ORDERED,
            "UPDATE {s}.t SET v = NULL WHERE id = 1",
            f"UPDATE {{s}}.t SET v = {one} WHERE v IS NULL",
            ORDERED,
            "DELETE FROM {s}.t WHERE id = 0",
            ORDERED,
        ],
        "returning": [
            create,
            f"INSERT INTO {{s}}.t {each.rows()} RETURNING *",
            f"UPDATE {{s}}.t SET v = {other} WHERE id = 0 RETURNING id, v",
            "DELETE FROM {s}.t WHERE id = 0 RETURNING *",
            ORDERED,
        ],
        "attached again": [
            *filled,
            *ATTACH_AGAIN,
            "DESCRIBE {s}.t",
            ORDERED,
            f"UPDATE {{s}}.t SET v = {other} WHERE id = 0",
            f"SELECT id FROM {{s}}.t WHERE v = {other} ORDER BY id",
            f"INSERT INTO {{s}}.t VALUES (98, {one}), (99, NULL)",
            ORDERED,
        ],
        "filter": [*filled, *_filters(each)],
        "statistics": [
            *filled,
            "SELECT count(*), count(v), count(DISTINCT v) FROM {s}.t",
            "SELECT min(v), max(v) FROM {s}.t",
            f"SELECT count(*) FROM {{s}}.t WHERE v > {other}",
            f"SELECT count(*) FROM {{s}}.t WHERE v < {one}",
            Step("SELECT stats(v) FROM {s}.t LIMIT 1", compare="success"),
        ],
        "time travel": [
            *filled,
            Step("SELECT now()::TIMESTAMP", compare="success", save="moment"),
            "UPDATE {s}.t SET v = NULL",
            Step(
                "SELECT * FROM {s}.t AT (TIMESTAMP => TIMESTAMP '{moment}') ORDER BY id",
                plain=each.rows() + " ORDER BY id",
            ),
            ORDERED,
        ],
    }


def _filters(each: Type) -> list[str | Step]:
    ids = "SELECT id FROM {s}.t WHERE "
    conditions = ["v IS NULL", "v IS NOT NULL"]
    for value in map(each.cast, (each.values[0], each.values[-1])):
        conditions += [f"v {operator} {value}" for operator in ("<>", "<", "<=", ">", ">=", "IS DISTINCT FROM")]
    conditions += [f"v = {each.cast(value)}" for value in each.values]
    listed = ", ".join(map(each.cast, each.values[:2]))
    conditions += [f"v IN ({listed})", f"v NOT IN ({listed})", f"v IS NULL OR v = {each.cast(each.values[-1])}"]
    return [f"{ids}{condition} ORDER BY id" for condition in conditions]
