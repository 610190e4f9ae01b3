"""A server with several catalogs on one port. ATTACH selects a catalog by name.

Start it with `python examples/multi_catalog.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'north' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    ATTACH 'south' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM north.towns.people UNION ALL SELECT * FROM south.towns.people;

    ATTACH '' AS world (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM world.towns.people;

The catalog named '' is the default catalog. Press Ctrl-C to stop the server.
"""

import sys

import pyarrow as pa

from skiway.airport import Catalog, CatalogBuilder, serve

SCHEMA = pa.schema({"town": pa.string(), "people": pa.int64()})
NORTH = pa.table({"town": ["Oslo", "Turku"], "people": [717_710, 206_035]}, SCHEMA)
SOUTH = pa.table({"town": ["Lima"], "people": [10_092_000]}, SCHEMA)


def catalog(name: str, rows: pa.Table) -> Catalog:
    """A catalog with one table."""
    builder = CatalogBuilder(name)

    @builder.schema("towns").table(schema=SCHEMA)
    def people(_scan):
        return rows

    return builder.build()


def catalogs() -> list[Catalog]:
    """Two named catalogs, and a default catalog with the rows of both."""
    return [catalog("north", NORTH), catalog("south", SOUTH), catalog("", pa.concat_tables([NORTH, SOUTH]))]


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalogs(), *sys.argv[1:2])
