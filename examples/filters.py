"""Filter pushdown: the WHERE clause and the columns of a query are pushed down to a DuckDB file.

Start it with `python examples/filters.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'taxi' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT city, fare FROM taxi.trips.rides WHERE fare > 99.9 AND city LIKE 'R%';

The log of the server shows the query on the file, with the WHERE clause. Press Ctrl-C to stop the server.
"""

import logging
import sys
import tempfile
from pathlib import Path

import duckdb

from skiway.airport import Catalog, CatalogBuilder, ScanOptions, filters, serve

log = logging.getLogger("examples.filters")

RIDES = """
    CREATE TABLE rides AS
    SELECT i AS id, ['Lima', 'Oslo', 'Rome'][i % 3 + 1] AS city, i * 7919 % 10000 / 100 AS fare
    FROM range(100000) numbers(i)
"""


def create_file(path: Path) -> None:
    """Create a DuckDB file with 100,000 rows."""
    with duckdb.connect(path) as database:
        database.execute(RIDES)


def catalog(database: duckdb.DuckDBPyConnection) -> Catalog:
    """A catalog with one table that reads from a DuckDB file."""
    taxi = CatalogBuilder("taxi")
    schema = database.execute("FROM rides LIMIT 0").to_arrow_table().schema

    @taxi.schema("trips").table(schema=schema, comment="100,000 rides")
    def rides(scan: ScanOptions):
        columns = ", ".join(f'"{name}"' for name in scan.columns or schema.names)
        where = filters.to_sql(scan.filter)  # None if there is no filter, or nothing of it can be expressed
        query = f"SELECT {columns} FROM rides" + (f" WHERE {where}" if where else "")
        log.info("query: %s", query)
        with database.cursor() as cursor:  # scans run concurrently, so each needs its own cursor
            yield from cursor.execute(query).to_arrow_reader()

    return taxi.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        create_file(Path(folder, "taxi.duckdb"))
        with duckdb.connect(Path(folder, "taxi.duckdb"), read_only=True) as database:
            serve(catalog(database), *sys.argv[1:2])
