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
    for path, values in _temporal(array, column):
        numbers = values.view(pa.int32() if pa.types.is_date32(values.type) else pa.int64())
        most = 2 ** (numbers.type.bit_width - 1) - 1
        ends = pc.min_max(numbers)
        if most in (ends["max"].as_py(), -(ends["min"].as_py() or 0)):
            raise InvalidArgument(
                f"column {path!r} has an infinite {'date' if most < 2**32 else 'timestamp'}, which Iceberg cannot "
                "represent: use NULL, or a date far away",
                key="column.value",
                column=column,
            )


def _temporal(array: pa.Array, path: str) -> Iterator[tuple[str, pa.Array]]:
    """The dates and timestamps in an array, with the path of their column or field."""
    of, types = array.type, pa.types
    if types.is_date32(of) or types.is_timestamp(of):
        yield path, array
    elif types.is_struct(of):
        for field, part in zip(of, array.flatten(), strict=True):  # NULL where the struct is
            yield from _temporal(part, f"{path}.{field.name}")
    elif types.is_map(of):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        for part in (array.keys, array.items):
            yield from _temporal(part.slice(first, last - first), path)
    elif is_list(of):
        yield from _temporal(list_values(array), path)
    elif types.is_dictionary(of):
        yield from _temporal(array.dictionary, path)
    elif types.is_run_end_encoded(of):
        yield from _temporal(array.values, path)
