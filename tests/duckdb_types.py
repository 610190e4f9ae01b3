"""Every type of DuckDB with literals, alone and nested, and what the lake and Flight SQL make of it.

The tests of all ways to a lake use this list, and so do those with the real client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

__all__ = ["SHAPES", "TYPES", "Shape", "Type", "nested_types"]

LONG = "cannot be converted to it without loss: some numbers"
TOO_LONG = r"Could not cast value -?\d{39} to DECIMAL\(38,0\)"
INFINITE = r"has an infinite (date|timestamp), which Iceberg cannot represent"
MIDNIGHT = "has a time that is not within a day, such as 24:00:00"
FINE = r"Casting from time64\[ns\] to time64\[us\] would lose data"


@dataclass(frozen=True, slots=True)
class Type:
    """A type with literals: different values that are not NULL, in ascending order where the type has one."""

    name: str
    sql: str
    values: tuple[str, ...]
    stored: str | None = ""
    """The type in a managed table, if that is another one; None if tables cannot have such columns."""
    result: str = ""
    """The type in results of server-side SQL, if that is another one."""
    plain: str = ""
    """The type in results of Flight SQL, if that is another one."""
    rejects: str = ""
    """The error of managed tables for these values."""
    unsent: str = ""
    """The error of Flight SQL, and of server-side SQL unless `plain` is set, for these values."""

    def rows(self) -> str:
        """A query for `id` and `v`: each value, then NULL."""
        values = [*self.values, "NULL"]
        return " UNION ALL ".join(
            f"SELECT {i}::INTEGER AS id, {self.cast(value)} AS v" for i, value in enumerate(values)
        )

    def cast(self, value: str) -> str:
        return f"CAST({value} AS {self.sql})"

    @property
    def is_nested(self) -> bool:
        return re.search(r"^(STRUCT|MAP|UNION)\(|\]$", self.sql) is not None


def _type(name: str, *values: str, sql: str = "", **more: str | None) -> Type:
    return Type(name, sql or name, values, **more)  # type: ignore[arg-type]


TYPES = (
    _type("BOOLEAN", "false", "true"),
    _type("TINYINT", "-128", "-1", "0", "127", stored="INTEGER"),
    _type("SMALLINT", "-32768", "0", "32767", stored="INTEGER"),
    _type("INTEGER", "-2147483648", "0", "2147483647"),
    _type("BIGINT", "-9223372036854775808", "0", "9223372036854775807"),
    _type(
        "HUGEINT",
        "'-170141183460469231731687303715884105728'",
        "0",
        "'170141183460469231731687303715884105727'",
        stored="DECIMAL(38,0)",
        plain="DECIMAL(38,0)",
        rejects=LONG,
        unsent=TOO_LONG,
    ),
    _type(
        "small HUGEINT",
        "-5",
        "0",
        "12345678901234567890123",
        sql="HUGEINT",
        stored="DECIMAL(38,0)",
        plain="DECIMAL(38,0)",
    ),
    _type("UTINYINT", "0", "127", "255", stored="INTEGER", plain="SMALLINT"),
    _type("USMALLINT", "0", "32768", "65535", stored="INTEGER", plain="INTEGER"),
    _type("UINTEGER", "0", "2147483648", "4294967295", stored="BIGINT", plain="BIGINT"),
    _type("UBIGINT", "0", "9223372036854775808", "18446744073709551615", stored="DECIMAL(20,0)", plain="DECIMAL(20,0)"),
    _type(
        "UHUGEINT",
        "0",
        "1",
        "'340282366920938463463374607431768211455'",
        stored="DECIMAL(38,0)",
        plain="DECIMAL(38,0)",
        rejects=LONG,
        unsent=TOO_LONG,
    ),
    _type("FLOAT", "'-inf'", "-1.5", "'-0.0'", "1e-38", "3.4028235e38", "'inf'", "'nan'"),
    _type("DOUBLE", "'-inf'", "-1.5", "'-0.0'", "5e-324", "1.7976931348623157e308", "'inf'", "'nan'"),
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
    _type("infinite DATE", "'-infinity'", "'1970-01-01'", "'infinity'", sql="DATE", rejects=INFINITE),
    _type("TIME", "'00:00:00'", "'12:34:56.789012'", "'23:59:59.999999'"),
    _type("midnight TIME", "'23:59:59'", "'24:00:00'", sql="TIME", rejects=MIDNIGHT, unsent=MIDNIGHT),
    _type("TIME_NS", "'00:00:00'", "'12:34:56.789012'", "'12:34:56.789012345'", stored="TIME", rejects=FINE),
    _type("short TIME_NS", "'00:00:00'", "'12:34:56.789012'", "'23:59:59.999999'", sql="TIME_NS", stored="TIME"),
    _type("TIMETZ", "'00:00:00+02'", "'12:34:56.789012-05:30'", stored=None, plain="VARCHAR"),
    _type("TIMESTAMP", "'1969-12-31 23:59:59.999999'", "'2024-02-29 12:34:56.789012'", "'9999-12-31 23:59:59'"),
    _type("wide TIMESTAMP", "'0044-03-15 (BC) 12:00:00'", "'0001-01-01 00:00:00'", "'12345-01-01'", sql="TIMESTAMP"),
    _type("infinite TIMESTAMP", "'-infinity'", "'1970-01-01'", "'infinity'", sql="TIMESTAMP", rejects=INFINITE),
    _type("TIMESTAMP_S", "'1969-12-31 23:59:59'", "'2024-02-29 12:34:56'", stored="TIMESTAMP"),
    _type("TIMESTAMP_MS", "'1969-12-31 23:59:59.999'", "'2024-02-29 12:34:56.789'", stored="TIMESTAMP"),
    _type("TIMESTAMP_NS", "'1969-12-31 23:59:59.999999999'", "'2024-02-29 12:34:56.789012345'"),
    _type("TIMESTAMPTZ", "'1969-12-31 23:59:59+00'", "'2024-02-29 12:34:56.789012+05:30'"),
    _type("INTERVAL", "'1 day'", "'14 months 3 days 04:05:06.789'", stored=None),
    _type("UUID", "'00000000-0000-0000-0000-000000000000'", "'7f1ff8a7-b1a9-4d1f-8f9a-0123456789ab'", plain="VARCHAR"),
    _type("BIT", "'0'", "'101010101010101'", stored=None, plain="VARCHAR"),
    _type("ENUM", "'low'", "'mid'", "'high'", sql="ENUM('low', 'mid', 'high')", stored="VARCHAR", result="VARCHAR"),
    _type("JSON", "'[]'", """'{"a": [1, null, "x"]}'""", stored="VARCHAR", plain="VARCHAR"),
    _type(
        "BIGNUM", "-5", "'123456789012345678901234567890123456789012345678901234567890'", stored=None, plain="VARCHAR"
    ),
    _type("GEOMETRY", "'POINT (1 2)'", "'LINESTRING (0 0, 1 1, 2 0)'"),
    _type("VARIANT", "1", "'x'", "[1, 2]", stored=None, unsent="has type .*VARIANT.*, which Arrow does not have"),
    _type("INTEGER[]", "[]", "[1, NULL, 3]"),
    _type("TINYINT[]", "[]", "[1, NULL, -128]", stored="INTEGER[]"),
    _type("VARCHAR[]", "[]", "['a', NULL, '']"),
    _type("BOOLEAN[]", "[]", "[true, false, NULL, true]"),
    _type("UUID[]", "[]", "['7f1ff8a7-b1a9-4d1f-8f9a-0123456789ab']", plain="VARCHAR[]"),
    _type("INTEGER[][]", "[]", "[[1], [], NULL, [2, NULL]]"),
    _type("INTEGER[3]", "[1, 2, 3]", "[4, NULL, 6]", stored="INTEGER[]"),
    _type("VARCHAR[2]", "['a', 'b']", "['', NULL]", stored="VARCHAR[]"),
    _type("STRUCT", "{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': NULL}", sql="STRUCT(a INTEGER, b VARCHAR)"),
    _type(
        "small STRUCT",
        "{'a': 1, 'b': true}",
        "{'a': NULL, 'b': false}",
        sql="STRUCT(a UTINYINT, b BOOLEAN)",
        stored="STRUCT(a INTEGER, b BOOLEAN)",
        plain="STRUCT(a SMALLINT, b BOOLEAN)",
    ),
    _type("STRUCT[]", "[]", "[{'a': 1}, NULL, {'a': NULL}]", sql="STRUCT(a INTEGER)[]"),
    _type("MAP", "MAP {}", "MAP {'k': 1, 'l': NULL}", sql="MAP(VARCHAR, INTEGER)"),
    _type("MAP of lists", "MAP {}", "MAP {1: ['x'], 2: []}", sql="MAP(INTEGER, VARCHAR[])"),
    _type("deep", "{'m': MAP {'x': [{'d': DATE '2024-01-01'}]}}", sql="STRUCT(m MAP(VARCHAR, STRUCT(d DATE)[]))"),
    _type("UNION", "union_value(n := 1)", "union_value(t := 'x')", sql="UNION(n INTEGER, t VARCHAR)", stored=None),
)


@dataclass(frozen=True, slots=True)
class Shape:
    """A way to nest a type: the type, and its values made of literals. `stored` is its type in a lake; None if it has none."""

    name: str
    sql: str
    values: Callable[[Sequence[str]], list[str]]
    stored: str | None = ""

    def of(self, kind: Type) -> Type:
        """A type nested in this way. Types that the lake or a result converts are converted in it."""

        def nested(inner: str, template: str = self.sql) -> str:
            return template.format(inner) if inner else ""

        is_storable = self.stored is not None and kind.stored is not None and kind.sql != "GEOMETRY"
        stored: str | None = None
        if is_storable:
            stored = (self.stored or self.sql).format(kind.stored or kind.sql) if self.stored or kind.stored else ""
        literals = tuple(self.values([kind.cast(each) for each in kind.values]))
        result, plain = nested(kind.result), nested(kind.plain)
        name = f"{self.name} of {kind.name}"
        return Type(name, nested(kind.sql), literals, stored, result, plain, kind.rejects, kind.unsent)


def _structs(values: Sequence[str]) -> str:
    return ", ".join(f"{{'a': {each}}}" for each in values)


SHAPES = (
    Shape("list", "{}[]", lambda values: ["[]", "[NULL]", f"[{', '.join(values)}, NULL]", f"[{values[0]}]"]),
    Shape("array", "{}[2]", lambda values: [f"[{values[0]}, {values[-1]}]", f"[NULL, {values[0]}]"], stored="{}[]"),
    Shape(
        "struct",
        "STRUCT(a {}, b VARCHAR)",
        lambda values: [*(f"{{'a': {each}, 'b': 'x'}}" for each in values), "{'a': NULL, 'b': NULL}"],
    ),
    Shape(
        "structs",
        "STRUCT(a {})[]",
        lambda values: ["[]", "[NULL]", f"[{_structs(values)}, NULL, {{'a': NULL}}]"],
    ),
    Shape(
        "lists",
        "{}[][]",
        lambda values: ["[]", "[[], NULL]", f"[[{', '.join(values)}], [], NULL, [NULL, {values[0]}]]"],
    ),
    Shape(
        "map", "MAP(VARCHAR, {})", lambda values: ["MAP {}", f"MAP {{'k': {values[0]}, 'l': NULL, 'm': {values[-1]}}}"]
    ),
    Shape("keys", "MAP({}, INTEGER)", lambda values: ["MAP {}", f"MAP {{{values[0]}: 1, {values[-1]}: NULL}}"]),
    Shape(
        "deep",
        "STRUCT(m MAP(VARCHAR, STRUCT(d {}[])[]))",
        lambda values: [
            "{'m': NULL}",
            f"{{'m': MAP {{'x': [{{'d': [{', '.join(values)}, NULL]}}, NULL, {{'d': NULL}}]}}}}",
        ],
    ),
    Shape(
        "union",
        "UNION(u {}, n INTEGER)",
        lambda values: [f"union_value(u := {values[0]})", "union_value(n := 1)"],
        stored=None,
    ),
)


def nested_types() -> Iterator[tuple[Shape, list[Type]]]:
    """Each way to nest types, with all types nested in it."""
    for shape in SHAPES:
        yield shape, [shape.of(kind) for kind in TYPES if not kind.is_nested]
