"""Column statistics, which help DuckDB's optimizer.

Start it with `python examples/column_statistics.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'weather' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    EXPLAIN SELECT * FROM weather.north.readings WHERE celsius > 60;
    SELECT stats(celsius) FROM weather.north.readings LIMIT 1;

DuckDB relies on statistics and skips what they rule out: a wrong bound leads to a wrong result. Press Ctrl-C to stop the server.
"""

import functools
import sys

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import Catalog, CatalogBuilder, ColumnStatistics, serve

READINGS = pa.table(
    {"station": ["Oslo", "Turku", "Oslo", "Tromsø"], "celsius": [-3.5, 1.0, None, -11.25]},
    pa.schema({"station": pa.string(), "celsius": pa.float64()}),
)


@functools.cache  # DuckDB requests them twice per column and query
def statistics(column: str, _duckdb_type: str) -> ColumnStatistics:
    """The exact statistics of a column."""
    values = READINGS[column]
    bounds = pc.min_max(values)
    return ColumnStatistics(
        min=bounds["min"],
        max=bounds["max"],
        has_null=values.null_count > 0,
        has_not_null=values.null_count < len(values),
        distinct_count=pc.count_distinct(values).as_py(),
    )


def catalog() -> Catalog:
    """A catalog with one table that has statistics."""
    weather = CatalogBuilder("weather")

    @weather.schema("north").table(schema=READINGS.schema, statistics=statistics)
    def readings(_scan):
        return READINGS

    return weather.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
