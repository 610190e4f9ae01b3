"""The client that created a table knows its columns in the types it asked for: DuckDB does not cast the rows of CREATE
TABLE … AS. Everybody else knows the types that Iceberg stores.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lake.lakes import Lake, opened_lake
from scope import sample
from skiway.client import AirportClient, col
from skiway.errors import InvalidArgument, PreconditionFailed, Unsupported

HUGE = pa.opaque(pa.binary(16), "hugeint", "DuckDB")
POINT = struct.pack("<BIdd", 1, 1, 1.0, 2.0)


def numbers(values: list[int | None], of: pa.DataType) -> pa.Array:
    """Dates and times that Python cannot represent."""
    whole = pa.int32() if of.bit_width == 32 else pa.int64()
    return pa.array(values, whole).view(of)


def huge(values: list[int | None]) -> pa.Array:
    packed = [None if value is None else value.to_bytes(16, "little", signed=True) for value in values]
    return pa.ExtensionArray.from_storage(HUGE, pa.array(packed, pa.binary(16)))


WIDENED: dict[str, tuple[pa.Array, pa.DataType]] = {
    "TINYINT": (pa.array([1, None, -128], pa.int8()), pa.int32()),
    "SMALLINT": (pa.array([1, None, -32768], pa.int16()), pa.int32()),
    "UTINYINT": (pa.array([1, None, 255], pa.uint8()), pa.int32()),
    "USMALLINT": (pa.array([1, None, 65535], pa.uint16()), pa.int32()),
    "UINTEGER": (pa.array([1, None, 2**32 - 1], pa.uint32()), pa.int64()),
    "UBIGINT": (pa.array([1, None, 2**64 - 1], pa.uint64()), pa.decimal128(20, 0)),
    "INTEGER[2]": (pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)), pa.list_(pa.int32())),
    "TIMESTAMP_S": (numbers([1, None, 2_000_000_000], pa.timestamp("s")), pa.timestamp("us")),
    "TIMESTAMP_MS": (numbers([1, None, 2_000_000_000_001], pa.timestamp("ms")), pa.timestamp("us")),
    "TIME_NS": (numbers([1000, None, 86_399_999_999_000], pa.time64("ns")), pa.time64("us")),
    "HUGEINT": (huge([1, None, -(10**38) + 1]), pa.decimal128(38, 0)),
    "list": (pa.array([[1, None], None, []], pa.list_(pa.int8())), pa.list_(pa.int32())),
    "struct": (
        pa.array([{"a": 1, "b": [1]}, None, {"a": None, "b": None}], pa.struct({"a": pa.uint8(), "b": pa.list_(pa.uint16(), 1)})),
        pa.struct({"a": pa.int32(), "b": pa.list_(pa.int32())}),
    ),
    "map": (
        pa.array([[(1, 2**64 - 1)], None, []], pa.map_(pa.int16(), pa.uint64())),
        pa.map_(pa.int32(), pa.decimal128(20, 0)),
    ),
}  # fmt: skip
KEPT: dict[str, pa.Array] = {
    "TIMESTAMP_NS": numbers([1, None, -1_000_000_007], pa.timestamp("ns")),
    "the first and last TIMESTAMP_NS": numbers([2**63 - 2, None, -(2**63) + 2], pa.timestamp("ns")),
    "TIMESTAMP_NS[]": pa.array([[1], None, [2]], pa.list_(pa.timestamp("ns"))),
    "DATE beyond Python": numbers([2**31 - 2, None, -(2**31) + 2], pa.date32()),
    "TIMESTAMP beyond Python": numbers([2**63 - 2, None, -(2**63) + 2], pa.timestamp("us")),
    "TIMESTAMPTZ beyond Python": numbers([2**63 - 2, None, -(2**63) + 2], pa.timestamp("us", "UTC")),
    "DATE in a struct": pa.StructArray.from_arrays(
        [numbers([2**31 - 2, None, -(2**31) + 2], pa.date32())], names=["d"], mask=pa.array([False, True, False])
    ),
}  # fmt: skip


def stored_numbers(column: pa.ChunkedArray) -> list[Any]:
    """Values for comparison, without Python's dates."""
    array = column.combine_chunks()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    if pa.types.is_struct(array.type) and pa.types.is_date32(array.type.field(0).type):
        array = array.field(0).view(pa.int32())
    return array.to_pylist()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    with opened_lake(tmp_path_factory.mktemp("lake")) as lake:
        yield lake


