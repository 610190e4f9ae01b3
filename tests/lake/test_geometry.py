"""Geometries of Parquet sources are announced so that DuckDB shows them as GEOMETRY with their coordinate system."""

from __future__ import annotations

import struct
from pathlib import Path

import duckdb
import geoarrow.pyarrow as ga
import pyarrow as pa
import pytest

import scope
from flightsql.adbc import connected
from formats.test_geometry import POINTS, SWISS, arrow_file, geoparquet, known
from lake.lakes import Lake
from skiway.airport.wire.duckdb_sql import duckdb_type, extension_of
from skiway.client import col

__all__ = ["known"]


@pytest.mark.parametrize(("crs", "metadata"), [({}, '{"crs": "OGC:CRS84"}'), ({"crs": SWISS}, '{"crs": "EPSG:2056"}')])
def test_column_is_sent_as_geoarrow_with_its_coordinate_system(
    lake: Lake, tmp_path: Path, crs: dict[str, object], metadata: str
) -> None:
    geoparquet(tmp_path / "source" / "places" / "a.parquet", **crs)
    lake.mirror("parquet", str(tmp_path / "source"))
    with lake.client("parquet") as db:
        announced = db.table("root.places").schema.field("place")
        assert extension_of(announced) == ("geoarrow.wkb", metadata)
        assert duckdb_type(announced) == "GEOMETRY"
        rows = db.scan("root.places").read_all()
        listed = db.scan("skiway.columns", where=col("column_name") == "place").read_all()["type"].to_pylist()
    assert extension_of(rows.schema.field("place")) == ("geoarrow.wkb", metadata)
    assert rows.num_rows == 3
    assert listed == ["geometry(EPSG:2056)" if crs else "geometry"]


def test_duckdb_shows_geometries(lake: Lake, tmp_path: Path) -> None:
    geoparquet(tmp_path / "source" / "places" / "a.parquet")
    lake.mirror("parquet", str(tmp_path / "source"))
    with lake.client("parquet") as db:
        places = db.scan("root.places", columns=["place"], where=col("id") == 3).read_all()
    found = duckdb.connect().from_arrow(places).query("places", "SELECT typeof(place), ST_AsText(place) FROM places")
    assert found.fetchall() == [("GEOMETRY('OGC:CRS84')", "POINT (7.75 46.02)")]


def test_geometry_bytes_do_not_depend_on_the_registered_extension_type(lake: Lake, tmp_path: Path) -> None:
    geoparquet(tmp_path / "source" / "places" / "a.parquet")
    lake.mirror("parquet", str(tmp_path / "source"))
    try:
        for switch in (ga.unregister_extension_types, ga.register_extension_types):
            switch()
            with lake.client("parquet") as db:
                column = db.scan("root.places").read_all()["place"].combine_chunks()
            bytes_ = column.storage if isinstance(column, pa.ExtensionArray) else column
            assert bytes_.to_pylist() == POINTS
    finally:
        ga.register_extension_types()


def test_geometries_can_be_copied_into_a_managed_table(lake: Lake, tmp_path: Path) -> None:
    """They become a geometry column of format version 3."""
    geoparquet(tmp_path / "source" / "places" / "a.parquet")
    lake.mirror("parquet", str(tmp_path / "source"))
    with lake.client("parquet") as source, lake.client() as db:
        rows = source.scan("root.places").read_all()
        db.create_schema("copies")
        db.create_table("copies.places", rows.schema)
        assert db.insert("copies.places", rows).count == 3
        copied = db.scan("copies.places", where=col("id") == 1).read_all()
    assert copied["place"].to_pylist() == [struct.pack("<BIdd", 1, 1, 6.86, 45.92)]


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize("crs", ["OGC:CRS84", None, "EPSG:2056"] if scope.ALL else ["OGC:CRS84"])
@pytest.mark.parametrize("kind", ["managed", "geoparquet", "arrow"])
def test_geometries_are_queried(lake: Lake, tmp_path: Path, kind: str, crs: str | None) -> None:
    """Queries are planned with the columns that they return, whether DuckDB or the server reads the files."""
    catalog, table = ("parquet", "root.places") if kind != "managed" else ("managed", "s.places")
    if kind == "managed":
        create_places(lake, crs)
    else:
        file = tmp_path / "source" / "places" / "a.parquet"
        if kind == "arrow":
            arrow_file(file, crs)
        else:
            geoparquet(file, **({} if crs == "OGC:CRS84" else {"crs": SWISS if crs else None}))
        lake.mirror("parquet", str(tmp_path / "source"))
    shapes = [(1, "POINT (6.86 45.92)"), (2, None), (3, "POINT (7.75 46.02)")]
    as_text = f"SELECT id, ST_AsText(place) FROM {table} ORDER BY id"
    with connected(lake.location, "writer", catalog=catalog) as connection, connection.cursor() as cursor:
        for sql in (f"SELECT * FROM {table} ORDER BY id", f"SELECT id, place FROM {table} WHERE id < 9 ORDER BY id"):
            for prepare in (lambda _: None, cursor.adbc_prepare):
                prepare(sql)
                cursor.execute(sql)
                assert stored(cursor.fetch_arrow_table()) == POINTS
        cursor.execute(as_text)
        assert cursor.fetchall() == shapes
    with lake.client(catalog) as db:
        rows = db.call("skiway.query", f"SELECT * FROM {table} ORDER BY id").read_all()
        assert stored(rows) == POINTS
        if kind == "managed":
            db.call("skiway.create_view", "s.seen", "SELECT * FROM s.places ORDER BY id").read_all()
            db.reload()
            assert stored(db.scan("s.seen").read_all()) == POINTS


def create_places(lake: Lake, crs: str | None) -> None:
    metadata = {
        "ARROW:extension:name": "geoarrow.wkb",
        "ARROW:extension:metadata": "{}" if crs is None else f'{{"crs": "{crs}"}}',
    }
    schema = pa.schema([("id", pa.int64()), pa.field("place", pa.binary(), metadata=metadata)])
    with lake.client() as db:
        db.create_schema("s")
        db.create_table("s.places", schema)
        db.insert("s.places", pa.table({"id": [1, 2, 3], "place": POINTS}, schema=schema))


def stored(rows: pa.Table) -> list[bytes | None]:
    column = rows["place"].combine_chunks()
    values: list[bytes | None] = (column.storage if isinstance(column, pa.ExtensionArray) else column).to_pylist()
    return values
