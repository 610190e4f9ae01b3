"""File tables and profiles with sketches, built by hand for tests that need no Spark."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import datasketches
import pyarrow as pa

from skiway.formats import FILE_COLUMNS, TableSchema
from skiway.formats.schemas import leaves, with_ids
from skiway.formats.statistics import column_stats, stats_struct
from skiway.spark_jobs.profile.figures import PROFILE
from skiway.spark_jobs.profile.values import texts, value_kind


def schema(**columns: pa.DataType) -> TableSchema:
    numbers = {name: number for number, name in enumerate(columns, start=1)}
    return TableSchema.of(with_ids(pa.schema(columns), lambda path: numbers[path[0]]))


def file_table(
    of: TableSchema, row_counts: Sequence[int | None], *, deletes: Sequence[int] = (), **more: Any
) -> pa.Table:
    """Files without any statistics; each of `deletes` has an unknown number of deleted rows."""
    count = len(row_counts)
    columns: dict[str, Any] = {
        "ordinal": range(count),
        "path": [f"/lake/{number:06d}.parquet" for number in range(count)],
        "format": ["parquet"] * count,
        "content": ["data"] * count,
        "row_count": list(row_counts),
        "size_bytes": [1000] * count,
        "etag": [None] * count,
        "spec_id": [0] * count,
        "sequence_number": [None] * count,
        "equality_ids": [[]] * count,
        "deletes": [[count] if number in deletes else [] for number in range(count)],
        "deleted_rows": [None if number in deletes else 0 for number in range(count)],
    } | more
    typed = {name: pa.array(list(values), FILE_COLUMNS.field(name).type) for name, values in columns.items()}
    unknown = {leaf.id: column_stats(leaf.type, count) for leaf in leaves(of.arrow)}
    return pa.table({**typed, "partition": pa.nulls(count, pa.struct([])), "stats": stats_struct(unknown, count)})


def theta(values: Sequence[Any]) -> bytes:
    sketch = datasketches.update_theta_sketch(12)
    for value in values:
        sketch.update(value)
    return bytes(sketch.compact().serialize())


def kll(values: Sequence[float]) -> bytes:
    sketch = datasketches.kll_doubles_sketch()
    for value in values:
        sketch.update(value)
    return bytes(sketch.serialize())


def row(file: int, column_id: int, values: Sequence[Any], of: pa.DataType, **more: Any) -> dict[str, Any]:
    """The profile of one column in one file."""
    kind = value_kind(of)
    assert kind is not None
    known = [value for value in values if value is not None]
    low, high = texts(pa.array([min(known), max(known)], of), of).to_pylist() if known else (None, None)
    figures = {
        "path": f"/lake/{file:06d}.parquet",
        "size_bytes": 1000,
        "column_id": column_id,
        "row_count": len(values),
        "null_count": len(values) - len(known),
        "nan_count": 0,
        "total_width": len(known) * (kind.width or 1),
        "min": low,
        "max": high,
        "exact": True,
        "theta": None if "theta" in more else theta(known),
        "domain": kind.domain,
        "kll": kll(known) if kind.is_number and "kll" not in more else None,
        "top": [],
    }
    return figures | more


def profiles(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=PROFILE)
