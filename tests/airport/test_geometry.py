"""Geometry columns: conversion from and to shapely, WKB and WKT; in scans, writes and functions."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
import shapely

from airport.lockstep import Exchange
from airport.raw import Raw
from skiway.airport import CatalogBuilder, Server
from skiway.airport import geometry as geo
from skiway.airport.wire.duckdb_sql import duckdb_type, extension_of
from skiway.errors import InvalidArgument

SHAPES = [
    shapely.Point(1, 2),
    shapely.LineString([(0, 0), (1, 1)]),
    shapely.Polygon([(0, 0), (1, 0), (1, 1)]),
    shapely.MultiPoint([(0, 0), (1, 1)]),
    shapely.MultiLineString([[(0, 0), (1, 1)]]),
    shapely.MultiPolygon([shapely.Polygon([(0, 0), (1, 0), (1, 1)])]),
    shapely.GeometryCollection([shapely.Point(0, 0)]),
    shapely.Point(1, 2, 3),
]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: s.wkt[:20])
def test_encode_and_decode(shape) -> None:
    assert geo.decode(geo.encode(shape)) == shape
    assert geo.decode(geo.encode(shape.wkt)) == shape
    assert geo.type_name(shape) == shape.geom_type
    geo.validate(shape)


def test_type_and_field() -> None:
    field = geo.geometry_field("location", srid=4326, kind="Point", nullable=False)
    assert field.type.extension_name == "geoarrow.wkb"
    assert field.type.storage_type == pa.binary()
    assert extension_of(field) == ("geoarrow.wkb", '{"crs": "EPSG:4326"}')
    assert geo.crs_of(field) == "EPSG:4326"
    assert geo.crs_of(geo.geometry_field("g", srid=None)) is None
    assert duckdb_type(field) == "GEOMETRY"
    assert not field.nullable
    with pytest.raises(InvalidArgument, match="Circle"):
        geo.geometry_field("g", kind="Circle")


@pytest.mark.parametrize("form", [lambda s: s, lambda s: s.wkb, lambda s: s.wkt])
def test_arrays_from_any_form_and_back(form) -> None:
    array = geo.geometry_array([form(SHAPES[0]), None, form(SHAPES[2])])
    assert list(geo.geometries(array)) == [SHAPES[0], None, SHAPES[2]]
    assert array.null_count == 1


def test_a_validity_mask_makes_nulls() -> None:
    array = geo.geometry_array(SHAPES[:2], valid=[True, False])
    assert list(geo.geometries(array)) == [SHAPES[0], None]
    with pytest.raises(InvalidArgument, match="mask of length 1"):
        geo.geometry_array(SHAPES[:2], valid=[True])


UNCLOSED = "POLYGON((0 0, 1 0, 1 1, 2 2))"


def test_unclosed_ring_is_a_clear_error() -> None:
    with pytest.raises(InvalidArgument, match="polygon ring is not closed"):
        geo.validate(UNCLOSED)
    with pytest.raises(InvalidArgument, match="polygon ring is not closed"):
        geo.geometry_array([UNCLOSED])


@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        ("POINT (1 2)", "Polygon", "expected a Polygon, found a Point"),
        (shapely.Polygon([(0, 0), (1, 1), (1, 0), (0, 1)]), "", "Self-intersection"),
        (shapely.Point(float("inf"), 0), "", "not a finite number"),
        ("POLYGON((0 0, 1 1, 0 0))", "", "Too few points"),
        ("NOT WKT", "", "NOT"),
        (b"\x01\x02", "", "EOF parsing WKB"),
        (42, "", "int is not a geometry"),
    ],
)
def test_errors_explain_the_problem(value, kind: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        geo.validate(value, kind)


def test_column_must_match_the_kind_of_its_field() -> None:
    field = geo.geometry_field("g", kind="Polygon")
    geo.check_geometries(geo.geometry_array([SHAPES[2], None]), field)
    geo.check_geometries(geo.geometry_array(SHAPES), geo.geometry_field("g"))
    with pytest.raises(InvalidArgument, match="only accepts Polygon geometries; row 1 is a Point"):
        geo.check_geometries(geo.geometry_array([SHAPES[2], SHAPES[0]]), field)
    with pytest.raises(InvalidArgument, match="row 0 is a MultiPoint"):
        geo.check_geometries(geo.geometry_array([SHAPES[3]]), field)


def test_column_that_is_not_wkb_is_rejected() -> None:
    with pytest.raises(InvalidArgument, match="does not contain WKB"):
        geo.geometries(pa.array([b"xx"]))


def test_duckdb_reads_our_column_as_geometry() -> None:
    table = pa.table([geo.geometry_array([SHAPES[0], None], srid=4326)], schema=pa.schema([geo.geometry_field("g")]))
    found = duckdb.from_arrow(table).aggregate("any_value(typeof(g))").fetchone()
    assert found is not None
    assert found[0].startswith("GEOMETRY")


def test_geometries_in_scans_and_functions() -> None:
    schema = pa.schema([pa.field("id", pa.int64()), geo.geometry_field("g", kind="Point")])
    points = pa.table([pa.array([1, 2]), geo.geometry_array([SHAPES[0], None], srid=4326)], schema=schema)
    builder = CatalogBuilder("demo")
    places = builder.schema("geo")
    places.table(schema=schema, name="points")(lambda scan: points)

    @places.scalar_function(returns=pa.float64())
    def x_of(point: geo.geometry_type(4326)):  # type: ignore[valid-type]
        return pa.array([None if p is None else p.x for p in geo.geometries(point)], pa.float64())

    with Server(builder.build(), port=0) as server, Raw(server.location) as raw:
        scanned = raw.scan("demo", "geo", "points", columns=[0, 1])
        assert list(geo.geometries(scanned["g"])) == [SHAPES[0], None]
        assert extension_of(scanned.schema.field("g"))[0] == "geoarrow.wkb"
        nulled = raw.scan("demo", "geo", "points", columns=[0])
        assert nulled["g"].null_count == 2
        path = ("demo", "geo", "x_of", "scalar_function", str(geo.geometry_type(4326)))
        exchange = Exchange(raw, path, pa.schema([geo.geometry_field("point")]), "scalar_function", returning=True)
        batch = pa.record_batch([points["g"].combine_chunks()], schema=pa.schema([geo.geometry_field("point")]))
        assert exchange.ask(batch).to_pydict() == {"result": [1.0, None]}
        exchange.end()
