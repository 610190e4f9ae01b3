"""Real databases with the test rows, as far as they can store them: which rows does a condition keep there?"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa

from airport.filters.recorded import COLUMNS, Oracle, table_of
from skiway.airport.filters.translation import date_text, time_text, timestamp_text

Convert = Callable[[Any], Any]

_INFINITE = {2**31 - 1: "infinity", 1 - 2**31: "-infinity", 2**63 - 1: "infinity", 1 - 2**63: "-infinity"}


def _date(days: int) -> str | None:
    return _INFINITE.get(days) or date_text(days)


def _timestamp(micros: int) -> str | None:
    return _INFINITE.get(micros) or timestamp_text(micros)


def _text(value: str) -> str | None:
    return None if "\0" in value else value


# The type of each column in PostgreSQL, and its values there; None if it cannot store them.
POSTGRES: dict[str, tuple[str, Convert]] = {
    "i8": ("smallint", int),
    "i16": ("smallint", int),
    "i32": ("integer", int),
    "i64": ("bigint", int),
    "u8": ("smallint", int),
    "u16": ("integer", int),
    "u32": ("bigint", int),
    "u64": ("numeric(20)", int),
    "h": ("numeric(38)", str),
    "f": ("real", float),
    "d": ("double precision", float),
    "dec9": ("numeric(9, 2)", str),
    "dec18": ("numeric(18, 4)", str),
    "dec38": ("numeric(38, 10)", str),
    "b": ("boolean", bool),
    "s": ("text", _text),
    "bl": ("bytea", bytes),
    "bi": ("bytea", bytes),
    "u": ("text", str),
    "dt": ("date", _date),
    "tm": ("time", time_text),
    "ts": ("timestamp", _timestamp),
    "tz": ("timestamptz", lambda micros: (text := _timestamp(micros)) and f"{text}{'' if 'inf' in text else '+00'}"),
}

# SQLite has no NaN, and stores all else as text.
SQLITE: dict[str, tuple[str, Convert]] = {
    **dict.fromkeys(("i8", "i16", "i32", "i64", "u8", "u16", "u32", "b"), ("INTEGER", int)),
    **{name: ("REAL", lambda value: None if math.isnan(value) else value) for name in ("f", "d")},
    **dict.fromkeys(("s", "u"), ("TEXT", str)),
    **dict.fromkeys(("bl", "bi"), ("BLOB", bytes)),
}


class Database:
    """A table `t` with the rows that the database can store, and the same rows in DuckDB."""

    def __init__(self, rows: dict[str, list[Any]], columns: dict[str, tuple[str, Convert]], others: str) -> None:
        self.types = {name: columns[name][0] if name in columns else others for name in COLUMNS}
        stored: dict[str, list[Any]] = {}
        for name, values in rows.items():
            _, convert = columns.get(name, ("", lambda _: True))
            stored[name] = [None if value is None else convert(value) for value in values]
            rows = {**rows, name: [None if kept is None else v for v, kept in zip(values, stored[name], strict=True)]}
        self.oracle = Oracle(table_of(rows))
        self.create(stored, len(next(iter(stored.values()))))

    def create(self, stored: dict[str, list[Any]], count: int) -> None:
        raise NotImplementedError

    def kept(self, where: str) -> set[int]:
        raise NotImplementedError

    def _definition(self) -> str:
        return ", ".join(f'"{name}" {of}' for name, of in self.types.items())


class SQLite(Database):
    def __init__(self, rows: dict[str, list[Any]]) -> None:
        self.connection = sqlite3.connect(":memory:")
        super().__init__(rows, SQLITE, "TEXT")

    def create(self, stored: dict[str, list[Any]], count: int) -> None:
        self.connection.execute(f'CREATE TABLE t ({self._definition()}, "rowid" INTEGER)')
        places = ", ".join("?" * (len(stored) + 1))
        lines = zip(*stored.values(), range(count), strict=True)
        self.connection.executemany(f"INSERT INTO t VALUES ({places})", lines)

    def kept(self, where: str) -> set[int]:
        return {row for (row,) in self.connection.execute(f'SELECT "rowid" FROM t WHERE {where}')}


class Postgres(Database):
    def __init__(self, rows: dict[str, list[Any]], url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        super().__init__(rows, POSTGRES, "boolean")

    def create(self, stored: dict[str, list[Any]], count: int) -> None:
        self.connection.execute(f'CREATE TEMP TABLE t ({self._definition()}, "rowid" bigint)')  # type: ignore[call-overload]
        places = ", ".join(f"%s::{of}" for of in [*self.types.values(), "bigint"])
        with self.connection.cursor() as cursor:
            cursor.executemany(
                f"INSERT INTO t VALUES ({places})", list(zip(*stored.values(), range(count), strict=True))
            )

    def kept(self, where: str) -> set[int]:
        found = self.connection.execute(f'SELECT "rowid" FROM t WHERE {where}'.encode()).fetchall()
        return {row for (row,) in found}


def values_of(rows: pa.Table) -> dict[str, list[Any]]:
    """The values of test rows in the form in which `COLUMNS` has them."""
    found = {}
    for name, (of, _, _) in COLUMNS.items():
        column = rows[name].combine_chunks()
        if pa.types.is_date32(of):
            column = column.view(pa.int32())
        elif pa.types.is_timestamp(of) or pa.types.is_time64(of):
            column = column.view(pa.int64())
        found[name] = column.to_pylist()
    return found
