"""Filters that reach the data: the WHERE of a query is pushed down into a DuckDB file, and so is its choice of columns.

Start it with `python examples/filters.py [location]`, then type into DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'taxi' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT city, fare FROM taxi.trips.rides WHERE fare > 99.9 AND city LIKE 'R%';

The server's log shows what the file was asked, with that WHERE in it. Ctrl-C ends the server.
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
    with duckdb.connect(path) as database:
        database.execute(RIDES)


def catalog(database: duckdb.DuckDBPyConnection) -> Catalog:
    taxi = CatalogBuilder("taxi")
    schema = database.execute("FROM rides LIMIT 0").to_arrow_table().schema

    @taxi.schema("trips").table(schema=schema, comment="100,000 rides")
    def rides(scan: ScanOptions):
        columns = ", ".join(f'"{name}"' for name in scan.columns or schema.names)
        where = filters.to_sql(scan.filter)
        query = f"SELECT {columns} FROM rides" + (f" WHERE {where}" if where else "")
        log.info("asked the file: %s", query)
        with database.cursor() as cursor:  # many scans may run at once: each has a cursor of its own
            yield from cursor.execute(query).to_arrow_reader()

    return taxi.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        create_file(Path(folder, "taxi.duckdb"))
        with duckdb.connect(Path(folder, "taxi.duckdb"), read_only=True) as database:
            serve(catalog(database), *sys.argv[1:2])
