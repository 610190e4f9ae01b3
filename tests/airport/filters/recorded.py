"""The recorded predicates, rows to test them on, and DuckDB's own results."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import strategies as st

from skiway.testing import recordings

HERE = Path(__file__).parent

RECORDED = recordings().filters
WITH_FILTER = [each for each in RECORDED if each.filter]
PREDICATES = [each.predicate for each in WITH_FILTER]
NAN, INF = math.nan, math.inf


def _integers(bits: int, signed: bool = True) -> tuple[list[Any], st.SearchStrategy[Any]]:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    named = (0, 1, 2, 3, 4, 5, -5, 10, 20, 200, 500, 60000, 4000000000, 9007199254740993)
    return [None, low, low + 1, high, high - 1, *(n for n in named if low <= n <= high)], st.integers(low, high)


def _decimals(digits: int, scale: int, *named: str) -> tuple[list[Any], st.SearchStrategy[Any]]:
    special = [None, *(Decimal((sign, (9,) * digits, -scale)) for sign in (0, 1)), *map(Decimal, named)]
    unscaled = st.integers(1 - 10**digits, 10**digits - 1)
    return special, unscaled.map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


def _counts(low: int, high: int, infinity: int | None, *named: int) -> tuple[list[Any], st.SearchStrategy[Any]]:
    infinite = [] if infinity is None else [infinity, -infinity]
    return [None, low, high, 0, -1 if low < 0 else 1, *infinite, *named], st.integers(low, high)


_TEXTS = [
    None, "", "x", "y", "q", "z", "a", "A", "b", "abc", "ABC", "aBc", "az", "ab", "abd", " a ", "it's", "m", "n", "f", "fa", "5", "05",
    " 5", "6", "true", "f", "ünïcödé 🦆", "tab\there", "a%b", "aXb", "abcd", "aécXYd", "a\nc\nd", "ac", "none", "duckdb", "İ", "ſ", "K",
    "a\0b", "\0", "k", "a\\b", "\U0010ffff", "-1", "null",
]  # fmt: skip
_UUIDS = [
    None, "123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff",
]  # fmt: skip
_INT32 = [None, 5, 3, 7, 1, 2, 0, -(2**31), 2**31 - 1]
_INF32, _INF64 = 2**31 - 1, 2**63 - 1
_LEAST_MICROS, _MOST_MICROS = -9223372022400000000, _INF64 - 1
_DAY = 86400000000

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_int32 = st.none() | st.integers(-(2**31), 2**31 - 1) | st.sampled_from(_INT32)

# column -> its Arrow type, values that are special for the recorded predicates, any value
COLUMNS: dict[str, tuple[pa.DataType, list[Any], st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), *_integers(8)),
    "i16": (pa.int16(), *_integers(16)),
    "i32": (pa.int32(), *_integers(32)),
    "i64": (pa.int64(), *_integers(64)),
    "u8": (pa.uint8(), *_integers(8, signed=False)),
    "u16": (pa.uint16(), *_integers(16, signed=False)),
    "u32": (pa.uint32(), *_integers(32, signed=False)),
    "u64": (pa.uint64(), *_integers(64, signed=False)),
    "h": (pa.decimal128(38, 0), *_decimals(38, 0, "5", "6", "0", "-1")),
    "f": (pa.float32(), [None, NAN, INF, -INF, 0.0, -0.0, 1.5, 0.10000000149011612, 5.0, -5.0], st.floats(width=32)),
    "d": (pa.float64(), [None, NAN, INF, -INF, 0.0, -0.0, 0.1, 0.5, -0.5, 0.6, 1e300, 1.7e308, 5e-324], st.floats()),
    "dec9": (pa.decimal128(9, 2), *_decimals(9, 2, "1.25", "-1.25", "2.50", "1.00", "2.00", "1.51", "0.00")),
    "dec18": (pa.decimal128(18, 4), *_decimals(18, 4, "12345.6789", "0.0001")),
    "dec38": (pa.decimal128(38, 10), *_decimals(38, 10, "1234567890123456789012345678.0123456789", "0.0000000001")),
    "b": (pa.bool_(), [None, True, False], st.booleans()),
    "s": (pa.string(), _TEXTS, text),
    "bl": (pa.binary(), [None, b"", b"\xaa\x01ab", b"abc", b"ab", b"\0"], st.binary(max_size=4)),
    "bi": (pa.binary(), [None, b"\x05", b"\x05\xfd"], st.binary(max_size=2)),
    "u": (pa.string(), _UUIDS, st.uuids().map(str)),
    "dt": (pa.date32(), *_counts(1 - _INF32, _INF32 - 1, _INF32, 19782, 19783, 19754, 19723, 19724, 20088, 19722)),
    "tm": (pa.time64("us"), *_counts(0, _DAY, None, 45296789000, 999999, 1000000)),
    "ts": (
        pa.timestamp("us"),
        *_counts(_LEAST_MICROS, _MOST_MICROS, _INF64, 1709210096789012, -2208988800000000, 1709164800000000, 1709251200000000,
                 1704067200000000, 1706745599000000, 1704153600000001, 4000000000000000),
    ),
    "ts_s": (pa.timestamp("s"), *_counts(_LEAST_MICROS // 10**6, _MOST_MICROS // 10**6, _INF64, 1709210096)),
    "ts_ms": (pa.timestamp("ms"), *_counts(_LEAST_MICROS // 10**3, _MOST_MICROS // 10**3, _INF64, 1709210096789)),
    "ts_ns": (pa.timestamp("ns"), *_counts(-9223286400000000000, _INF64 - 1, _INF64, 1709210096789012345)),
    "tz": (pa.timestamp("us", tz="UTC"), *_counts(_LEAST_MICROS, _MOST_MICROS, _INF64, 1709202896000000, 1709210096000000)),
    "iv": (
        pa.month_day_nano_interval(),
        [None, (1, 2, 10800000000000), (0, 32, 10800000000000), (0, 0, 0), (0, 1, 0), (0, 0, 86400000000000), (0, 0, 86400001000000),
         (2**31 - 1, 0, 0), (-(2**31), -1, 0), (0, 2**31 - 1, 0), (-1, 40, 0)],
        st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**53), 2**53).map(lambda n: n * 1000)),
    ),
    "l": (pa.list_(pa.int32()), [None, [], [1, 2, 3], [2], [5], [3, None], [None], [1, 2]], st.lists(_int32, max_size=3)),
    "a": (pa.list_(pa.int32(), 3), [None, [1, 2, 3], [0, 7, None], [None, None, None]], st.lists(_int32, min_size=3, max_size=3)),
    "st": (
        pa.struct({"x": pa.int32(), "y": pa.string()}),
        [None, {"x": 5, "y": "q"}, {"x": None, "y": None}, {"x": 1, "y": "z"}, {"x": 2, "y": "ab"}, {"x": None, "y": "a"}],
        st.fixed_dictionaries({"x": _int32, "y": st.none() | st.sampled_from(_TEXTS)}),
    ),
    "m": (
        pa.map_(pa.string(), pa.int32()),
        [None, [], [("k", 5)], [("k", None)], [("j", 5), ("k", 6)], [("", 1)]],
        st.dictionaries(st.sampled_from(["k", "j", "", "K"]), _int32, max_size=2).map(lambda entries: list(entries.items())),
    ),
}  # fmt: skip


def table_of(values: dict[str, list[Any]]) -> pa.Table:
    """A table of these rows, numbered in a row id column."""
    arrays = {name: _array(values[name], COLUMNS[name][0]) for name in COLUMNS}
    return pa.table({**arrays, "rowid": pa.array(range(len(arrays["i8"])), pa.int64())})


def _array(values: list[Any], of: pa.DataType) -> pa.Array:
    if pa.types.is_date32(of):  # values beyond the range of Python's types can only be passed as integers
        return pa.array(values, pa.int32()).view(of)
    if pa.types.is_timestamp(of) or pa.types.is_time64(of):
        return pa.array(values, pa.int64()).view(of)
    return pa.array(values, of)


def special_rows(count: int = 61) -> pa.Table:
    """Every special value of every column, in varying combinations."""
    values = {
        name: [special[(row * (1 + place % 3) + place) % len(special)] for row in range(count)]
        for place, (name, (_, special, _)) in enumerate(COLUMNS.items())
    }
    return table_of(values)


@st.composite
def random_rows(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(1, 6))
    return table_of(
        {
            name: draw(st.lists(st.none() | st.sampled_from(special) | anything, min_size=count, max_size=count))
            for name, (_, special, anything) in COLUMNS.items()
        }
    )


class Oracle:
    """DuckDB with some rows in a table `t`: determines which of them a condition selects."""

    def __init__(self, rows: pa.Table) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET threads = 1")
        self.connection.register("rows", rows)
        self.connection.execute("CREATE TABLE t AS SELECT * FROM rows")

    def kept(self, where: str) -> set[int]:
        return {row for (row,) in self.connection.execute(f"SELECT rowid FROM t WHERE {where}").fetchall()}

    def kept_by_client(self, predicates: list[str]) -> list[set[int]]:
        """For each predicate, the rows on which it is true, without those on which it fails."""
        columns = ", ".join(f"({self._safe(predicate)}) IS TRUE" for predicate in predicates)
        # DuckDB moves common subexpressions of a SELECT out of their TRY.
        self.connection.execute("SET disabled_optimizers = 'common_subexpressions'")
        answers = self.connection.execute(f"SELECT rowid, {columns} FROM t").fetchall()
        self.connection.execute("RESET disabled_optimizers")
        return [{row for row, *kept in answers if kept[place]} for place in range(len(predicates))]

    def _safe(self, predicate: str) -> str:
        return predicate if "random()" in predicate else f"TRY(CAST(({predicate}) AS BOOLEAN))"


def numbers(rows: pa.Table) -> set[int]:
    return set(rows["rowid"].to_pylist())
