"""Parquet files with geometries, declared by GeoParquet metadata, an Arrow extension type, or Parquet's own type."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb
import geoarrow.pyarrow as ga
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import GeographyType, GeometryType, NestedField

from skiway.errors import Unsupported
from skiway.formats import TableHandle, open_source
from skiway.formats.extension_types import coordinate_system
from skiway.formats.iceberg.types import arrow_columns

POINTS = [struct.pack("<BIdd", 1, 1, 6.86, 45.92), None, struct.pack("<BIdd", 1, 1, 7.75, 46.02)]
SWISS = {"type": "ProjectedCRS", "name": "CH1903+ / LV95", "id": {"authority": "EPSG", "code": 2056}}
NAMELESS = {"type": "ProjectedCRS", "name": "of our own"}


@pytest.fixture(params=["pyarrow knows the type", "pyarrow does not"])
def known(request: pytest.FixtureRequest) -> Iterator[bool]:
    """Whether `geoarrow.wkb` is registered with pyarrow; files must be read the same way in both cases."""
    ga.register_extension_types()
    if request.param != "pyarrow knows the type":
        ga.unregister_extension_types()
    yield request.param == "pyarrow knows the type"
    ga.register_extension_types()


def geoparquet(path: Path, **facts: Any) -> None:
    """A file as GeoPandas writes it."""
    column = {"encoding": "WKB", "geometry_types": ["Point"], **facts}
    geo = {"version": "1.1.0", "primary_column": "place", "columns": {"place": column}}
    table = pa.table({"id": [1, 2, 3], "place": pa.array(POINTS, pa.binary())})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"geo": json.dumps(geo)}), path)


def arrow_file(path: Path, crs: str | None, *, wide: bool = False) -> None:
    """A file as pyarrow writes a column of the extension type."""
    kind = ga.large_wkb() if wide else ga.wkb()
    place = pa.ExtensionArray.from_storage(kind.with_crs(crs), pa.array(POINTS, kind.storage_type))
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": [1, 2, 3], "place": place}), path)


def opened(folder: Path) -> TableHandle:
    with open_source("parquet", str(folder)) as source:
        return source.load((), "places")


def type_in_json(table: TableHandle) -> str:
    fields: list[Mapping[str, str]] = json.loads(table.schema.json)["fields"]
    return next(field["type"] for field in fields if field["name"] == "place")


def read(table: TableHandle) -> list[bytes | None]:
    now = table.current()
    assert now is not None
    rows = table.read(now).read_all()
    assert rows.schema.field("place").type == pa.binary()
    found: list[bytes | None] = rows["place"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "geometry"),
        ({"crs": SWISS}, "geometry(EPSG:2056)"),
        ({"crs": None}, "geometry(srid:0)"),
        ({"crs": NAMELESS}, "geometry(srid:0)"),
        ({"crs": "it's"}, "geometry(srid:0)"),
        ({"edges": "spherical"}, "binary"),
        ({"encoding": "point"}, "binary"),
    ],
)
def test_geoparquet_metadata_declares_geometries(
    tmp_path: Path, known: bool, facts: dict[str, Any], expected: str
) -> None:
    geoparquet(tmp_path / "places" / "a.parquet", **facts)
    table = opened(tmp_path)
    assert type_in_json(table) == expected
    assert read(table) == POINTS


@pytest.mark.parametrize(
    ("crs", "expected"), [(None, "geometry"), ("EPSG:4326", "geometry"), ("EPSG:2056", "geometry(EPSG:2056)")]
)
def test_arrow_extension_type_declares_geometries(tmp_path: Path, crs: str | None, expected: str) -> None:
    arrow_file(tmp_path / "places" / "a.parquet", crs)
    for known in (True, False):
        (ga.register_extension_types if known else ga.unregister_extension_types)()
        try:
            table = opened(tmp_path)
            assert type_in_json(table) == expected
            assert read(table) == POINTS
        finally:
            ga.register_extension_types()


def test_parquet_logical_type_declares_geometries(tmp_path: Path, known: bool) -> None:
    ga.register_extension_types()
    place = pa.ExtensionArray.from_storage(ga.wkb(), pa.array(POINTS, pa.binary()))
    (tmp_path / "places").mkdir()
    with pq.ParquetWriter(
        tmp_path / "places" / "a.parquet", pa.schema({"place": ga.wkb()}), store_schema=False
    ) as file:
        file.write_table(pa.table({"place": place}))
    if not known:
        ga.unregister_extension_types()
    table = opened(tmp_path)
    assert type_in_json(table) == "geometry"
    assert read(table) == POINTS


def test_geometries_written_by_duckdb_are_recognized(tmp_path: Path) -> None:
    (tmp_path / "places").mkdir()
    file = tmp_path / "places" / "a.parquet"
    duckdb.connect().execute(f"COPY (SELECT 1 AS id, 'POINT(6 45)'::GEOMETRY AS place) TO '{file}'")
    table = opened(tmp_path)
    assert type_in_json(table) == "geometry"
    assert read(table) == [struct.pack("<BIdd", 1, 1, 6, 45)]


def test_files_with_large_offsets_are_read_together_with_others(tmp_path: Path, known: bool) -> None:
    ga.register_extension_types()
    arrow_file(tmp_path / "places" / "a.parquet", "EPSG:2056", wide=True)
    geoparquet(tmp_path / "places" / "b.parquet", crs=SWISS)
    if not known:
        ga.unregister_extension_types()
    table = opened(tmp_path)
    assert type_in_json(table) == "geometry(EPSG:2056)"
    assert read(table) == POINTS + POINTS


def test_rows_carry_the_geometry_type(tmp_path: Path) -> None:
    geoparquet(tmp_path / "places" / "a.parquet", crs=SWISS)
    table = opened(tmp_path)
    now = table.current()
    assert now is not None
    field = table.read(now).schema.field("place")
    assert coordinate_system(field) == "EPSG:2056"
    assert coordinate_system(table.schema.arrow.field("id")) is None


def test_nulls_of_geometries_are_counted(tmp_path: Path, known: bool) -> None:
    geoparquet(tmp_path / "places" / "a.parquet")
    table = opened(tmp_path)
    now = table.current()
    assert now is not None
    number = table.schema.arrow.field("place").metadata[b"PARQUET:field_id"].decode()
    stats = table.files(now)["stats"][0][number].as_py()
    assert (stats["value_count"], stats["null_count"]) == (3, 1)


def test_column_that_is_binary_in_one_file_is_binary(tmp_path: Path) -> None:
    geoparquet(tmp_path / "places" / "a.parquet")
    pq.write_table(pa.table({"id": [4], "place": [b"anything"]}), tmp_path / "places" / "b.parquet")
    table = opened(tmp_path)
    assert type_in_json(table) == "binary"
    assert read(table) == [*POINTS, b"anything"]


def test_column_missing_in_one_file_remains_a_geometry(tmp_path: Path) -> None:
    geoparquet(tmp_path / "places" / "a.parquet")
    pq.write_table(pa.table({"id": [4]}), tmp_path / "places" / "b.parquet")
    table = opened(tmp_path)
    assert type_in_json(table) == "geometry"
    assert read(table) == [*POINTS, None]


def test_files_in_different_coordinate_systems_are_rejected(tmp_path: Path) -> None:
    geoparquet(tmp_path / "places" / "a.parquet")
    geoparquet(tmp_path / "places" / "b.parquet", crs=SWISS)
    with pytest.raises(Unsupported, match=r"'place' are in EPSG:2056 in file .*b\.parquet.*, but in OGC:CRS84"):
        opened(tmp_path)


@pytest.mark.parametrize("nonsense", ["no json", "[]", '{"columns": 3}', '{"columns": {"place": 1, "other": {}}}'])
def test_invalid_geometry_metadata_is_ignored(tmp_path: Path, nonsense: str) -> None:
    (tmp_path / "places").mkdir()
    table = pa.table({"id": [1, 2, 3], "place": pa.array(POINTS, pa.binary())})
    pq.write_table(table.replace_schema_metadata({"geo": nonsense}), tmp_path / "places" / "a.parquet")
    assert type_in_json(opened(tmp_path)) == "binary"


def test_geometries_of_iceberg_do_not_need_geoarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing it would change how the process reads the columns of results that are already planned."""
    monkeypatch.setitem(sys.modules, "geoarrow.pyarrow", object())
    kinds = GeometryType("EPSG:21781"), GeographyType("EPSG:21782")
    fields = [NestedField(number, f"c{number}", kind, required=False) for number, kind in enumerate(kinds, 1)]
    columns = arrow_columns(Schema(*fields))
    assert columns.types == [pa.binary(), pa.binary()]
    assert coordinate_system(columns.field("c1")) == "EPSG:21781"
