"""Column statistics as a server answers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from skiway.errors import InvalidArgument

__all__ = ["ColumnStatistics"]


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What the server says about a column; None where it says nothing.

    `min` and `max` are bounds: values outside do not occur, the bounds themselves need not.
    """

    min: Any
    max: Any
    has_null: bool
    has_not_null: bool
    distinct_count: int | None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


def read_statistics(data: bytes, column: str) -> ColumnStatistics:
    """The one row in an Arrow stream."""
    try:
        with pa.ipc.open_stream(data) as reader:
            batch = reader.read_next_batch()
            batch.validate(full=True)
            row = batch.slice(0, 1).to_pylist()[0]  # one row of single values, not data
    except (pa.ArrowException, OSError, ValueError, StopIteration, IndexError) as error:
        raise InvalidArgument(f"statistics of {column!r} are not an Arrow stream of one row") from error
    missing = {"min", "max", "has_null", "has_not_null", "distinct_count"} - row.keys()
    if missing:
        raise InvalidArgument(f"statistics of {column!r} lack {min(missing)!r}")
    return ColumnStatistics(
        min=row["min"],
        max=row["max"],
        has_null=bool(row["has_null"]),
        has_not_null=bool(row["has_not_null"]),
        distinct_count=row["distinct_count"] or None,  # zero is the protocol's word for "not known"
        max_string_length=row.get("max_string_length"),
        contains_unicode=row.get("contains_unicode"),
    )
