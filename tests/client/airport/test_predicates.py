"""Predicates: encoded as DuckDB encodes them, with the same meaning as in DuckDB."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import re
import uuid
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from skiway.client import Predicate, col
from skiway.client.airport.calls import Table
from skiway.client.airport.filters import Selection, logical_type
from skiway.errors import InvalidArgument, NotFound, Unsupported
from skiway.testing import recordings

D = decimal.Decimal
NAN, INF = float("nan"), float("inf")
TEXT_UUID = "123e4567-e89b-12d3-a456-426614174000"

# The table of the recorded filters, as the client saw it.
COLUMNS = pa.schema(
    [
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("u8", pa.uint8()),
        ("u16", pa.uint16()),
        ("u32", pa.uint32()),
        ("u64", pa.uint64()),
        ("h", pa.decimal128(38, 0)),
        ("f", pa.float32()),
        ("d", pa.float64()),
        ("dec9", pa.decimal128(9, 2)),
        ("dec18", pa.decimal128(18, 4)),
        ("dec38", pa.decimal128(38, 10)),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("bl", pa.binary()),
        ("bi", pa.binary()),
        ("u", pa.string()),
        ("dt", pa.date32()),
        ("tm", pa.time64("us")),
        ("ts", pa.timestamp("us")),
        ("ts_s", pa.timestamp("s")),
        ("ts_ms", pa.timestamp("ms")),
        ("ts_ns", pa.timestamp("ns")),
        ("tz", pa.timestamp("us", "UTC")),
        ("iv", pa.month_day_nano_interval()),
        ("l", pa.list_(pa.int32())),
        ("a", pa.list_(pa.int32(), 3)),
        ("st", pa.struct([("x", pa.int32()), ("y", pa.string())])),
        ("m", pa.map_(pa.string(), pa.int32())),
        pa.field("rowid", pa.int64(), metadata={"is_rowid": "1"}),
    ]
)
TABLE = Table("s", "t", COLUMNS)

i32, s, b, d, f = col("i32"), col("s"), col("b"), col("d"), col("f")

SAID: dict[str, Predicate] = {
    "i32 = 5": i32 == 5,
    "i32 <> 5": i32 != 5,
    "i32 < 5": i32 < 5,
    "i32 <= 5": i32 <= 5,
    "i32 > 5": i32 > 5,
    "i32 >= 5": i32 >= 5,
    "i32 = -5": i32 == -5,
    "i32 IS NULL": i32.is_null(),
    "i32 IS NOT NULL": ~i32.is_null(),
    "NOT (i32 = 5)": ~(i32 == 5),
    "i32 IN (1,2,3)": i32.isin([1, 2, 3]),
    "i32 NOT IN (1,2,3)": ~i32.isin([1, 2, 3]),
    "i32 IN (1)": i32.isin([1]),
    "i32 BETWEEN 1 AND 10": i32.between(1, 10),
    "i32 NOT BETWEEN 1 AND 10": ~i32.between(1, 10),
    "i32 = 1 OR i32 = 2": (i32 == 1) | (i32 == 2),
    "i32 = 1 OR s = 'x'": (i32 == 1) | (s == "x"),
    "(i32 = 1 AND s = 'x') OR (i32 = 2 AND s = 'y')": ((i32 == 1) & (s == "x")) | ((i32 == 2) & (s == "y")),
    "NOT (i32 = 1 OR s = 'x')": ~((i32 == 1) | (s == "x")),
    "i8 = 5": col("i8") == 5,
    "i16 = 500": col("i16") == 500,
    "i64 = 9007199254740993": col("i64") == 9007199254740993,
    "i64 > 9223372036854775806": col("i64") > 9223372036854775806,
    "u8 = 200": col("u8") == 200,
    "u16 = 60000": col("u16") == 60000,
    "u32 = 4000000000": col("u32") == 4000000000,
    "u64 = 18446744073709551615": col("u64") == 18446744073709551615,
    "h > 5": col("h") > 5,
    "f = 1.5": f == 1.5,
    "f > 0.1": f > 0.1,
    "d = 0.1": d == 0.1,
    "d > 1e300": d > 1e300,
    "d = 'NaN'::DOUBLE": d == NAN,
    "d < 'Infinity'::DOUBLE": d < INF,
    "d > '-Infinity'::DOUBLE": d > -INF,
    "d BETWEEN -0.5 AND 0.5": d.between(-0.5, 0.5),
    "dec9 = 1.25": col("dec9") == D("1.25"),
    "dec9 > -1.25": col("dec9") > D("-1.25"),
    "dec18 = 12345.6789": col("dec18") == D("12345.6789"),
    "dec38 = 1234567890123456789012345678.0123456789": col("dec38") == D("1234567890123456789012345678.0123456789"),
    "dec9 IN (1.25, 2.50)": col("dec9").isin([D("1.25"), D("2.50")]),
    "dec9 BETWEEN 1 AND 2": col("dec9").between(1, 2),
    "b": b,
    "NOT b": ~b,
    "b = true": b == True,  # noqa: E712
    "b = false": b == False,  # noqa: E712
    "b IS NULL": b.is_null(),
    "b OR i32 = 1": b | (i32 == 1),
    "s = 'x'": s == "x",
    "s = ''": s == "",
    "s = 'it''s'": s == "it's",
    "s = 'ünïcödé 🦆'": s == "ünïcödé 🦆",
    "s = E'tab\\there'": s == "tab\there",
    "s > 'm'": s > "m",
    "s IN ('a','b','c')": s.isin("abc"),
    "s BETWEEN 'a' AND 'f'": s.between("a", "f"),
    "bl = '\\xAA\\x01ab'::BLOB": col("bl") == b"\xaa\x01ab",
    "bl = 'abc'::BLOB": col("bl") == b"abc",
    "u = '123e4567-e89b-12d3-a456-426614174000'": col("u") == TEXT_UUID,
    "u > '00000000-0000-0000-0000-000000000000'": col("u") > "00000000-0000-0000-0000-000000000000",
    "dt = DATE '2024-02-29'": col("dt") == dt.date(2024, 2, 29),
    "dt > DATE '1969-12-31'": col("dt") > dt.date(1969, 12, 31),
    "dt BETWEEN DATE '2024-01-01' AND DATE '2024-12-31'": col("dt").between(dt.date(2024, 1, 1), dt.date(2024, 12, 31)),
    "dt IN (DATE '2024-01-01', DATE '2024-01-02')": col("dt").isin([dt.date(2024, 1, 1), dt.date(2024, 1, 2)]),
    "tm = TIME '12:34:56.789'": col("tm") == dt.time(12, 34, 56, 789000),
    "tm < TIME '00:00:01'": col("tm") < dt.time(0, 0, 1),
    "ts = TIMESTAMP '2024-02-29 12:34:56.789012'": col("ts") == dt.datetime(2024, 2, 29, 12, 34, 56, 789012),
    "ts >= TIMESTAMP '1900-01-01'": col("ts") >= dt.datetime(1900, 1, 1),
    "ts BETWEEN TIMESTAMP '2024-01-01' AND TIMESTAMP '2024-01-31 23:59:59'": col("ts").between(
        dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 31, 23, 59, 59)
    ),
    "ts_s = TIMESTAMP_S '2024-02-29 12:34:56'": col("ts_s") == dt.datetime(2024, 2, 29, 12, 34, 56),
    "ts_ms = TIMESTAMP_MS '2024-02-29 12:34:56.789'": col("ts_ms") == dt.datetime(2024, 2, 29, 12, 34, 56, 789000),
    "ts_ns = TIMESTAMP_NS '2024-02-29 12:34:56.789012345'": col("ts_ns")
    == pa.scalar(1709210096789012345, pa.timestamp("ns")),
    "tz = TIMESTAMPTZ '2024-02-29 12:34:56+02'": col("tz")
    == dt.datetime(2024, 2, 29, 12, 34, 56, tzinfo=dt.timezone(dt.timedelta(hours=2))),
    "tz < TIMESTAMPTZ '2024-02-29 12:34:56 UTC'": col("tz") < dt.datetime(2024, 2, 29, 12, 34, 56, tzinfo=dt.UTC),
    "l IS NULL": col("l").is_null(),
    "rowid = 5": col("rowid") == 5,
    "rowid IN (1,2,3)": col("rowid").isin([1, 2, 3]),
    "rowid > 10 AND i32 = 5": (col("rowid") > 10) & (i32 == 5),
}


RECORDED = {recorded.predicate: recorded for recorded in recordings().filters}


def without_positions(json_filters: str) -> str:
    """The same document without positions in the SQL text and with normalized numbers; order matters."""
    return json.dumps(json.loads(re.sub(r'"query_location":\d+', '"query_location":0', json_filters)))


@pytest.mark.parametrize("sql", SAID)
def test_predicate_is_encoded_as_in_duckdb(sql: str) -> None:
    line = RECORDED[sql]
    selection = Selection(TABLE, ["i32", "s"], SAID[sql])
    assert without_positions(selection.json_filters()) == without_positions(line.json_filters)
    assert selection.column_ids() == list(line.column_ids)


# -- meaning ------------------------------------------------------------------------------------------------------------

VALUES: dict[str, list[Any]] = {
    "i8": [5, -5, 127],
    "i16": [500, 5, -1],
    "i32": [5, 1, 2, 10, -5, 0, 7],
    "i64": [9007199254740993, 9223372036854775807, 5],
    "u8": [200, 5],
    "u16": [60000, 5],
    "u32": [4000000000, 5],
    "u64": [18446744073709551615, 5],
    "h": [D(6), D(5), D(-1)],
    "f": [1.5, 0.1, 0.2, NAN, INF],
    "d": [0.1, 1e301, NAN, INF, -INF, 0.5, -0.7],
    "dec9": [D("1.25"), D("-1.25"), D("2.50"), D("2.01"), D("1.00")],
    "dec18": [D("12345.6789"), D("0.0000")],
    "dec38": [D("1234567890123456789012345678.0123456789"), D("1.0000000000")],
    "b": [True, False],
    "s": ["x", "", "it's", "ünïcödé 🦆", "tab\there", "m", "n", "a", "c", "f", "fa"],
    "bl": [b"\xaa\x01ab", b"abc", b""],
    "u": [TEXT_UUID, "00000000-0000-0000-0000-000000000000"],
    "dt": [dt.date(2024, 2, 29), dt.date(1969, 12, 31), dt.date(2024, 1, 2), dt.date(2025, 1, 1)],
    "tm": [dt.time(12, 34, 56, 789000), dt.time(0, 0, 0, 5)],
    "ts": [dt.datetime(2024, 2, 29, 12, 34, 56, 789012), dt.datetime(1899, 1, 1), dt.datetime(2024, 1, 15)],
    "ts_s": [dt.datetime(2024, 2, 29, 12, 34, 56), dt.datetime(2024, 1, 1)],
    "ts_ms": [dt.datetime(2024, 2, 29, 12, 34, 56, 789000), dt.datetime(2024, 1, 1)],
    "ts_ns": [1709210096789012345, 1709210096789012346],
    "tz": [dt.datetime(2024, 2, 29, 10, 34, 56, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, 12, 34, 56, tzinfo=dt.UTC)],
    "rowid": list(range(20)),
}


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    """Rows with each value above and NULL, in varying combinations."""
    count = 77
    columns = []
    for field in COLUMNS:
        values = [*VALUES.get(field.name, []), None]
        columns.append(pa.array([values[i % len(values)] for i in range(count)], field.type))
    return pa.Table.from_arrays([*columns[:-1], pa.array(range(count), pa.int64())], schema=COLUMNS)


FAR = pa.scalar(3_789_742, pa.int32()).cast(pa.date32())  # the year 12345, which Python does not have
MEANT = {
    **SAID,
    "d >= 'NaN'::DOUBLE": d >= NAN,
    "d <= 'NaN'::DOUBLE": d <= NAN,
    "d > 'NaN'::DOUBLE": d > NAN,
    "d < 'NaN'::DOUBLE": d < NAN,
    "d <> 'NaN'::DOUBLE": d != NAN,
    "d >= 0.5": d >= 0.5,
    "d <> 0.5": d != 0.5,
    "NOT (d > 0.5 AND i32 = 5)": ~((d > 0.5) & (i32 == 5)),
    "d IN (0.5, 'NaN'::DOUBLE)": d.isin([0.5, NAN]),
    "d NOT IN (0.5, 'NaN'::DOUBLE)": ~d.isin([0.5, NAN]),
    "NOT (i32 NOT IN (1, 2) AND s <> 'x')": ~(~i32.isin([1, 2]) & (s != "x")),
    "NOT (b IS NULL OR NOT b)": ~(b.is_null() | ~b),
    "dt < DATE '12345-01-01'": col("dt") < FAR,
    "dt IN (DATE '12345-01-01', DATE '2024-02-29')": col("dt").isin([FAR, dt.date(2024, 2, 29)]),
}


@pytest.fixture(scope="module")
def database(rows: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("arrow_rows", rows)
        connection.execute("CREATE TABLE t AS SELECT * EXCLUDE (rowid) FROM arrow_rows ORDER BY arrow_rows.rowid")
        yield connection


@pytest.mark.parametrize("sql", MEANT)
def test_predicate_selects_the_same_rows_as_duckdb(
    sql: str, rows: pa.Table, database: duckdb.DuckDBPyConnection
) -> None:
    selection = Selection(TABLE, ["rowid"], MEANT[sql])
    selected = [selection.apply(batch).column(0) for batch in rows.to_batches()]
    expected = database.execute(f"SELECT rowid FROM t WHERE {sql} ORDER BY rowid").fetchall()
    assert pa.chunked_array(selected).to_pylist() == [number for (number,) in expected]


def test_filter_with_no_result_columns_only_counts_rows(rows: pa.Table) -> None:
    (batch,) = rows.to_batches()
    counted = Selection(TABLE, [], i32 == 5)
    assert counted.column_ids() == [2]
    assert counted.apply(batch).num_rows == Selection(TABLE, ["i32"], i32 == 5).apply(batch).num_rows > 0


# -- types and constants missing from the recordings --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        (pa.uuid(), uuid.UUID(TEXT_UUID), {"upper": -7908807583029587245, "lower": 0xA456426614174000}),
        (pa.uuid(), TEXT_UUID, {"upper": -7908807583029587245, "lower": 0xA456426614174000}),
        (pa.bool8(), True, True),
        (pa.json_(), "{}", "{}"),
        (pa.large_string(), "x", "x"),
        (pa.string_view(), "x", "x"),
        (pa.date64(), dt.date(1969, 12, 31), -1),
        (pa.time32("s"), dt.time(0, 0, 2), 2_000_000),
        (pa.time32("ms"), dt.time(0, 0, 2), 2_000_000),
        (pa.time64("ns"), dt.time(0, 0, 2), 2_000_000_000),
        (pa.dictionary(pa.int8(), pa.string()), "x", "x"),
        (pa.binary(2), b"\x00\\", "\\x00\\x5C"),
        (pa.decimal128(19, 1), D("-0.1"), {"upper": -1, "lower": 2**64 - 1}),
        (pa.float64(), 3, 3.0),
    ],
    ids=str,
)
def test_constant_has_duckdbs_form(data_type: pa.DataType, value: object, expected: object) -> None:
    table = Table("s", "t", pa.schema([("c", data_type)]))
    document = json.loads(Selection(table, None, col("c") == value).json_filters())
    assert document["filters"][0]["right"]["value"]["value"] == expected
    if isinstance(expected, float):
        assert "3.0" in Selection(table, None, col("c") == value).json_filters()


@pytest.mark.parametrize(
    "data_type",
    [pa.uuid(), pa.dictionary(pa.int8(), pa.string()), pa.bool8(), pa.large_string(), pa.time32("s"), pa.date64()],
    ids=str,
)
def test_values_of_every_layout_are_compared(data_type: pa.DataType) -> None:
    values: dict[str, list[Any]] = {
        "extension<arrow.uuid>": [uuid.UUID(int=1), uuid.UUID(int=2**127 + 1)],
        "time32[s]": [dt.time(1), dt.time(2)],
        "date64[ms]": [dt.date(2024, 1, 1), dt.date(2024, 1, 2)],
        "extension<arrow.bool8>": [False, True],
    }
    low, high = values.get(str(data_type), ["a", "b"])
    storage = getattr(data_type, "storage_type", data_type)
    plain = [v.bytes if isinstance(v, uuid.UUID) else v for v in (low, None, high)]
    array = pa.array([int(v) if isinstance(v, bool) else v for v in plain], storage)
    column = pa.ExtensionArray.from_storage(data_type, array) if storage is not data_type else array
    batch = pa.record_batch([column, pa.array([0, 1, 2])], names=["c", "n"])
    table = Table("s", "t", batch.schema)

    def selected(predicate: Predicate) -> list[int]:
        return Selection(table, ["n"], predicate).apply(batch).column("n").to_pylist()

    assert selected(col("c") == high) == [2]
    assert selected(col("c") < high) == [0]
    assert selected(col("c").isin([low, high])) == [0, 2]
    assert selected(col("c").is_null()) == [1]


def test_logical_types_of_nested_columns_match_the_recordings() -> None:
    seen: dict[str, Any] = {}

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("expression_class") == "BOUND_COLUMN_REF":
                seen.setdefault(node["alias"], node["return_type"])
            for part in node.values():
                collect(part)
        elif isinstance(node, list):
            for part in node:
                collect(part)

    for line in RECORDED.values():
        if line.json_filters and "COLLATE" not in line.predicate:
            collect(json.loads(line.json_filters))
    assert {"l", "a", "st", "m", "dec9", "tz"} <= seen.keys()
    for name, recorded_type in seen.items():
        assert json.dumps(logical_type(COLUMNS.field(name))) == json.dumps(recorded_type), name


def test_union_json_and_geometry_types_are_encoded_as_in_duckdb() -> None:
    union = pa.sparse_union([pa.field("x", pa.int32())])
    tagged = logical_type(pa.field("u", union))["type_info"]["child_types"]
    assert [child["first"] for child in tagged] == ["", "x"]
    assert logical_type(pa.field("j", pa.json_()))["type_info"]["alias"] == "JSON"
    wkb = pa.field("g", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})
    assert logical_type(wkb)["id"] == "BLOB"


# -- invalid predicates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("i32", 1.5),
        ("i32", "5"),
        ("i32", True),
        ("i8", 1000),
        ("s", 5),
        ("s", b"x"),
        ("bl", "x"),
        ("dec9", D("1.255")),
        ("dec9", 1.25),
        ("b", 1),
        ("dt", dt.datetime(2024, 1, 1, 12)),
        ("dt", 19723),
        ("ts", dt.date(2024, 1, 1)),
        ("ts", dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        ("ts_s", dt.datetime(2024, 1, 1, microsecond=5)),
        ("tz", dt.datetime(2024, 1, 1)),
    ],
)
def test_value_that_is_not_exactly_representable_is_rejected(column: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=f"column '{column}' is .* no value of that type"):
        Selection(TABLE, None, col(column) == value).json_filters()


def test_invalid_uuid_text_is_rejected() -> None:
    table = Table("s", "t", pa.schema([("u", pa.uuid())]))
    with pytest.raises(InvalidArgument, match="'nope' is not a UUID"):
        Selection(table, None, col("u") == "nope").json_filters()


@pytest.mark.parametrize("column", ["iv", "l", "a", "st", "m"])
def test_comparison_of_an_unordered_type_is_rejected(column: str) -> None:
    with pytest.raises(Unsupported, match=f"column '{column}' is .* filter the rows yourself"):
        Selection(TABLE, None, col(column) == 5).json_filters()


def test_null_can_only_be_compared_with_is_null() -> None:
    for wrong in (lambda: i32 == None, lambda: i32.between(1, None), lambda: i32.isin([None])):  # noqa: E711
        with pytest.raises(InvalidArgument, match="is_null"):
            wrong()


def test_python_boolean_operators_are_rejected() -> None:
    with pytest.raises(InvalidArgument, match=r"&, \| and ~"):
        bool((i32 > 1) and (i32 < 5))
    with pytest.raises(InvalidArgument, match="parentheses"):
        (i32 > 1) & 5  # type: ignore[operator]
    with pytest.raises(InvalidArgument, match="values only"):
        i32 == s  # noqa: B015


def test_empty_list_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="at least one value"):
        i32.isin([])


def test_unknown_column_in_a_filter_is_not_found() -> None:
    with pytest.raises(NotFound, match=r"column 'nope' not found in s\.t; it has 'i8'"):
        Selection(TABLE, None, col("nope") == 1).column_ids()


def test_column_used_as_a_predicate_must_be_boolean() -> None:
    with pytest.raises(InvalidArgument, match="column 'i32' is INTEGER, not BOOLEAN"):
        Selection(TABLE, None, i32).json_filters()


def test_filter_text_is_sent_unchanged() -> None:
    text = '{"filters":[]}'
    assert Selection(TABLE, ["s"], text).json_filters() == text
    assert Selection(TABLE, ["s"], "").json_filters() == ""
    for wrong in ("{", "[]"):
        with pytest.raises(InvalidArgument, match="JSON"):
            Selection(TABLE, ["s"], wrong).json_filters()


def test_floats_are_widened_as_in_duckdb() -> None:
    document = json.loads(Selection(TABLE, None, f == 0.1).json_filters())
    value = document["filters"][0]["right"]["value"]["value"]
    assert value != 0.1
    assert math.isclose(value, 0.1, rel_tol=1e-7)
