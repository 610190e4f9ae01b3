"""Convert the columns of a file to the schema of its table, matched by field id, at any depth.

The type of a column may only have become wider since the file was written. Any other difference raises an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from skiway.airport.conversion import is_list, plain_array, plain_field
from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats.extension_types import is_geometry_type, is_variant, storage_field, variant_json
from skiway.formats.files import corrupt
from skiway.formats.schemas import field_id

Converter: TypeAlias = Callable[[pa.Array], pa.Array]

_UNSIGNED: Final = ((pa.uint32(), pa.int32()), (pa.uint64(), pa.int64()))
"""Types of the same width. PyIceberg writes such files. The cast fails if a value is too large."""
_TEXTS: Final = (pa.string(), pa.large_string(), pa.string_view())
_NO_DEFAULTS: Final[Mapping[int, pa.Scalar]] = {}


def converter(
    source: pa.Field, target: pa.Field, *, file: str, defaults: Mapping[int, pa.Scalar] = _NO_DEFAULTS
) -> Converter | None:
    """Return a function that converts values of `source` to `target`; None if no conversion is needed.

    `defaults` are the values, by id, of fields of structs that `source` does not have.
    """
    if _same_fields(source, target):
        return None
    if is_geometry_type(source.type):
        of_storage = converter(storage_field(source), target, file=file, defaults=defaults)
        return lambda array: array.storage if of_storage is None else of_storage(array.storage)
    plain = plain_field(source)
    if plain.type != source.type:
        of_plain = converter(plain, target, file=file, defaults=defaults)
        return plain_array if of_plain is None else lambda array: of_plain(plain_array(array))
    if is_variant(source.type) and pa.types.is_string(target.type):
        return _json(target, file)
    if pa.types.is_struct(source.type) and pa.types.is_struct(target.type):
        return _struct(source, target, file, defaults)
    if pa.types.is_map(source.type) and pa.types.is_map(target.type):
        return _map(source.type, target.type, file, defaults)
    if is_list(source.type) and pa.types.is_list(target.type):
        return _list(source.type, target.type, file, defaults)
    stored = source.type.storage_type if isinstance(source.type, pa.JsonType) else source.type
    if not widens(stored, target.type) and (stored, target.type) not in _UNSIGNED:
        raise Unsupported(
            f"column {target.name!r} is {target.type} in the table, but {source.type} in file {file!r}; this change of type "
            "is not supported, rewrite the file",
            key="column.type_changed",
            column=target.name,
            file=file,
        )
    return _cast(target, file)


def missing_column(target: pa.Field, rows: int, value: pa.Scalar | None, *, file: str) -> pa.Array:
    """A column that the file does not have: `value` in every row, or NULL."""
    if value is not None and value.is_valid:
        return pa.repeat(value.cast(target.type), rows)
    if not target.nullable:
        raise PreconditionFailed(
            f"file {file!r} has no column {target.name!r}, which is NOT NULL and has no default; rewrite the file",
            key="column.missing",
            column=target.name,
            file=file,
        )
    return pa.nulls(rows, target.type)


def _same_fields(source: pa.Field, target: pa.Field) -> bool:
    if source.type != target.type:
        return False
    if not pa.types.is_struct(target.type):
        return all(
            _same_fields(*pair) for pair in zip(_child_fields(source.type), _child_fields(target.type), strict=True)
        )
    return all(
        field_id(one) == field_id(other) and _same_fields(one, other)
        for one, other in zip(source.type, target.type, strict=True)
    )


def _child_fields(of: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(of):
        return [of.key_field, of.item_field]
    return [of.value_field] if is_list(of) else []


def _struct(source: pa.Field, target: pa.Field, file: str, defaults: Mapping[int, pa.Scalar]) -> Converter:
    places: Mapping[int | None, int] = {field_id(child): place for place, child in enumerate(source.type)}
    children = []
    for child in target.type:
        place = places.get(field_id(child)) if field_id(child) is not None else None
        convert_child = None if place is None else converter(source.type[place], child, file=file, defaults=defaults)
        children.append((child, place, convert_child))

    def convert(array: pa.Array) -> pa.Array:
        parts = []
        for child, place, convert_child in children:
            if place is None:
                parts.append(missing_column(child, len(array), defaults.get(field_id(child) or -1), file=file))
            else:
                part = array.field(place)
                parts.append(part if convert_child is None else convert_child(part))
        nulls = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(target.type), mask=nulls)

    missing = [child for child, place, _ in children if place is None and field_id(child) not in defaults]
    if not all(child.nullable for child in missing):
        raise Unsupported(
            f"struct {target.name!r} in file {file!r} has no value for a field that is NOT NULL; rewrite the file",
            key="column.missing",
            column=target.name,
            file=file,
        )
    return convert


def _list(source: pa.DataType, target: pa.DataType, file: str, defaults: Mapping[int, pa.Scalar]) -> Converter:
    element = converter(source.value_field, target.value_field, file=file, defaults=defaults)

    def convert(array: pa.Array) -> pa.Array:
        array = _without_offset(array)
        nulls = array.is_null() if array.null_count else None
        values = array.values if element is None else element(array.values)
        return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=nulls)

    return convert


def _map(source: pa.DataType, target: pa.DataType, file: str, defaults: Mapping[int, pa.Scalar]) -> Converter:
    key = converter(source.key_field, target.key_field, file=file, defaults=defaults)
    item = converter(source.item_field, target.item_field, file=file, defaults=defaults)

    def convert(array: pa.Array) -> pa.Array:
        array = _without_offset(array)
        keys = array.keys if key is None else key(array.keys)
        items = array.items if item is None else item(array.items)
        nulls = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=nulls)

    return convert


def _without_offset(array: pa.Array) -> pa.Array:
    """Copy `array` if it has an offset: Arrow cannot rebuild lists with nulls from such arrays."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array


