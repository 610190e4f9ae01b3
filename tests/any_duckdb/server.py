"""Two catalogs in a process of their own, whatever DuckDB the tests use: one for all statements, one that records its scans."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import repeat
from typing import Any

import pyarrow as pa

from skiway.airport import Catalog, CatalogBuilder, Server
from skiway.airport.memory import MemoryCatalog

DAYS = pa.array([number % 30 for number in range(1000)], pa.int32()).cast(pa.date32())
NUMBERS = pa.table({"id": range(1000), "name": [f"n{number % 10}" for number in range(1000)], "day": DAYS})
SCANS = pa.schema({"columns": pa.string(), "filter": pa.string()})


def recording() -> Catalog:
    """A catalog whose table `s.scans` lists what clients have requested from `s.numbers`."""
    catalog = CatalogBuilder("seen")
    schema = catalog.schema("s")
    requested: list[dict[str, str]] = []

    @schema.table(schema=NUMBERS.schema)
    def numbers(scan: Any) -> pa.Table:
        requested.append({"columns": ",".join(scan.columns or ()), "filter": scan.json_filters})
        return NUMBERS

    @schema.table(schema=SCANS)
    def scans(_: Any) -> pa.Table:
        return pa.Table.from_pylist(requested, schema=SCANS)

    @schema.table(schema=pa.schema({"id": pa.int64()}))
    def endless(_: Any) -> Iterator[pa.RecordBatch]:
        yield from repeat(pa.record_batch({"id": range(1000)}))

    @schema.table_function(schema=pa.schema({"n": pa.int64()}))
    def upto(n: pa.Int64Scalar) -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"n": range(n.as_py())})

    return catalog.build()


if __name__ == "__main__":
    with Server(MemoryCatalog("lake"), port=0) as lake, Server(recording(), port=0) as seen:
        print(lake.location, seen.location, flush=True)
        sys.stdin.read()  # until the tests end
