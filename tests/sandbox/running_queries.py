"""Rows to query, as a relation of scans, and the results of queries."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from skiway.sandbox.queries import QueryProcess
from skiway.sandbox.relations import Relation

ROWS = pa.table(
    {
        "id": range(30),
        "v": [math.nan if i % 10 == 0 else i / 2 for i in range(30)],
        "text": [None if i % 7 == 0 else f"t{i % 3}" for i in range(30)],
    }
)
NAME = ("lake", "s", "t")


def scanned(rows: pa.Table = ROWS, asked: list[Any] | None = None) -> Relation:
    def scan(columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        if asked is not None:
            asked.append(list(columns))
        yield from rows.select(columns).to_batches(max_chunksize=7)

    return Relation(NAME, rows.schema, scan)


def result(
    process: QueryProcess, sql: str, *relations: Relation, default: Sequence[str] = ("lake",), **options: Any
) -> list[dict[str, Any]]:
    """The rows of a query."""
    parsed = process.parse(sql)
    found = process.run(parsed.sql, relations, default=default, **options)
    rows: list[dict[str, Any]] = pa.Table.from_batches(found[1], found[0]).to_pylist()
    return rows


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
