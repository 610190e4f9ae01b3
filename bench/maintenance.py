"""Scans of a table with 1,000 small files before and after `optimize`, in DuckDB with its Airport extension.

A thousand INSERT statements write the files. After `optimize`, the current snapshot is compared with the one before, which time
travel reads, so both take turns. The client is that of `make live`, which explains how to get it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from bench.disk import scratch
from bench.live import asking, attach, find_client, in_turns
from bench.report import Figure
from bench.serving import skiway_serve
from bench.turns import seconds
from skiway.client import AirportClient, Metastore
from skiway.client.metastore.maintenance import optimize_task

FILES: Final = 1000
ROWS: Final = 1000
"""Rows of each file."""
ROUNDS: Final = 7
PEER: Final = "the same rows before optimize"

SCANS: Final = {
    "all columns": "SELECT * FROM {table}",
    "aggregates of two columns": "SELECT count(*), sum(id), max(name) FROM {table}",
    "one row by its id": "SELECT * FROM {table} WHERE id = 777777",
}


def figures(files: int = FILES) -> Iterator[Figure]:
    """Yield the figures of this part."""
    client = find_client()
    with scratch() as place, skiway_serve(place / "home") as doors:
        write(doors["airport"], files)
        with Metastore(doors["rpc"]) as lake:
            health = lake.maintenance.health("lake.shop.orders")
            took = seconds(lambda: optimized(lake))
        yield Figure(f"optimize of {files:,} files", "s", took)
        with client.session("SET enable_progress_bar = false") as session:
            attach(session, "lake", doors["airport"], "lake")
            after = "lake.shop.orders"
            then = f"{after} AT (VERSION => {health.snapshot_id})"
            everything = "SELECT count(*), sum(id) FROM {table}"
            assert session.rows(everything.format(table=after)) == session.rows(everything.format(table=then))
            for name, sql in SCANS.items():
                times = in_turns(asking(session, sql, table=after), asking(session, sql, table=then), ROUNDS)
                yield Figure(
                    f"{name}, {files:,} files packed",
                    "ms",
                    times.ours * 1000,
                    times.peer * 1000,
                    times.ratio,
                    aim_at_most=1.0,
                    peer_is=PEER,
                )


def write(location: str, files: int) -> None:
    """Write a table with one INSERT per file."""
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    with AirportClient(location, "lake") as lake:
        lake.create_schema("shop")
        lake.create_table("shop.orders", schema)
        for number in range(files):
            ids = range(number * ROWS, (number + 1) * ROWS)
            lake.insert("shop.orders", pa.table({"id": ids, "name": [f"order {each}" for each in ids]}, schema=schema))


def optimized(lake: Metastore) -> None:
    """Pack the files."""
    job = lake.maintenance.wait("lake.shop.orders", lake.maintenance.start("lake.shop.orders", optimize_task()))
    assert job.state == "succeeded", job.message.message


if __name__ == "__main__":
    import sys

    from bench.report import report

    report("maintenance", figures(int(sys.argv[1]) if len(sys.argv) > 1 else FILES))