@pytest.fixture
def db(lake: Lake) -> Iterator[AirportClient]:
    with lake.client() as db:
        db.create_schema("s", if_not_exists=True)
        yield db


@pytest.mark.parametrize("name", sample([*WIDENED, *KEPT], every=2))
def test_creator_writes_and_reads_its_own_types_and_others_the_stored_ones(
    lake: Lake, db: AirportClient, name: str
) -> None:
    values, stored = WIDENED.get(name) or (KEPT[name], KEPT[name].type)
    table = ("s", name)
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "c": values})
    db.create_table(table, rows.schema)
    assert db.table(table).schema.field("c").type == values.type
    written = pa.table({"c": values})["c"]
    returned = db.insert(table, rows, returning=True).rows
    assert returned is not None
    assert returned["c"].type == values.type
    assert stored_numbers(db.scan(table).read_all()["c"]) == stored_numbers(written)
    assert db.scan(table, where=col("id") == 3).read_all()["c"].type == values.type
    assert db.scan(table, where=col("c").is_null()).read_all()["id"].to_pylist() == [2]
    db.statistics(table, "c")
    snapshot = db.scan("skiway.snapshots", where=col("table_name") == name).read_all()["snapshot_id"][0].as_py()
    # UPDATE writes the third value into the first row, and DELETE returns it.
    first = db.scan(table, columns=["c", "rowid"], where=col("id") == 1).read_all()
    db.update(table, pa.table({"c": values.slice(2, 1), "rowid": first["rowid"].combine_chunks()}))
    deleted = db.delete(table, where=col("id") == 1, returning=True).rows
    assert deleted is not None
    assert deleted["c"].type == values.type
    assert stored_numbers(deleted["c"]) == stored_numbers(written)[2:]
    before = db.scan(table, at_version=snapshot).read_all()
    assert stored_numbers(before["c"]) == stored_numbers(written)
    with lake.client() as other:
        assert other.table(table).schema.field("c").type == stored
        found = other.scan(table).read_all()["c"]
        assert found.type == stored
        as_stored = stored_numbers(written)
        if name not in ("HUGEINT", "TIMESTAMP_S", "TIMESTAMP_MS", "TIME_NS"):
            assert stored_numbers(found) == as_stored[1:]
    db.drop_table(table)


def test_units_are_converted_and_not_reinterpreted(lake: Lake, db: AirportClient) -> None:
    rows = pa.table({"s": numbers([1], pa.timestamp("s")), "t": numbers([2000], pa.time64("ns")), "h": huge([-5])})
    db.create_table("s.units", rows.schema)
    db.insert("s.units", rows)
    with lake.client() as other:
        found = other.scan("s.units").read_all()
    assert found["s"].cast(pa.int64()).to_pylist() == [1_000_000]
    assert found["t"].cast(pa.int64()).to_pylist() == [2]
    assert found["h"].to_pylist() == [Decimal(-5)]


def test_statistics_are_in_the_type_that_the_client_knows(db: AirportClient) -> None:
    schema = pa.schema({"u": pa.uint64(), "s": pa.timestamp("s"), "j": pa.json_()})
    db.create_table("s.stats", schema)
    moments = numbers([1, 5], pa.timestamp("s"))
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array(["1", "2"]))
    db.insert("s.stats", pa.table({"u": pa.array([7, 2**64 - 1], pa.uint64()), "s": moments, "j": json}))
    assert (db.statistics("s.stats", "u").min, db.statistics("s.stats", "u").max) == (7, 2**64 - 1)
    assert db.statistics("s.stats", "s").min is not None
    db.statistics("s.stats", "j")


