"""Every type that DuckDB sends round-trips, in both of the encodings that a session may use."""

from __future__ import annotations

from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from airport.memory.tables import insert, people, update
from skiway.airport.catalog import CreateTable
from skiway.airport.memory import MemoryCatalog, MemoryTable
from skiway.airport.tables import ScanOptions

# Two values of each type that both encodings can represent.
VALUES = {
    "BOOLEAN": ("true", "false"),
    "TINYINT": ("-128", "127"),
    "UBIGINT": ("0", "18446744073709551615"),
    "FLOAT": ("'nan'", "'-infinity'"),
    "DOUBLE": ("0.1", "-0.0"),
    "HUGEINT": ("-99999999999999999999999999999999999999", "7"),
    "UHUGEINT": ("99999999999999999999999999999999999999", "7"),
    "DECIMAL(4,1)": ("-999.9", "0"),
    "DECIMAL(38,10)": ("1234567890123456789012345678.0123456789", "0"),
    "VARCHAR": ("'Ærø 🛬'", "''"),
    "BLOB": ("'\\xAA\\x00'", "''"),
    "BIT": ("'101'", "'0000000011'"),
    "BIGNUM": ("'123456789012345678901234567890123456789012345678901234567890'", "'-258'"),
    "UUID": ("'123e4567-e89b-12d3-a456-426614174000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"),
    "JSON": ("'{\"a\": [1, null]}'", "'null'"),
    "DATE": ("'infinity'", "'290000-12-31 (BC)'"),
    "TIME": ("'23:59:59.999999'", "'00:00:00'"),
    "TIME_NS": ("'23:59:59.999999999'", "'00:00:00'"),
    "TIMETZ": ("'10:00:00+00'", "'23:59:59.999999+00'"),
    "TIMESTAMP": ("'-infinity'", "'290000-12-31 10:00:00'"),
    "TIMESTAMP_S": ("'infinity'", "'2025-01-31 10:00:00'"),
    "TIMESTAMP_MS": ("'-infinity'", "'2025-01-31 10:00:00.123'"),
    "TIMESTAMP_NS": ("'infinity'", "'2025-01-31 10:00:00.123456789'"),
    "TIMESTAMPTZ": ("'infinity'", "'2025-01-31 10:00:00+05'"),
    "INTERVAL": ("'1 month -2 days 3.000004 seconds'", "'-1 year'"),
    "BOOLEAN[]": ("[true, NULL]", "[]"),
    "UUID[2]": ("['123e4567-e89b-12d3-a456-426614174000', NULL]", "[NULL, NULL]"),
    "STRUCT(a UUID, b BOOLEAN[])": (
        "{'a': '123e4567-e89b-12d3-a456-426614174000', 'b': [true]}",
        "{'a': NULL, 'b': NULL}",
    ),
    "MAP(VARCHAR, HUGEINT)": ("MAP {'x': 1, 'y': NULL}", "MAP {}"),
    "UNION(n INTEGER, u UUID)": ("5", "union_value(u := '123e4567-e89b-12d3-a456-426614174000'::UUID)"),
    "ENUM('small', 'large')": ("'small'", "'large'"),
    "GEOMETRY": ("'POINT (1 2)'", "'POINT EMPTY'"),
}
FORMS = [False, True]


@cache
def database(lossless: bool) -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"arrow_lossless_conversion": str(lossless).lower()})


def session(*, lossless: bool) -> duckdb.DuckDBPyConnection:
    return database(lossless).cursor()


def sent(kind: str, *, lossless: bool) -> pa.Table:
    """Both values and a NULL, as a session with that setting sends them."""
    one, other = VALUES[kind]
    query = f"SELECT CAST({one} AS {kind}) AS v UNION ALL SELECT CAST({other} AS {kind}) UNION ALL SELECT NULL"
    rows = session(lossless=lossless).execute(query).to_arrow_table()
    if kind == "TIMESTAMPTZ" and lossless:  # as if that session used another time zone
        return rows.cast(pa.schema({"v": pa.timestamp("us", "Asia/Tokyo")}))
    return rows


def empty(schema: pa.Schema) -> MemoryTable:
    public = MemoryCatalog(schemas=["public"]).schema("public")
    assert public
    return public.create_table(CreateTable("t", schema))


def read(data: pa.Table) -> tuple[str, list[Any]]:
    """The type and the values as DuckDB sees them."""
    duck = session(lossless=True)
    duck.register("data", data)
    (kind,) = {row[1] for row in duck.execute("DESCRIBE data").fetchall()}
    return kind, duck.execute("SELECT v::VARCHAR FROM data").fetchall()


