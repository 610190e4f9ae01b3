"""`skiway.query` compared with the same SQL in DuckDB on the same files, for a table of each format.

The server runs in its own process. Both take turns, and both return only the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import duckdb

from bench.lake_home import Twin, served_lake
from bench.report import Figure
from bench.turns import taken_in_turns
from skiway.client import AirportClient

ROWS: Final = 5_000_000
ROUNDS: Final = 7
PEER: Final = "DuckDB on the same files"

QUERIES: Final[Mapping[str, tuple[str, float]]] = {
    "count(*)": ("SELECT count(*) AS n FROM {table}", 3.0),
    "aggregates of three columns": (
        'SELECT state, count(*) AS n, max(amount) AS a, max("at") AS t FROM {table} GROUP BY state ORDER BY state',
        1.5,
    ),
    "aggregates of 500 groups": (
        "SELECT store, count(*) AS n, avg(amount) AS mean FROM {table} GROUP BY store ORDER BY store LIMIT 5",
        1.5,
    ),
    "join with an aggregate": (
        "SELECT count(*) AS n, max(a.amount) AS a FROM {table} AS a JOIN "
        "(SELECT store, max(id) AS id FROM {table} GROUP BY store) AS b ON a.id = b.id",
        1.5,
    ),
}
"""SQL by name, and how many times as long as DuckDB it may take."""


def figures(total: int = ROWS) -> Iterator[Figure]:
    """Yield the figures of this part."""
    with served_lake(total) as (location, twins):
        for format_, twin in twins.items():
            with AirportClient(location, twin.catalog) as client, duckdb.connect() as database:
                yield from compared(format_, client, database, twin)


def compared(format_: str, client: AirportClient, database: duckdb.DuckDBPyConnection, twin: Twin) -> Iterator[Figure]:
    files = f"read_parquet({twin.files!r})"
    for name, (sql, aim) in QUERIES.items():

        def ours(sql: str = sql) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = (
                client.call("skiway.query", sql.format(table=twin.table)).read_all().to_pylist()
            )
            return found

        def peer(sql: str = sql) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = database.sql(sql.format(table=files)).to_arrow_table().to_pylist()
            return found

        assert [row["n"] for row in ours()] == [row["n"] for row in peer()], "the two do not agree"
        times = taken_in_turns(ours, peer, ROUNDS)
        yield Figure(
            f"{format_}: {name}",
            "ms",
            times.ours * 1000,
            times.peer * 1000,
            times.ratio,
            aim_at_most=aim,
            peer_is=PEER,
        )


if __name__ == "__main__":
    import sys

    from bench.report import report

    report("query", figures(int(sys.argv[1]) if len(sys.argv) > 1 else ROWS))
