"""Values of a file in the schema of its table, field by field and matched by id, also within structs, lists and maps.

A type may only have become wider since the file was written. Whatever else differs is refused, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from skiway.errors import PreconditionFailed, Unsupported
from skiway.formats.geometry import is_geometry_type, stored
from skiway.formats.schemas import field_id

__all__ = ["Fit", "filled", "fitting", "widens"]

Fit: TypeAlias = Callable[[pa.Array], pa.Array]


def fitting(source: pa.Field, target: pa.Field, *, file: str) -> Fit | None:
    """What turns values of `source` into those of `target`; None where they are the same already."""
    if _alike(source, target):
        return None
    if is_geometry_type(source.type):
        return _bytes_of(fitting(stored(source), target, file=file))
    if pa.types.is_struct(source.type) and pa.types.is_struct(target.type):
        return _struct(source, target, file)
    if pa.types.is_map(source.type) and pa.types.is_map(target.type):
        return _map(source.type, target.type, file)
    if _is_list(source.type) and pa.types.is_list(target.type):
        return _list(source.type, target.type, file)
    if not widens(_plain(source.type), target.type):
        raise Unsupported(
            f"column {target.name!r} is {target.type} in the table, but {source.type} in file {file!r}; such a change of "
            "type cannot be read: rewrite the file",
            key="column.type_changed",
            column=target.name,
            file=file,
        )
    return _cast(target, file)


def filled(target: pa.Field, rows: int, value: pa.Scalar | None, *, file: str) -> pa.Array:
    """A column that the file does not have: `value` on each row, or NULL."""
    if value is not None and value.is_valid:
        return pa.repeat(value.cast(target.type), rows)
    if not target.nullable:
        raise PreconditionFailed(
            f"file {file!r} lacks column {target.name!r}, which may not be NULL and has no default; rewrite the file",
            key="column.missing",
            column=target.name,
            file=file,
        )
    return pa.nulls(rows, target.type)


def _alike(source: pa.Field, target: pa.Field) -> bool:
    if source.type != target.type:
        return False
    if not pa.types.is_struct(target.type):
        return all(_alike(*pair) for pair in zip(_parts(source.type), _parts(target.type), strict=True))
    return all(
        field_id(one) == field_id(other) and _alike(one, other)
        for one, other in zip(source.type, target.type, strict=True)
    )


def _parts(of: pa.DataType) -> list[pa.Field]:
    if pa.types.is_map(of):
        return [of.key_field, of.item_field]
    return [of.value_field] if _is_list(of) else []


def _is_list(of: pa.DataType) -> bool:
    return any(test(of) for test in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _struct(source: pa.Field, target: pa.Field, file: str) -> Fit:
    places: Mapping[int | None, int] = {field_id(child): place for place, child in enumerate(source.type)}
    children = []
    for child in target.type:
        place = places.get(field_id(child)) if field_id(child) is not None else None
        fit = None if place is None else fitting(source.type[place], child, file=file)
        children.append((child, place, fit))

    def fitted(array: pa.Array) -> pa.Array:
        parts = []
        for child, place, fit in children:
            if place is None:
                parts.append(pa.nulls(len(array), child.type))
            else:
                part = array.field(place)
                parts.append(part if fit is None else fit(part))
        nulls = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(parts, fields=list(target.type), mask=nulls)

    if any(place is None and not child.nullable for child, place, _ in children):
        raise Unsupported(
            f"struct {target.name!r} of file {file!r} lacks a field that may not be NULL; rewrite the file",
            key="column.missing",
            column=target.name,
            file=file,
        )
    return fitted


def _list(source: pa.DataType, target: pa.DataType, file: str) -> Fit:
    element = fitting(source.value_field, target.value_field, file=file)

    def fitted(array: pa.Array) -> pa.Array:
        if not pa.types.is_list(source):
            array = array.cast(pa.list_(source.value_field))
        array = _from_start(array)
        nulls = array.is_null() if array.null_count else None
        values = array.values if element is None else element(array.values)
        return pa.ListArray.from_arrays(array.offsets, values, type=target, mask=nulls)

    return fitted


def _map(source: pa.DataType, target: pa.DataType, file: str) -> Fit:
    key = fitting(source.key_field, target.key_field, file=file)
    item = fitting(source.item_field, target.item_field, file=file)

    def fitted(array: pa.Array) -> pa.Array:
        array = _from_start(array)
        keys = array.keys if key is None else key(array.keys)
        items = array.items if item is None else item(array.items)
        nulls = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(array.offsets, keys, items, type=target, mask=nulls)

    return fitted


def _from_start(array: pa.Array) -> pa.Array:
    """`array` without an offset, which Arrow cannot rebuild lists with nulls from."""
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array


def _bytes_of(fit: Fit | None) -> Fit:
    """What fits the bytes of geometries that pyarrow has a type of its own for."""
    return lambda array: array.storage if fit is None else fit(array.storage)


def _cast(target: pa.Field, file: str) -> Fit:
    def fitted(array: pa.Array) -> pa.Array:
        try:
            return array.cast(target.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            reason = str(error).partition("\n")[0]
            raise PreconditionFailed(
                f"column {target.name!r} of file {file!r} holds a value that {target.type} does not: {reason}",
                key="column.value",
                column=target.name,
                file=file,
            ) from error

    return fitted


def _plain(of: pa.DataType) -> pa.DataType:
    if isinstance(of, pa.JsonType):
        return of.storage_type
    return of.value_type if pa.types.is_dictionary(of) else of


def widens(source: pa.DataType, target: pa.DataType) -> bool:
    """Does `target` hold every value of `source`, in a way that formats allow a column to change?"""
    is_int, is_text, is_bytes = pa.types.is_integer, _is_text, _is_bytes
    if source == target or pa.types.is_null(source):
        return True
    if is_int(source):
        digits = {8: 3, 16: 5, 32: 10, 64: 20}[source.bit_width]
        return (
            (is_int(target) and _holds_integers(source, target))
            or (pa.types.is_float64(target) and source.bit_width <= 32)
            or (pa.types.is_decimal(target) and target.precision - target.scale >= digits)
        )
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        whole, other = (each.precision - each.scale for each in (source, target))
        return bool(other >= whole and target.scale >= source.scale)
    if is_text(source) or is_bytes(source):
        return is_bytes(target) or (is_text(target) and not pa.types.is_fixed_size_binary(source)) or _is_uuid(target)
    if pa.types.is_timestamp(target):
        return _holds_moments(source, target)
    if pa.types.is_floating(source) and pa.types.is_floating(target):
        return bool(source.bit_width <= target.bit_width)
    return any(kind(source) and kind(target) for kind in (pa.types.is_time, pa.types.is_date))


def _holds_moments(source: pa.DataType, target: pa.DataType) -> bool:
    """Those of writers that knew no zone are UTC. Where a coarser unit would lose something, the cast fails."""
    if pa.types.is_timestamp(source):
        return target.tz is not None or source.tz is None
    return bool(pa.types.is_date32(source) and target.tz is None)


def _holds_integers(source: pa.DataType, target: pa.DataType) -> bool:
    signed, wanted = pa.types.is_signed_integer(source), pa.types.is_signed_integer(target)
    if signed == wanted:
        return bool(source.bit_width <= target.bit_width)
    return bool(wanted and source.bit_width < target.bit_width)


def _is_text(of: pa.DataType) -> bool:
    return of in (pa.string(), pa.large_string(), pa.string_view())


def _is_uuid(of: pa.DataType) -> bool:
    return bool(of == pa.uuid())


def _is_bytes(of: pa.DataType) -> bool:
    return of in (pa.binary(), pa.large_binary(), pa.binary_view()) or pa.types.is_fixed_size_binary(of)