def test_value_of_others_that_the_creators_type_cannot_represent_asks_to_attach_again(
    lake: Lake, db: AirportClient
) -> None:
    db.create_table("s.narrow", pa.schema({"id": pa.int32(), "c": pa.int8()}))
    with lake.client() as other:
        other.insert("s.narrow", pa.table({"id": [1, 2], "c": [1, 300]}))
    assert db.scan("s.narrow", where=col("id") == 1).read_all()["c"].to_pylist() == [1]
    with pytest.raises(PreconditionFailed, match=r"column 'c' has values that .*: DETACH and ATTACH again"):
        db.scan("s.narrow").read_all()
    low = db.statistics("s.narrow", "c")
    assert (low.min, low.max) == (None, None)
    db.reload()
    assert db.scan("s.narrow").read_all()["c"].to_pylist() == [1, 300]


# --- values that Iceberg does not have --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (numbers([2**31 - 1], pa.date32()), "column 'c' has an infinite date"),
        (numbers([-(2**31) + 1], pa.date32()), "column 'c' has an infinite date"),
        (numbers([2**63 - 1], pa.timestamp("us")), "column 'c' has an infinite timestamp"),
        (numbers([-(2**63) + 1], pa.timestamp("us", "UTC")), "column 'c' has an infinite timestamp"),
        (numbers([2**63 - 1], pa.timestamp("s")), "column 'c' has an infinite timestamp"),
        (numbers([2**63 - 1], pa.timestamp("ns")), "column 'c' has an infinite timestamp"),
        (pa.ListArray.from_arrays([0, 1], numbers([2**31 - 1], pa.date32())), "column 'c' has an infinite date"),
        (
            pa.StructArray.from_arrays([numbers([2**63 - 1], pa.timestamp("ms"))], names=["x"]),
            "column 'c.x' has an infinite timestamp",
        ),
        (
            pa.MapArray.from_arrays([0, 1], pa.array(["k"]), numbers([2**31 - 1], pa.date32())),
            "column 'c' has an infinite date",
        ),
        (
            numbers([86_400_000_000], pa.time64("us")),
            "column 'c' has a time that is not within a day, such as 24:00:00",
        ),
        (numbers([1_000_001], pa.time64("ns")), "column 'c' has type TIME, and .* would lose data"),
        (huge([10**38]), "column 'c' .* more than 38 digits"),
    ],
    ids=str,
)
def test_value_that_iceberg_does_not_have_is_rejected_by_column(
    db: AirportClient, values: pa.Array, message: str
) -> None:
    db.drop_table("s.odd", if_exists=True)
    db.create_table("s.odd", pa.schema({"c": values.type}))
    with pytest.raises(InvalidArgument, match=message):
        db.insert("s.odd", pa.table({"c": values}))
    assert db.count("s.odd") == 0


def test_bool8_is_a_boolean(lake: Lake, db: AirportClient) -> None:
    values = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, None, 0], pa.int8()))
    db.create_table("s.flags", pa.schema({"c": pa.bool8(), "l": pa.list_(pa.bool8())}))
    lists = pa.ListArray.from_arrays([0, 1, 2, 3], values)
    db.insert("s.flags", pa.table({"c": values, "l": lists}))
    with lake.client() as other:
        found = other.scan("s.flags").read_all()
    assert found.schema.field("c").type == pa.bool_()
    assert found.to_pydict() == {"c": [True, None, False], "l": [[True], [None], [False]]}


# --- format version 3 -------------------------------------------------------------------------------------------------


