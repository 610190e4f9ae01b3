"""All kinds of identifiers, as names of schemas, tables, columns and struct fields."""

from __future__ import annotations

from collections.abc import Iterator

from live.cases import Case, case

__all__ = ["NAMES", "name_cases"]

NAMES = {
    "plain": "plain",
    "upper case": "UPPER",
    "mixed case": "MixedCase",
    "space": "two words",
    "quote": 'a"b',
    "apostrophe": "it's",
    "dot": "a.b",
    "dots": "..",
    "single dot": ".",
    "slash": "a/b",
    "backslash": "a\\b",
    "percent": "100%25",
    "question mark": "why?",
    "hash": "#1",
    "braces": "{}",
    "brackets": "[0]",
    "semicolon": "a;b",
    "comment": "a--b",
    "dollar": "$1",
    "digit": "1st",
    "reserved word": "select",
    "another reserved word": "table",
    "type": "integer",
    "function": "count",
    "umlaut": "grün",
    "capital umlaut": "ÄÖÜ",
    "Greek": "Ωμέγα",
    "Cyrillic": "Таблица",
    "Japanese": "表",
    "right to left": "جدول",
    "emoji": "🎿⛷",
    "flag": "🇨🇭",
    "decomposed": "e\u0301",
    "ligature": "ﬁne",
    "full width": "Ａ",
    "leading space": " a",
    "trailing space": "a ",
    "only space": " ",
    "no-break space": "a\u00a0b",
    "tab": "a\tb",
    "line break": "a\nb",
    "zero width": "a\u200bb",
    "63 letters": "x" * 63,
    "64 letters": "y" * 64,
    "255 letters": "z" * 255,
    "256 letters": "w" * 256,
    "1000 letters": "v" * 1000,
    "255 emoji": "🎿" * 255,
    "rowid": "rowid",
    "upper rowid": "ROWID",
    "main": "main",
    "information_schema": "information_schema",
    "pg_catalog": "pg_catalog",
    "temp": "temp",
    "skiway": "skiway",
    "element": "element",
    "key": "key",
    "null": "null",
    "underscore": "_",
}


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def name_cases() -> Iterator[Case]:
    for label, name in NAMES.items():
        it = quoted(name)
        yield case(
            f"names/table/{label}",
            f"CREATE TABLE {{s}}.{it} (i INTEGER)",
            f"INSERT INTO {{s}}.{it} VALUES (1), (2)",
            f"SELECT * FROM {{s}}.{it} WHERE i > 1",
            f"UPDATE {{s}}.{it} SET i = 3 WHERE i = 1",
            f"SELECT * FROM {{s}}.{it.swapcase()} ORDER BY i",
            f"ALTER TABLE {{s}}.{it} RENAME TO renamed",
            "SELECT * FROM {s}.renamed ORDER BY i",
            f"ALTER TABLE {{s}}.renamed RENAME TO {it}",
            f"CREATE TABLE IF NOT EXISTS {{s}}.{it} (i INTEGER)",
            f"DROP TABLE {{s}}.{it}",
            f"SELECT * FROM {{s}}.{it}",
        )
        yield case(
            f"names/column/{label}",
            f"CREATE TABLE {{s}}.t (i INTEGER, {it} INTEGER, z VARCHAR)",
            "INSERT INTO {s}.t VALUES (1, 10, 'a'), (2, 20, 'b')",
            f"INSERT INTO {{s}}.t ({it}, i) VALUES (30, 3) RETURNING {it}, i",
            f"SELECT {it}, z FROM {{s}}.t WHERE {it} > 15 ORDER BY i",
            f"UPDATE {{s}}.t SET {it} = {it} + 1 WHERE {it} = 10",
            "DESCRIBE {s}.t",
            f"ALTER TABLE {{s}}.t RENAME COLUMN {it} TO renamed",
            f"ALTER TABLE {{s}}.t RENAME renamed TO {it}",
            "SELECT * FROM {s}.t ORDER BY i",
            f"ALTER TABLE {{s}}.t DROP COLUMN {it}",
            f"ALTER TABLE {{s}}.t ADD COLUMN {it} VARCHAR",
            "SELECT * FROM {s}.t ORDER BY i",
        )
        yield case(
            f"names/ctas/{label}",
            f"CREATE TABLE {{s}}.t AS SELECT 1 AS i, {{'a': 2, {it}: 3}} AS s, 4 AS {it}",
            "DESCRIBE {s}.t",
            f"SELECT s.{it}, {it} FROM {{s}}.t",
            "SELECT * FROM {s}.t",
        )
        yield case(
            f"names/schema/{label}",
            f"CREATE SCHEMA db.{it}",
            f"CREATE TABLE db.{it}.t AS SELECT 1 AS i",
            f"INSERT INTO db.{it}.t VALUES (2)",
            f"SELECT * FROM db.{it}.t ORDER BY i",
            f"DROP TABLE db.{it}.t",
            f"DROP SCHEMA db.{it}",
            f"CREATE TABLE db.{it}.t AS SELECT 1 AS i",
        )
