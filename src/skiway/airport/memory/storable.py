"""Which type a column should have, so that it takes every form in which clients send its values.

DuckDB knows fewer types than Arrow: views, run-ends and durations come back as strings, plain values and intervals. And
a dictionary that was made for few members must take more, since the client takes it for a column of texts.
"""

from __future__ import annotations

import pyarrow as pa

__all__ = ["storable"]


def storable(field: pa.Field) -> pa.Field:
    """`field` in a type that holds the same values and takes every form that a client may send them in."""
    return field.with_type(_storable(field.type))


def _storable(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(data_type):  # wide indices: members may come that its maker did not think of
        return pa.dictionary(pa.int32(), _inner(data_type.value_type))
    return _inner(data_type) if not types.is_run_end_encoded(data_type) else _storable(data_type.value_type)


def _inner(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return _inner(data_type.value_type)
    if isinstance(data_type, pa.Bool8Type):
        return pa.bool_()
    if types.is_string_view(data_type):
        return pa.string()
    if types.is_binary_view(data_type):
        return pa.binary()
    if types.is_duration(data_type):  # DuckDB knows intervals only, and sends them as such
        return pa.month_day_nano_interval()
    return _inner_nested(data_type)


def _inner_nested(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_map(data_type):
        return pa.map_(_child(data_type.key_field).with_nullable(False), _child(data_type.item_field))
    if types.is_fixed_size_list(data_type):
        return pa.list_(_child(data_type.value_field), data_type.list_size)
    if types.is_large_list(data_type) or types.is_large_list_view(data_type):
        return pa.large_list(_child(data_type.value_field))
    if types.is_list(data_type) or types.is_list_view(data_type):
        return pa.list_(_child(data_type.value_field))
    if types.is_struct(data_type):
        return pa.struct([_child(field) for field in data_type])
    if types.is_union(data_type) and data_type.mode == "sparse":
        return pa.sparse_union([_child(field) for field in data_type], type_codes=data_type.type_codes)
    return data_type


def _child(field: pa.Field) -> pa.Field:
    return field.with_type(_inner(field.type)).with_nullable(True)