def test_nanoseconds_and_geometries_make_a_table_of_version_3(lake: Lake, db: AirportClient) -> None:
    geometry = pa.field("g", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})
    nested = pa.field("n", pa.list_(pa.struct({"t": pa.timestamp("ns")})))
    for number, field in enumerate((pa.field("t", pa.timestamp("ns", "UTC")), nested, geometry)):
        db.create_table(f"s.third_{number}", pa.schema([pa.field("id", pa.int64()), field]))
    db.create_table("s.second", pa.schema({"id": pa.int64(), "t": pa.timestamp("us")}))
    with lake.rest() as rest:
        versions = [rest.load_table(f"s.third_{number}").metadata.format_version for number in range(3)]
        assert versions == [3, 3, 3]
        assert rest.load_table("s.second").metadata.format_version == 2


def test_bounds_of_nanoseconds_are_exact(db: AirportClient) -> None:
    db.create_table("s.nanos", pa.schema({"t": pa.timestamp("ns")}))
    db.insert("s.nanos", pa.table({"t": numbers([1_000_000_007, 1_999_999_999], pa.timestamp("ns"))}))
    after = pa.scalar(1_999_999_998, pa.timestamp("ns"))
    assert db.count("s.nanos", where=col("t") > after) == 1


def test_column_that_needs_version_3_cannot_be_added_to_an_older_table(db: AirportClient) -> None:
    db.create_table("s.old", pa.schema({"id": pa.int64()}))
    geometry = pa.field("g", pa.binary(), metadata={"ARROW:extension:name": "geoarrow.wkb"})
    for field in (pa.field("t", pa.timestamp("ns")), geometry):
        with pytest.raises(Unsupported, match=rf"column '{field.name}' .* from format version 3 on"):
            db.add_column("s.old", field)


def stored_type(db: AirportClient, table: str, column: str) -> str:
    columns = db.scan("skiway.columns", where=(col("table_name") == table) & (col("column_name") == column)).read_all()
    return str(columns["type"][0])


def test_geometry_column_can_be_added_to_a_table_of_version_3(lake: Lake, db: AirportClient) -> None:
    metadata = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": '{"crs": "EPSG:2056"}'}
    place = pa.field("place", pa.binary(), metadata=metadata)
    db.create_table("s.later", pa.schema({"t": pa.timestamp("ns")}))
    db.add_column("s.later", place)
    rows = pa.table(
        [pa.array([7], pa.timestamp("ns")), pa.array([POINT])], schema=pa.schema([("t", pa.timestamp("ns")), place])
    )
    db.insert("s.later", rows)
    with lake.client() as other:
        assert other.scan("s.later").read_all()["place"].to_pylist() == [POINT]
        assert stored_type(other, "later", "place") == "geometry(EPSG:2056)"


def test_geometry_is_a_real_geometry_column(lake: Lake, db: AirportClient) -> None:
    metadata = {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": '{"crs": "EPSG:2056"}'}
    place = pa.field("place", pa.binary(), metadata=metadata)
    rows = pa.table([pa.array([1, 2]), pa.array([POINT, None])], schema=pa.schema([pa.field("id", pa.int64()), place]))
    db.create_table("s.places", rows.schema)
    db.insert("s.places", rows)
    db.update("s.places", {"id": 3}, where=col("id") == 2)
    with lake.client() as other:
        assert other.scan("s.places").read_all()["place"].to_pylist() == [POINT, None]
        assert stored_type(other, "places", "place") == "geometry(EPSG:2056)"
    files = db.scan("skiway.files", where=col("table_name") == "places").read_all()["path"].to_pylist()
    from pyarrow.parquet import ParquetFile

    assert ParquetFile(files[0].removeprefix("file://")).schema.column(1).logical_type.type == "GEOMETRY"
    nested = pa.schema([pa.field("s", pa.struct([place]))])
    with pytest.raises(Unsupported, match=r"column 's.place' has type .*geoarrow\.wkb"):
        db.create_table("s.nested_places", nested)
