"""Python values as Arrow values: the arguments of function calls.

The type follows from the whole value, not from its first element: numbers of different types are promoted to a type that
holds all of them exactly, and what has no common type is an error.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any, Final

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import ascii_lower

__all__ = ["to_array", "type_of"]

_NULL: Final = pa.null()
_MAX_DIGITS: Final = 38  # of DuckDB's DECIMAL


def to_array(value: Any) -> pa.Array:
    """An array with `value` as its only element; `TypeError`, `ValueError` or an Arrow error if that is impossible."""
    return pa.repeat(value, 1) if isinstance(value, pa.Scalar) else pa.array([value], type_of(value))


def type_of(value: Any) -> pa.DataType:
    """The Arrow type of a Python value: a dict is a struct, and a list or tuple is a list of its common type."""
    match value:
        case None:
            return _NULL
        case pa.Scalar():
            return value.type
        case bool():
            return pa.bool_()
        case int():
            return _integer_type(value)
        case dt.datetime():
            return pa.timestamp("us", tz="UTC" if value.tzinfo else None)
        case Mapping():
            return _struct_type(value)
        case list() | tuple():
            return pa.list_(_common_type([type_of(item) for item in value]))
        case _:
            return pa.scalar(value).type


def _integer_type(value: int) -> pa.DataType:
    if -(2**63) <= value < 2**63:
        return pa.int64()
    return pa.uint64() if 0 <= value < 2**64 else pa.decimal128(_MAX_DIGITS, 0)


def _struct_type(value: Mapping[Any, Any]) -> pa.DataType:
    if not value:
        raise TypeError("a struct needs at least one field")
    if not all(isinstance(name, str) for name in value):
        raise TypeError("the keys of a dict are the field names of a struct and must be strings")
    if len({ascii_lower(name) for name in value}) < len(value):
        raise TypeError("field names of a struct must differ in more than case")
    return pa.struct([(name, type_of(item)) for name, item in value.items()])


def _common_type(types: Iterable[pa.DataType]) -> pa.DataType:
    return reduce(_promoted, types, _NULL)


def _promoted(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """The type that holds the values of both types."""
    types = pa.types
    if one == other or types.is_null(other):
        return one
    if types.is_null(one):
        return other
    if _is_exact(one) and _is_exact(other):
        return _exact_type(one, other)
    if (types.is_integer(one) or types.is_floating(one)) and (types.is_integer(other) or types.is_floating(other)):
        return pa.float64()  # the conversion fails for integers that a double cannot hold
    if types.is_list(one) and types.is_list(other):
        return pa.list_(_promoted(one.value_type, other.value_type))
    if types.is_struct(one) and types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            fields[field.name] = _promoted(fields.get(field.name, _NULL), field.type)
        return pa.struct(list(fields.items()))
    raise TypeError(f"it mixes {one} and {other}")


def _is_exact(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(data_type) or pa.types.is_decimal(data_type))


def _exact_type(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if pa.types.is_integer(one) and pa.types.is_integer(other) and pa.uint64() not in (one, other):
        return pa.int64()
    (whole, scale), (other_whole, other_scale) = _digits(one), _digits(other)
    whole, scale = max(whole, other_whole), max(scale, other_scale)
    if whole + scale > _MAX_DIGITS:
        raise TypeError(f"it mixes {one} and {other}, which together have more than {_MAX_DIGITS} digits")
    return pa.decimal128(whole + scale, scale)


def _digits(data_type: pa.DataType) -> tuple[int, int]:
    """The digits before and after the decimal point."""
    if pa.types.is_decimal(data_type):
        return data_type.precision - data_type.scale, data_type.scale
    return (20 if data_type == pa.uint64() else 19), 0
