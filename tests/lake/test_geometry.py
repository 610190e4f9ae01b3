"""Geometries of Parquet sources are announced so that DuckDB shows them as GEOMETRY with their coordinate system."""

from __future__ import annotations

import struct
from pathlib import Path

import duckdb
import geoarrow.pyarrow as ga
import pyarrow as pa
import pytest

from formats.test_geometry import POINTS, SWISS, geoparquet
from lake.lakes import Lake
from skiway.airport.wire.duckdb_sql import duckdb_type, extension_of
from skiway.client import col


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
    assert listed == ["geometry('EPSG:2056')" if crs else "geometry"]


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
