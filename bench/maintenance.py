"""Scans of a table with 1,000 small files before and after `optimize`, in DuckDB with its Airport extension.

One commit adds the files. After `optimize`, the current snapshot is compared with the one before, which time travel reads, so
both take turns. The client is that of `make live`, which explains how to get it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pyarrow as pa

from bench.disk import scratch
from bench.live import asking, attach, in_turns
from bench.report import Figure
from bench.serving import skiway_serve
from bench.turns import seconds
from skiway.client import AirportClient, Metastore
from skiway.client.metastore.jobs import optimize_task
from skiway.formats.iceberg.warehouse import Warehouse
from skiway.formats.iceberg.writing.data_files import DataFileWriter
from skiway.metastore import Realm, managed
from skiway.storage import open_stores

from live.clients import find_client  # isort: skip - `bench.live` makes it importable

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
        before = written(place / "home", doors, files)
        with Metastore(doors["rpc"]) as lake:
            took = seconds(lambda: optimized(lake))
        yield Figure(f"optimize of {files:,} files", "s", took)
        with client.session("SET enable_progress_bar = false") as session:
            attach(session, "lake", doors["airport"], "lake")
            after = "lake.shop.orders"
            then = f"{after} AT (VERSION => {before})"
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


def written(home: Path, doors: Mapping[str, str], files: int) -> int:
    """Write a table with so many files, and return its snapshot."""
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    with AirportClient(doors["airport"], "lake") as lake:
        lake.create_schema("shop")
        lake.create_table("shop.orders", schema)
    with Metastore(doors["rpc"]) as metastore:
        table_id = metastore.tables.get("lake.shop.orders").message.resource_id
    with open_stores(f"sqlite:///{home}/pointers.db", (home / "blobs").as_uri()) as stores:
        realm, warehouse = Realm(stores, "default"), Warehouse.at(str(home / "warehouse"))
        table = managed.load(realm, warehouse, table_id)
        with DataFileWriter(table.files, table.metadata, buffer_bytes=1, target_bytes=1) as writer:
            for number in range(files):
                ids = range(number * ROWS, (number + 1) * ROWS)
                writer.write(
                    pa.record_batch({"id": list(ids), "name": [f"order {each}" for each in ids]}, schema=schema)
                )
            done = managed.append_with_retry(realm, warehouse, table_id, writer.close())
    found = done.metadata.current_snapshot_id
    assert found is not None
    return found


def optimized(lake: Metastore) -> None:
    """Pack the files."""
    job = lake.maintenance.wait("lake.shop.orders", lake.maintenance.start("lake.shop.orders", optimize_task()))
    assert job.state == "succeeded", job.message.message


if __name__ == "__main__":
    import sys

    from bench.report import report

    report("maintenance", figures(int(sys.argv[1]) if len(sys.argv) > 1 else FILES))
