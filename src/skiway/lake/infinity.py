"""Infinite dates and timestamps, which DuckDB has and Iceberg does not.

DuckDB represents them by the largest number and its negative. In Iceberg these are a day, or a moment, like any other.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.layouts import is_list, list_values
from skiway.errors import InvalidArgument

__all__ = ["check_finite"]


def check_finite(array: pa.Array, *, column: str) -> None:
    """Raise `InvalidArgument` if a date or timestamp in `array`, at any depth, is infinite."""
    for values in _temporal(array):
        numbers = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        most = 2 ** (numbers.type.bit_width - 1) - 1
        ends = pc.min_max(numbers)
        if most in (ends["max"].as_py(), -(ends["min"].as_py() or 0)):
            raise InvalidArgument(
                f"column {column!r} has an infinite {'date' if most < 2**32 else 'timestamp'}, which Iceberg cannot "
                "represent: use NULL, or a date far away",
                key="column.value",
                column=column,
            )


def _temporal(array: pa.Array) -> Iterator[pa.Array]:
    """The dates and timestamps in an array."""
    of, types = array.type, pa.types
    if types.is_date32(of) or types.is_timestamp(of):
        yield array
    elif types.is_struct(of):
        for part in array.flatten():  # NULL where the struct is
            yield from _temporal(part)
    elif types.is_map(of):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for part in (array.keys, array.items):
            yield from _temporal(part.slice(first, last - first))
    elif is_list(of):
        yield from _temporal(list_values(array))
    elif types.is_dictionary(of):
        yield from _temporal(array.dictionary)
    elif types.is_run_end_encoded(of):
        yield from _temporal(array.values)