@pytest.mark.parametrize("inserted", FORMS)
@pytest.mark.parametrize("created", FORMS)
@pytest.mark.parametrize("kind", VALUES)
def test_values_round_trip_in_any_combination_of_encodings(kind: str, created: bool, inserted: bool) -> None:
    table = empty(sent(kind, lossless=created).schema)
    for batch in sent(kind, lossless=inserted).to_batches():
        insert(table, batch)
    assert read(table.scan(ScanOptions(columns=["v"])).read_all()) == read(sent(kind, lossless=created))


@pytest.mark.parametrize("inserted", FORMS)
@pytest.mark.parametrize("kind", VALUES)
def test_values_round_trip_through_an_update(kind: str, inserted: bool) -> None:
    rows = sent(kind, lossless=True)
    table = empty(rows.schema)
    for batch in rows.to_batches():
        insert(table, batch)
    new = sent(kind, lossless=inserted)["v"].combine_chunks()
    update(table, {"v": new, "rowid": [2, 0, 1]})
    kind_read, (one, other, null) = read(rows)
    assert read(table.to_arrow()) == (kind_read, [other, null, one])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("HUGEINT", "-170141183460469231731687303715884105728"),
        ("HUGEINT", "170141183460469231731687303715884105727"),
        ("UHUGEINT", "340282366920938463463374607431768211455"),
    ],
)
@pytest.mark.parametrize("inserted", FORMS)
def test_extreme_huge_integers_round_trip(kind: str, value: str, inserted: bool) -> None:
    query = f"SELECT {kind} '{value}' AS v"
    table = empty(session(lossless=True).execute(query).to_arrow_table().schema)
    (batch,) = session(lossless=inserted).execute(query).to_arrow_table().to_batches()
    insert(table, batch)
    assert read(table.to_arrow()) == (kind, [(value,)])


def test_time_offset_round_trips_where_it_is_sent() -> None:
    query = "SELECT TIMETZ '10:00:00+01' AS v UNION ALL SELECT TIMETZ '00:00:00-15:59:59'"
    rows = session(lossless=True).execute(query).to_arrow_table()
    table = empty(rows.schema)
    for batch in rows.to_batches():
        insert(table, batch)
    assert read(table.to_arrow()) == ("TIME WITH TIME ZONE", [("10:00:00+01",), ("00:00:00-15:59:59",)])


def test_enum_without_members_accepts_any_text() -> None:
    table = empty(pa.schema({"v": pa.dictionary(pa.uint8(), pa.string())}))
    for start in range(0, 600, 300):
        insert(table, {"v": [f"member {i}" for i in range(start, start + 300)]})
    assert pa.types.is_dictionary(table.schema.field("v").type)
    assert table.to_arrow()["v"].to_pylist() == [f"member {i}" for i in range(600)]


def test_a_table_loaded_from_arrow_keeps_its_values_in_types_duckdb_sends_back() -> None:
    loaded = pa.table(
        {
            "large": pa.array(["a", None], pa.large_string()),
            "view": pa.array(["a", None], pa.string_view()),
            "bytes": pa.array([b"a", None], pa.binary_view()),
            "runs": pa.array([1, 1]).run_end_encode() if hasattr(pa.Array, "run_end_encode") else pa.array([1, 1]),
            "enum": pa.array(["x", "y"]).dictionary_encode(),
            "elapsed": pa.array([90_000_000, None], pa.duration("us")),
            "list_view": pa.array([[1, None], None], pa.list_view(pa.int16())),
            "enums": pa.array([["x"], []], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
            "day": pa.array([86_400_000, None], pa.date64()),
            "short": pa.array([1, None], pa.time32("ms")),
            "small": pa.array([1, None], pa.decimal32(5, 2)),
        }
    )
    public = MemoryCatalog(schemas=["public"]).schema("public")
    assert public
    table = public.add_table("t", loaded)
    duck = session(lossless=True)
    before = duck.from_arrow(table.to_arrow()).fetchall()
    assert [str(value) for value in before[0]] == [
        "a", "a", "b'a'", "1", "x", "0:01:30", "[1, None]", "['x']", "1970-01-02", "00:00:00.001000", "1.00",
    ]  # fmt: skip
    for batch in duck.from_arrow(table.to_arrow()).to_arrow_table().to_batches():
        insert(table, batch)
    assert duck.from_arrow(table.to_arrow()).fetchall() == before + before


def test_any_object_with_arrow_data_can_be_loaded() -> None:
    public = MemoryCatalog(schemas=["public"]).schema("public")
    assert public
    table = public.add_table("t", session(lossless=True).sql("SELECT 7 AS v"))
    assert table.to_arrow().to_pylist() == [{"v": 7}]
    assert public.add_table("u", {"v": [1, 2]}).row_count() == 2


def test_column_of_type_null_accepts_only_nulls() -> None:
    table = people(schema=pa.schema({"v": pa.null()}))
    insert(table, {"v": pa.nulls(2)})
    insert(table, {"v": pa.nulls(1, pa.int32())})
    assert table.to_arrow()["v"].to_pylist() == [None] * 3
