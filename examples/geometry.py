"""Geometry: a table with a geometry column that clients can insert into, and a function over geometries.

Start it with `python examples/geometry.py [location]`, then run in DuckDB (1.5 or newer):

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'atlas' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT name, place FROM atlas.earth.cities;
    SELECT a.name, b.name, atlas.earth.degrees_apart(a.place, b.place) FROM atlas.earth.cities a, atlas.earth.cities b;
    INSERT INTO atlas.earth.cities VALUES ('Rome', 'POINT (12.5 41.9)'::GEOMETRY);

The column only accepts points; the table rejects other geometries. Press Ctrl-C to stop the server.
"""

import sys
import threading

import pyarrow as pa
import shapely

from skiway.airport import Catalog, CatalogBuilder, DmlResult, Insertable, Table, serve
from skiway.airport.geometry import check_geometries, geometries, geometry_array, geometry_field, geometry_type


class Cities(Table, Insertable):
    """Cities with their coordinates."""

    name = "cities"
    schema = pa.schema([pa.field("name", pa.string()), geometry_field("place", kind="Point")])

    def __init__(self) -> None:
        points = geometry_array(["POINT (10.75 59.91)", "POINT (-77.03 -12.05)"], srid=4326)
        self._rows = pa.table([pa.array(["Oslo", "Lima"]), points], schema=self.schema)
        self._lock = threading.Lock()

    def scan(self, options):
        return self._rows

    def insert(self, rows, options):
        new = rows.read_all()
        shapes = geometries(new["place"])  # with or without a coordinate system, depending on the client
        places = geometry_array(shapes, srid=4326)
        check_geometries(places, self.schema.field("place"))
        with self._lock:
            added = pa.table([new["name"].cast(pa.string()), places], schema=self.schema)
            self._rows = pa.concat_tables([self._rows, added])
        return DmlResult(new.num_rows, added)


def catalog() -> Catalog:
    """A catalog with a table and a function."""
    atlas = CatalogBuilder("atlas")
    earth = atlas.schema("earth")
    earth.table(Cities())

    @earth.scalar_function
    def degrees_apart(one: geometry_type(), other: geometry_type()) -> pa.DoubleArray:  # type: ignore[valid-type]
        return pa.array(shapely.distance(geometries(one), geometries(other)), from_pandas=True)

    return atlas.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
