"""Every column type of every format: values are returned as written, or the column is rejected by name."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.managed import LooseTable
from formats.test_contents import now
from lake.lakes import Lake, opened_lake
from skiway.client import AirportClient, col
from skiway.errors import InvalidArgument, PreconditionFailed, SkiwayError, Unsupported
from skiway.formats import open_source

DAY, MOMENT, TIME = dt.date(2020, 1, 2), dt.datetime(1969, 12, 31, 3, 4, 5), dt.time(23, 59, 59)
UUID = uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")
MAX64 = 2**64 - 1


def array(values: list[Any], of: pa.DataType) -> pa.Array:
    if isinstance(of, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(of, pa.array(values, of.storage_type))
    return pa.array(values, of)


COLUMNS: dict[str, pa.Array] = {
    "boolean": array([True, None, False], pa.bool_()),
    **{str(of): array([1, None, -128], of) for of in (pa.int8(), pa.int16(), pa.int32(), pa.int64())},
    **{str(of): array([1, None, 255], of) for of in (pa.uint8(), pa.uint16(), pa.uint32())},
    "uint64": array([0, None, MAX64], pa.uint64()),
    "float16": array([1.5, None, float("nan"), -0.0], pa.float16()),
    "float32": array([0.1, None, float("inf")], pa.float32()),
    "float64": array([0.1, None, float("nan")], pa.float64()),
    "decimal32": array([Decimal("1.23"), None], pa.decimal32(5, 2)),
    "decimal64": array([Decimal("-1.23"), None], pa.decimal64(15, 2)),
    "decimal128": array([Decimal("-99999999.99"), None], pa.decimal128(10, 2)),
    "decimal of 38 digits": array([Decimal(10**38 - 1), None], pa.decimal128(38, 0)),
    "decimal256 that fits": array([Decimal("1.23"), None], pa.decimal256(30, 2)),
    "date32": array([DAY, None], pa.date32()),
    "date64": array([DAY, None], pa.date64()),
    "time32[s]": array([TIME, None], pa.time32("s")),
    "time32[ms]": array([TIME, None], pa.time32("ms")),
    "time64[us]": array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
    "time64[ns], whole": array([3_723_000_000_000, None], pa.time64("ns")),
    **{
        f"timestamp[{unit}] {str(zone).replace('/', ' ')}": array([MOMENT, None], pa.timestamp(unit, zone))
        for unit in ("s", "ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin", "+05:30")
    },
    "uuid": array([UUID.bytes, None], pa.uuid()),
    "fixed": array([b"abc", None], pa.binary(3)),
    "fixed of 16": array([b"a" * 16, None], pa.binary(16)),
    "binary": array([b"\0a", None, b""], pa.binary()),
    "large_binary": array([b"a", None], pa.large_binary()),
    "binary_view": array([b"a" * 20, None], pa.binary_view()),
    "string": array(["ä🛬", None, ""], pa.string()),
    "large_string": array(["a", None], pa.large_string()),
    "string_view": array(["a" * 20, None], pa.string_view()),
    "JSON": array(['{"a": 1}', None], pa.json_()),
    "dictionary of text": array(["a", None, "b", "a"], pa.dictionary(pa.int32(), pa.string())),
    "dictionary of numbers": array([5, None, 6, 5], pa.dictionary(pa.int8(), pa.int64())),
    "list": array([[1, None], None, []], pa.list_(pa.int32())),
    "large_list": array([[1], None], pa.large_list(pa.int32())),
    "fixed_size_list": array([[1, 2], None], pa.list_(pa.int32(), 2)),
    "struct": array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}], pa.struct({"a": pa.int64(), "b": pa.string()})),
    "map": array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
    "nested": array(
        [[{"m": [("k", [1.5, None])]}], None],
        pa.list_(pa.struct({"m": pa.map_(pa.string(), pa.list_(pa.float64()))})),
    ),
    "narrow types in a struct": array([{"a": 2**32 - 1, "b": 1}, None], pa.struct({"a": pa.uint32(), "b": pa.int8()})),
    "moments in a list": array([[MOMENT], None], pa.list_(pa.timestamp("ms", "UTC"))),
}
MANAGED_ONLY = {
    "list_view": array([[1], None, [2, 3], []], pa.list_view(pa.int32())),
    "large_list_view": array([["a"], None], pa.large_list_view(pa.string())),
}
REJECTED_BY_MANAGED: dict[str, tuple[pa.Array, str]] = {
    "decimal of 76 digits": (array([Decimal(10**60)], pa.decimal256(76, 0)), "decimal256"),
    "decimal with negative scale": (array([Decimal(1200)], pa.decimal128(5, -2)), "decimal128"),
    "duration": (array([dt.timedelta(1)], pa.duration("us")), "duration"),
    "interval": (array([(1, 2, 3)], pa.month_day_nano_interval()), "interval"),
    "null": (pa.nulls(1), "null"),
    "list of null": (array([[None]], pa.list_(pa.null())), "null"),
    "opaque": (array([b"1"], pa.opaque(pa.binary(), "bignum", "DuckDB")), "bignum"),
    "empty struct": (array([{}], pa.struct([])), "struct without fields"),
}
FINER_THAN_MICROSECONDS = {
    "time64[ns]": array([3_723_000_000_004], pa.time64("ns")),
    "timestamp[ns]": array([1_577_934_245_000_000_001], pa.timestamp("ns")),
}


def values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """As Python values, with NaN as text and timestamps in UTC."""
    of = column.type
    if isinstance(of, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in pa.chunked_array(column).chunks], of.storage_type)
    if pa.types.is_timestamp(of):
        column = column.cast(pa.timestamp("ns" if of.unit == "ns" else "us", "UTC" if of.tz else None))
        return [str(each) for each in column.cast(pa.int64()).to_pylist()] if of.unit == "ns" else column.to_pylist()
    return [repr(each) if isinstance(each, float) else each for each in column.to_pylist()]


def same(found: pa.ChunkedArray, written: pa.Array) -> bool:
    if pa.types.is_timestamp(written.type) and pa.types.is_timestamp(found.type):
        return bool(
            found.cast(pa.timestamp("ns", written.type.tz)).equals(
                pa.chunked_array([written.cast(pa.timestamp("ns", written.type.tz))])
            )
        )
    return values(found) == values(written)


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AirportClient]:
    """A client of a lake with a schema `s`."""
    with opened_lake(tmp_path_factory.mktemp("lake")) as lake, lake.client() as db:
        db.create_schema("s")
        yield db


# --- managed tables ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*COLUMNS, *MANAGED_ONLY])
def test_managed_table_preserves_values(db: AirportClient, case: str) -> None:
    written = {**COLUMNS, **MANAGED_ONLY}[case]
    db.create_table(("s", case), pa.schema({"c": written.type}))
    db.insert(("s", case), pa.table({"c": written}))
    assert same(db.scan(("s", case)).read_all()["c"], written)


@pytest.mark.parametrize("case", REJECTED_BY_MANAGED)
def test_managed_table_rejects_other_types_by_column_name(db: AirportClient, case: str) -> None:
    written, named = REJECTED_BY_MANAGED[case]
    with pytest.raises(Unsupported, match=rf"column 'c' has type .*{named}.* cast it to another type"):
        db.create_table(("s", case), pa.schema({"id": pa.int64(), "c": written.type}))


def test_types_of_duckdb_that_iceberg_lacks_are_named(db: AirportClient) -> None:
    time_tz = pa.opaque(pa.binary(8), "time_tz", "DuckDB")
    with pytest.raises(Unsupported, match="column 't' has type time_tz of DuckDB, which Iceberg tables cannot store"):
        db.create_table("s.offsets", pa.schema({"t": time_tz}))


def test_managed_table_does_not_silently_drop_nanoseconds(db: AirportClient) -> None:
    time, moment = FINER_THAN_MICROSECONDS.values()
    db.create_table("s.times", pa.schema({"c": time.type}))
    with pytest.raises(InvalidArgument, match=r"column 'c' .* would lose data"):
        db.insert("s.times", pa.table({"c": time}))
    assert db.count("s.times") == 0
    db.create_table("s.moments", pa.schema({"c": moment.type}))
    db.insert("s.moments", pa.table({"c": moment}))
    assert same(db.scan("s.moments").read_all()["c"], moment)


# --- Parquet ----------------------------------------------------------------------------------------------------------


def mirrored(lake: Lake, kind: str, uri: Path) -> AirportClient:
    lake.mirror(kind, str(uri))
    return lake.client(kind)


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, AirportClient]]:
    """The folder with one Parquet table per case, and a client of a lake that mirrors them."""
    folder = tmp_path_factory.mktemp("parquet")
    for case, written in {**COLUMNS, **FINER_THAN_MICROSECONDS, "null": pa.nulls(2)}.items():
        (folder / case).mkdir()
        pq.write_table(pa.table({"c": written}), folder / case / "f.parquet")
    (folder / "int96").mkdir()
    old = pa.array([MOMENT, None, dt.datetime(1500, 1, 1), dt.datetime(9999, 1, 1)], pa.timestamp("us"))
    pq.write_table(pa.table({"c": old}), folder / "int96" / "f.parquet", use_deprecated_int96_timestamps=True)
    with opened_lake(tmp_path_factory.mktemp("lake")) as lake, mirrored(lake, "parquet", folder) as db:
        yield folder, db


@pytest.mark.parametrize("case", [*COLUMNS, "null", "int96", "timestamp[ns]"])
def test_parquet_column_equals_what_its_writer_and_duckdb_read(parquet: tuple[Path, AirportClient], case: str) -> None:
    folder, db = parquet
    found = db.scan(("root", case)).read_all()["c"]
    assert case not in COLUMNS or same(found, COLUMNS[case])
    with duckdb.connect() as duck:
        duck.register("found", pa.table({"c": found}))
        theirs_sql = f"(SELECT c::VARCHAR FROM read_parquet('{folder / case / 'f.parquet'}'))"
        if case == "int96":  # which DuckDB reads without the time zone
            theirs_sql = f"(SELECT c::TIMESTAMPTZ::VARCHAR FROM read_parquet('{folder / case / 'f.parquet'}'))"
        if pa.types.is_uint64(COLUMNS.get(case, pa.nulls(0)).type) or "float" in case:
            theirs_sql = f"(SELECT c::DOUBLE::VARCHAR FROM read_parquet('{folder / case / 'f.parquet'}'))"
            ours = "(SELECT c::DOUBLE::VARCHAR FROM found)"
        else:
            ours = "(SELECT c::VARCHAR FROM found)"
        duck.execute("SET TimeZone = 'UTC'")
        assert duck.execute(f"SELECT count(*) FROM ({ours} EXCEPT ALL {theirs_sql})").fetchall() == [(0,)]
        assert duck.execute(f"SELECT count(*) FROM ({theirs_sql} EXCEPT ALL {ours})").fetchall() == [(0,)]


def test_parquet_times_finer_than_microseconds_are_rejected_on_read(
    parquet: tuple[Path, AirportClient],
) -> None:
    _, db = parquet
    with pytest.raises(
        PreconditionFailed, match=r"column 'c' of file .* has a value that time64\[us\] cannot represent"
    ):
        db.scan(("root", "time64[ns]")).read_all()


@pytest.mark.parametrize(
    "written",
    [
        array([Decimal(10**60)], pa.decimal256(76, 0)),
        array([dt.timedelta(1)], pa.duration("us")),
        array([1], pa.bool8()),
    ],
    ids=lambda each: str(each.type),
)
def test_other_parquet_types_are_rejected_by_column_name(tmp_path: Path, written: pa.Array) -> None:
    pq.write_table(pa.table({"c": written}), tmp_path / "t.parquet")
    with (
        open_source("parquet", str(tmp_path)) as source,
        pytest.raises(Unsupported, match=r"column 'c' has type .* leave the column out"),
    ):
        source.load((), "t")


def test_columns_written_by_duckdb_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    with duckdb.connect() as duck, opened_lake(tmp_path) as lake:
        duck.execute(
            f"""COPY (SELECT 1 AS id, '{{"a":1}}'::JSON AS j, '{UUID}'::UUID AS u, 'a'::ENUM ('a', 'b') AS e,
            7::UTINYINT AS ut, '\\x00'::BLOB AS b, 1.5::DECIMAL(18, 3) AS d, {{'a': 1}} AS s, [1, 2] AS l,
            MAP {{'a': 1}} AS m, TIMESTAMPTZ '2020-01-02 03:04:05+00' AS z) TO '{folder}/t.parquet'"""
        )
        lake.mirror("parquet", str(folder))
        with lake.client("parquet") as db:
            duck.register("found", db.scan("root.t").read_all())
        texts = "SELECT * REPLACE (j::VARCHAR AS j, e::VARCHAR AS e, z::VARCHAR AS z) FROM"
        expected = duck.execute(f"{texts} read_parquet('{folder}/t.parquet')").fetchall()
        assert duck.execute(f"{texts} found").fetchall() == expected
        assert expected[0][1] == '{"a":1}'


# --- Iceberg ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2", "3"])
def test_all_iceberg_types_are_read_as_pyiceberg_reads_them(tmp_path: Path, version: str) -> None:
    columns = {
        "boolean": array([True, None], pa.bool_()),
        "int": array([1, None], pa.int32()),
        "long": array([2**40, None], pa.int64()),
        "float": array([1.5, None], pa.float32()),
        "double": array([2.5, None], pa.float64()),
        "decimal": array([Decimal("-1.23"), None], pa.decimal128(9, 2)),
        "date": array([DAY, None], pa.date32()),
        "time": array([TIME, None], pa.time64("us")),
        "timestamp": array([MOMENT, None], pa.timestamp("us")),
        "timestamptz": array([MOMENT, None], pa.timestamp("us", "UTC")),
        "string": array(["ä", None], pa.string()),
        "uuid": array([UUID.bytes, None], pa.uuid()),
        "fixed": array([b"abc", None], pa.binary(3)),
        "binary": array([b"\0", None], pa.binary()),
        "struct": array([{"a": 1}, None], pa.struct({"a": pa.int32()})),
        "list": array([[1, None], None], pa.list_(pa.int64())),
        "map": array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
    if version == "3":
        columns["timestamp_ns"] = array([1_577_934_245_000_000_001, None], pa.timestamp("ns"))
        columns["timestamptz_ns"] = array([1_577_934_245_000_000_001, None], pa.timestamp("ns", "UTC"))
    written = pa.table(columns)
    table = LooseTable(tmp_path / "warehouse", written.schema, format_version=version)
    table.append(written)
    with opened_lake(tmp_path) as lake, mirrored(lake, "iceberg", Path(table.location.removeprefix("file://"))) as db:
        (schema,) = [each for each in db.schemas() if each.name != "skiway"]
        found = db.scan((schema.name, schema.tables[0].name)).read_all()
    assert [str(field.field_type) for field in table.metadata.schema().fields if field.field_type.is_primitive] == [
        {"decimal": "decimal(9, 2)", "fixed": "fixed[3]"}.get(name, name)
        for name in written.column_names
        if name not in ("struct", "list", "map")
    ]
    for name in written.column_names:
        assert same(found[name], written[name].combine_chunks()), name
        if version == "2":  # PyIceberg converts the others to microseconds
            assert same(found[name], table.rows()[name].combine_chunks()), name


@pytest.mark.parametrize("of", ["geography", "unknown_type"])
def test_unknown_iceberg_types_are_rejected(tmp_path: Path, of: str) -> None:
    table = LooseTable(tmp_path, pa.schema({"id": pa.int64(), "c": pa.string()}), format_version="3")
    place = Path(table.location.removeprefix("file://"))
    place.write_text(place.read_text().replace('"string"', f'"{of}"'))
    with open_source("iceberg", str(place)) as source:
        try:
            handle = source.load((), "table")
        except SkiwayError as error:
            assert of in str(error) or "unsupported metadata" in str(error)  # noqa: PT017 - reading it as bytes is correct, too
        else:
            assert of == "geography"
            assert handle.schema.arrow.field("c").type == pa.binary()


# --- Delta ------------------------------------------------------------------------------------------------------------


def test_all_delta_types_are_read_as_delta_rs_reads_them(tmp_path: Path) -> None:
    from deltalake import DeltaTable, write_deltalake

    written = pa.table(
        {
            "byte": array([1, None], pa.int8()),
            "short": array([1, None], pa.int16()),
            "integer": array([1, None], pa.int32()),
            "long": array([2**40, None], pa.int64()),
            "float": array([1.5, None], pa.float32()),
            "double": array([float("nan"), None], pa.float64()),
            "decimal": array([Decimal("-1.23"), None], pa.decimal128(9, 2)),
            "string": array(["ä", None], pa.string()),
            "binary": array([b"\0", None], pa.binary()),
            "boolean": array([True, None], pa.bool_()),
            "date": array([DAY, None], pa.date32()),
            "timestamp": array([MOMENT, None], pa.timestamp("us", "UTC")),
            "timestamp_ntz": array([MOMENT, None], pa.timestamp("us")),
            "array": array([[1, None], None], pa.list_(pa.int64())),
            "struct": array([{"a": 1, "b": [True]}, None], pa.struct({"a": pa.int32(), "b": pa.list_(pa.bool_())})),
            "map": array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
        }
    )
    write_deltalake(tmp_path / "delta" / "t", written)
    with opened_lake(tmp_path) as lake, mirrored(lake, "delta", tmp_path / "delta") as db:
        found = db.scan(("root", "t")).read_all()
    theirs = DeltaTable(tmp_path / "delta" / "t").to_pyarrow_table()
    for name in written.column_names:
        assert same(found[name], written[name].combine_chunks()), name
        assert same(found[name], theirs[name].combine_chunks()), name
    assert pa.types.is_int32(found.schema.field("byte").type)  # the narrowest type in Iceberg schemas


# --- a table that cannot be shown -------------------------------------------------------------------------------------


def test_table_that_cannot_be_shown_does_not_hide_the_others(lake: Lake, tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    pq.write_table(pa.table({"c": [1]}), tmp_path / "good" / "f.parquet")
    catalog = lake.catalog("parquet", connector_ref="files")
    connector = lake.connector(catalog, "parquet", str(tmp_path), {})
    with open_source("parquet", str(tmp_path)) as source:
        namespace = lake.namespace(catalog, ("root",))
        lake.mirror_table(namespace, connector, source.load((), "good"))
        bad = source.load((), "good")
        bad.name = type(bad.name)((), "bad")
        for text in ('"decimal(76, 0)"', '"hypercube"', "7", "null", '{"type": "list"}'):
            bad.schema = type(bad.schema)(None, bad.schema.arrow, bad.schema.json.replace('"long"', text))
            bad.name = type(bad.name)((), f"bad {text[:9].strip()}")
            lake.mirror_table(namespace, connector, bad)
            bad.schema = source.load((), "good").schema
    with lake.client("parquet") as db:
        assert db.scan("root.good").read_all().to_pydict() == {"c": [1]}
        names = [table.name for schema in db.schemas() for table in schema.tables if schema.name == "root"]
        assert len(names) == 6
        for name in set(names) - {"good"}:
            with pytest.raises((Unsupported, PreconditionFailed), match=r"its schema is invalid|cannot be"):
                db.scan(("root", name)).read_all()
    assert now(source.load((), "good")).id == 1


BEFORE_CHRIST, FAR = -735_000, 4_000_000
"""Days since 1970, of which Python has no dates: in 44 BC, and in the year 12921."""


@pytest.mark.parametrize(("of", "unit"), [(pa.date32(), 1), (pa.timestamp("us"), 86_400_000_000)], ids=["date", "time"])
def test_moments_beyond_the_range_of_python_are_stored(lake: Lake, of: pa.DataType, unit: int) -> None:
    storage = pa.int32() if pa.types.is_date(of) else pa.int64()

    def moments(*days: int | None) -> pa.Array:
        return pa.array([None if day is None else day * unit for day in days], storage).view(of)

    def days(db: AirportClient, **options: Any) -> list[int | None]:
        found = db.scan("s.t", **options).read_all().sort_by("id")["at"].combine_chunks().view(storage)
        return [None if day is None else day // unit for day in found.to_pylist()]

    rows = pa.table({"id": [1, 2, 3, 4], "at": moments(BEFORE_CHRIST, 0, FAR, None)})
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.t", rows.schema)
        db.insert("s.t", rows)
        assert days(db) == [BEFORE_CHRIST, 0, FAR, None]
        assert days(db, where=col("id") < 3) == [BEFORE_CHRIST, 0]
        found = db.statistics("s.t", "at")
        assert [bound.cast(storage).as_py() // unit for bound in (found.min, found.max)] == [BEFORE_CHRIST, FAR]
        db.update("s.t", {"id": 5}, where=col("id") == 1)
        assert days(db) == [0, FAR, None, BEFORE_CHRIST]
