"""Reinterpret the values of nested arrays, such as numbers that are times."""

from __future__ import annotations

import pyarrow as pa

from skiway.airport.layouts import is_list

__all__ = ["reinterpreted"]


def reinterpreted(array: pa.Array, of: pa.DataType) -> pa.Array:
    """The same bytes as values of the type `of`, which has the same structure and leaves of the same size."""
    if array.type == of:
        return array
    nulls = array.is_null() if array.null_count else None
    if pa.types.is_struct(of):
        parts = [reinterpreted(array.field(place), each.type) for place, each in enumerate(of)]
        return pa.StructArray.from_arrays(parts, fields=list(of), mask=nulls)
    if pa.types.is_map(of):
        parts = [reinterpreted(array.keys, of.key_type), reinterpreted(array.items, of.item_type)]
        return pa.MapArray.from_arrays(array.offsets, *parts, type=of, mask=nulls)
    if is_list(of):
        return pa.ListArray.from_arrays(array.offsets, reinterpreted(array.values, of.value_type), type=of, mask=nulls)
    return array.view(of)
