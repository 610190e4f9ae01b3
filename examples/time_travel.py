"""Time travel: read a table at a version or at a timestamp, with the columns it had then.

Start it with `python examples/time_travel.py [location]`, then run in DuckDB:

    INSTALL airport FROM community; LOAD airport;
    ATTACH 'shop' (TYPE airport, LOCATION 'grpc://127.0.0.1:50051');
    SELECT * FROM shop.menu.prices;
    SELECT * FROM shop.menu.prices AT (VERSION => 1);
    SELECT * FROM shop.menu.prices AT (TIMESTAMP => TIMESTAMP '2025-03-01 12:00:00');

Press Ctrl-C to stop the server.
"""

import datetime as dt
import sys

import pyarrow as pa

from skiway.airport import Catalog, CatalogBuilder, ScanOptions, TimePoint, serve

# The states of the table with the time at which each began. Version numbers start at one.
HISTORY = [
    (dt.datetime(2025, 1, 1, tzinfo=dt.UTC), pa.table({"item": ["tea", "cake"], "price": [2.0, 4.0]})),
    (dt.datetime(2025, 2, 1, tzinfo=dt.UTC), pa.table({"item": ["tea", "cake"], "price": [2.5, 4.5]})),
    (
        dt.datetime(2025, 4, 1, tzinfo=dt.UTC),
        pa.table({"item": ["tea", "cake"], "price": [2.5, 4.5], "vegan": [True, False]}),
    ),
]


def state_at(point: TimePoint | None) -> pa.Table | None:  # None if the table did not exist
    states = [state for _, state in HISTORY]
    if point is None:
        return states[-1]
    if point.unit == "version":
        return states[point.version() - 1] if 1 <= point.version() <= len(states) else None
    since = [state for begin, state in HISTORY if begin <= point.timestamp()]
    return since[-1] if since else None


def schema_at(point: TimePoint) -> pa.Schema | None:
    state = state_at(point)
    return None if state is None else state.schema


def catalog() -> Catalog:
    shop = CatalogBuilder("shop")

    @shop.schema("menu").table(schema=HISTORY[-1][1].schema, schema_at=schema_at)
    def prices(scan: ScanOptions):
        return state_at(scan.time_point)

    return shop.build()


if __name__ == "__main__":
    print(__doc__, flush=True)
    serve(catalog(), *sys.argv[1:2])
