"""Arrow has several layouts for the same values: views, large offsets, dictionaries, run ends, kinds of lists.

Columns of lake tables have one *plain* layout: strings, bytes and lists with 32-bit offsets, and values as they are. Files and
clients may use any, and what they send is converted: Arrow supports few operations on the other layouts.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["empty_rows", "is_list", "list_values", "plain_array", "plain_field", "plain_type", "without_views"]

_LISTS: Final = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
_VIEWS: Final = (pa.ListViewType, pa.LargeListViewType, pa.RunEndEncodedType)
_LEAVES: Final = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def is_list(of: pa.DataType) -> bool:
    """Whether this is a type of lists, in any layout; maps are not."""
    return isinstance(of, _LISTS)


def empty_rows(schema: pa.Schema) -> pa.Table:
    """A table without rows. pyarrow's `empty_table` fails for lists and structs of UUID, JSON and other extension types."""
    return pa.table([pa.nulls(0, field.type) for field in schema], schema=schema)


def list_values(array: pa.Array) -> pa.Array:
    """The values of all lists that are not NULL. pyarrow's `flatten` fails for some types if all lists are NULL."""
    return array.values[:0] if array.null_count == len(array) else array.flatten()


def plain_type(of: pa.DataType) -> pa.DataType:
    """The type of the same values in the plain layout. The field of a list is always named `element`."""
    types = pa.types
    if types.is_dictionary(of) or types.is_run_end_encoded(of):
        return plain_type(of.value_type)
    if types.is_struct(of):
        return pa.struct([plain_field(child) for child in of])
    if types.is_map(of):
        return pa.map_(plain_field(of.key_field), plain_field(of.item_field))
    if is_list(of):
        return pa.list_(plain_field(of.value_field).with_name("element"))
    if types.is_decimal(of) and of.precision <= 38:
        return pa.decimal128(of.precision, of.scale)  # Arrow supports few computations on other decimal types
    return of if isinstance(of, pa.BaseExtensionType) else _LEAVES.get(of, of)  # some extension types are not hashable


def plain_field(field: pa.Field) -> pa.Field:
    """`field` with values in the plain layout."""
    return field.with_type(plain_type(field.type))


def plain_array(array: pa.Array) -> pa.Array:
    """The same values in the plain layout; `array` itself if it has that already."""
    of, types = array.type, pa.types
    target = plain_type(of)
    if of == target:
        return array
    if types.is_dictionary(of):
        return plain_array(array.dictionary).take(array.indices)
    if types.is_run_end_encoded(of):
        return plain_array(array.values).take(_runs(array))
    if types.is_struct(of):
        children = [plain_array(array.field(place)) for place in range(of.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=_nulls(array))
    if types.is_map(of):
        return _plain_map(array, target)
    if is_list(of):
        offsets = _offsets(pc.list_value_length(array).fill_null(0))
        return pa.ListArray.from_arrays(offsets, plain_array(list_values(array)), type=target, mask=_nulls(array))
    return array.cast(target)


def without_views(array: pa.Array) -> pa.Array:
    """`array`, in the plain layout if its own has views or run ends.

    Arrow cannot take rows of views, cannot cast run ends, and casts list views wrongly.
    """
    return plain_array(array) if _has_views(array.type) else array


def _has_views(of: pa.DataType) -> bool:
    if of in (pa.string_view(), pa.binary_view()) or isinstance(of, _VIEWS):
        return True
    if pa.types.is_dictionary(of):
        return _has_views(of.value_type)
    return any(_has_views(of.field(place).type) for place in range(of.num_fields))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _runs(array: pa.Array) -> pa.Array:
    """The number of the run that each value of a run-end encoded array belongs to."""
    numbers = pa.RunEndEncodedArray.from_arrays(array.run_ends, pa.arange(0, len(array.run_ends)))
    return pc.run_end_decode(numbers.slice(array.offset, len(array)))


def _offsets(lengths: pa.Array) -> pa.Array:
    ends = pc.cumulative_sum_checked(lengths.cast(pa.int32()))  # fails if the lists are too long for one array
    return pa.concat_arrays([pa.array([0], pa.int32()), ends])


def _plain_map(array: pa.Array, target: pa.MapType) -> pa.Array:
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    keys, items = (plain_array(part.slice(first, last - first)) for part in (array.keys, array.items))
    starts = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
    return pa.MapArray.from_arrays(starts, keys, items, type=target, mask=_nulls(array))