def _json(target: pa.Field, file: str) -> Converter:
    """Convert variants to JSON."""

    def convert(array: pa.Array) -> pa.Array:
        try:
            return variant_json(array)
        except (ValueError, LookupError, OverflowError, struct.error, TypeError) as error:
            raise corrupt(file, f"column {target.name!r}: {error}") from error

    return convert


def _cast(target: pa.Field, file: str) -> Converter:
    def convert(array: pa.Array) -> pa.Array:
        try:
            return array.cast(target.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise PreconditionFailed(
                f"column {target.name!r} of file {file!r} has a value that {target.type} cannot represent",
                key="column.value",
                detail=reason,
                column=target.name,
                file=file,
            ) from error

    return convert


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Can `target` represent every value of `source`, and do formats allow this change of a column's type?"""
    is_int = pa.types.is_integer
    if source == target or pa.types.is_null(source):
        return True
    if is_int(source):
        return (
            (is_int(target) and _widens_integer(source, target))
            or pa.types.is_float64(target)  # the cast fails if it cannot represent a BIGINT
            or (pa.types.is_float32(target) and source.bit_width <= 16)
            or (pa.types.is_decimal(target) and target.precision - target.scale >= _digits(source))
        )
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        whole, other = (each.precision - each.scale for each in (source, target))
        return bool(other >= whole and target.scale >= source.scale)
    if source in _TEXTS or _is_bytes(source):
        is_text = target in _TEXTS and not pa.types.is_fixed_size_binary(source)
        return is_text or _is_bytes(target) or bool(target == pa.uuid())
    if pa.types.is_timestamp(target):
        return _widens_timestamp(source, target)
    if pa.types.is_floating(source) and pa.types.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    return any(kind(source) and kind(target) for kind in (pa.types.is_time, pa.types.is_date))


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that `widens` both, in either order; None if there is none."""
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other):
        return pa.timestamp(_finer(one, other), tz=one.tz or other.tz)
    if pa.types.is_time(one) and pa.types.is_time(other):
        unit = _finer(one, other)
        return pa.time64(unit) if unit in ("us", "ns") else pa.time32(unit)
    if widens(one, other):
        return other
    if widens(other, one):
        return one
    number = pa.types.is_integer, pa.types.is_decimal
    if all(any(kind(each) for kind in number) for each in (one, other)):
        return _common_number(one, other)
    if any(pa.types.is_integer(of) for of in (one, other)) and any(pa.types.is_floating(of) for of in (one, other)):
        return pa.float64()  # an integer of more than 16 bits and FLOAT
    return None


def _common_number(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """A type for integers of different signs, decimals of different scales, or both."""
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        bits = max(each.bit_width * (1 if pa.types.is_signed_integer(each) else 2) for each in (one, other))
        if bits <= 64:
            return {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}[bits]
    scale = max(each.scale if pa.types.is_decimal(each) else 0 for each in (one, other))
    precision = scale + max(map(_digits, (one, other)))
    return pa.decimal128(precision, scale) if precision <= 38 else None


def _digits(of: pa.DataType) -> int:
    """The digits before the decimal point that values of a type can have."""
    if pa.types.is_decimal(of):
        return int(of.precision - of.scale)
    return {8: 3, 16: 5, 32: 10, 64: 19 if pa.types.is_signed_integer(of) else 20}[of.bit_width]


def _finer(one: pa.DataType, other: pa.DataType) -> str:
    return str(max(one.unit, other.unit, key=("s", "ms", "us", "ns").index))


def _widens_timestamp(source: pa.DataType, target: pa.DataType) -> bool:
    """Timestamps of writers without time zones are UTC. If a coarser unit loses precision, the cast fails."""
    if pa.types.is_timestamp(source):
        return target.tz is not None or source.tz is None
    return bool(pa.types.is_date32(source) and target.tz is None)


def _widens_integer(source: pa.DataType, target: pa.DataType) -> bool:
    signed, wanted = pa.types.is_signed_integer(source), pa.types.is_signed_integer(target)
    if signed == wanted:
        return bool(source.bit_width <= target.bit_width)
    return bool(wanted and source.bit_width < target.bit_width)


def _is_bytes(of: pa.DataType) -> bool:
    return of in (pa.binary(), pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(of)
