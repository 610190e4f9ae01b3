"""Converts Arrow data: to the plain layout of its type, and to the types of the columns that store it.

Arrow has several layouts for the same values: views, large offsets, dictionaries, run ends, kinds of lists. Columns of lake
tables have one *plain* layout: strings, bytes and lists with 32-bit offsets, and values as they are. Arrow supports few
operations on the other layouts.

The types DuckDB sends depend on the settings of its session, not on the table: a UUID arrives as a string or as 16 bytes,
a HUGEINT as a decimal or as opaque bytes, a BOOLEAN as bits or as `arrow.bool8`, and so on, even within a session.
`to_column` accepts all of these forms and converts them without loss. `storable` chooses the type of a stored column so
that it accepts every form.

The bytes under NULLs are arbitrary. Values that need a conversion are therefore converted without the NULLs, which are put
back afterwards. Nested values are converted in the same way, level by level.
"""

from __future__ import annotations

import sys
from array import array as numbers
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.wire.duckdb_sql import duckdb_type, extension_of, storage_type
from skiway.errors import InvalidArgument

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
        children = [plain_array(array.field(index)) for index in range(of.num_fields)]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=_nulls(array))
    if types.is_map(of):
        return _plain_map(array, target)
    if is_list(of):
        offsets = list_offsets(pc.list_value_length(array).fill_null(0).cast(pa.int32()))
        return pa.ListArray.from_arrays(offsets, plain_array(list_values(array)), type=target, mask=_nulls(array))
    return array.cast(target)


def without_views(array: pa.Array) -> pa.Array:
    """`array`, in the plain layout if its own has views or run ends.

    Arrow cannot take rows of views, cannot cast run ends, and casts list views wrongly.
    """
    return plain_array(array) if _has_views(array.type) else array


def cast_array(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast an array, extension types by their storage; an error of Arrow if a value does not fit."""
    if array.type == target:
        return array
    storage = storage_type(target)
    plain = without_views(array.storage if isinstance(array, pa.ExtensionArray) else array)
    if plain.type != storage and isinstance(plain, pa.DictionaryArray):  # Arrow cannot cast it in every case
        plain = plain.dictionary_decode()
        plain = plain.storage if isinstance(plain, pa.ExtensionArray) else plain
    plain = plain if plain.type == storage else plain.cast(storage)
    return pa.ExtensionArray.from_storage(target, plain) if isinstance(target, pa.BaseExtensionType) else plain


def _has_views(of: pa.DataType) -> bool:
    if of in (pa.string_view(), pa.binary_view()) or isinstance(of, _VIEWS):
        return True
    if pa.types.is_dictionary(of):
        return _has_views(of.value_type)
    return any(_has_views(of.field(index).type) for index in range(of.num_fields))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _runs(array: pa.Array) -> pa.Array:
    """The number of the run that each value of a run-end encoded array belongs to."""
    numbers = pa.RunEndEncodedArray.from_arrays(array.run_ends, pa.arange(0, len(array.run_ends)))
    return pc.run_end_decode(numbers.slice(array.offset, len(array)))


def _plain_map(array: pa.Array, target: pa.MapType) -> pa.Array:
    first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
    keys, items = (plain_array(part.slice(first, last - first)) for part in (array.keys, array.items))
    starts = pc.subtract(array.offsets, pa.scalar(first, pa.int32()))
    return pa.MapArray.from_arrays(starts, keys, items, type=target, mask=_nulls(array))


_HUGE: Final = pa.decimal128(38, 0)
_STRINGS: Final = (pa.string(), pa.large_string(), pa.string_view())
_TIMETZ_UTC: Final = 57599  # the lower 24 bits of a TIMETZ without offset from UTC
_UUID_TEXT: Final = "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("DuckDB's types are little-endian, and this machine is not")


class _Lossy(Exception):
    """The values cannot be converted exactly. The message says why."""


def to_column(array: pa.Array, field: pa.Field) -> pa.Array:
    """Convert `array` to the type of `field` without loss; `InvalidArgument` if that is impossible."""
    try:
        return _convert(array, field.type)
    except (_Lossy, pa.ArrowException) as error:
        source = duckdb_type(pa.field("", array.type)) if isinstance(array.type, pa.BaseExtensionType) else array.type
        raise InvalidArgument(
            f"column {field.name!r} has type {duckdb_type(field)}, and {source} cannot be converted to it without loss: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _convert(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if source.equals(target):
        return array
    if pa.types.is_null(source):
        return pa.nulls(len(array), target)
    if pa.types.is_null(target):
        return _only_nulls(array)
    plain = without_views(array)  # Arrow supports few operations on the other layouts
    if plain is not array:
        return _convert(plain, target)
    if array.null_count:
        return scatter_valid(_convert(drop_nulls(array), target), array.is_valid())
    if pa.types.is_dictionary(source):
        return _convert(array.dictionary_decode(), target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, _to_storage(array, target))
    if isinstance(source, pa.BaseExtensionType):
        return _convert(_unwrap(array, target), target)
    if pa.types.is_dictionary(target):
        return _to_dictionary(_convert(array, target.value_type), target)
    return _convert_plain(array, target)


def _only_nulls(array: pa.Array) -> pa.Array:
    if not pc.all(array.is_null(), min_count=0).as_py():
        raise _Lossy("a column of type NULL accepts only NULL")
    return pa.nulls(len(array))


def drop_nulls(array: pa.Array) -> pa.Array:
    """The values of `array` that are not NULL."""
    return array.filter(array.is_valid())  # pyarrow's drop_null fails for nested extension types if all values are NULL


def scatter_valid(values: pa.Array, valid: pa.BooleanArray) -> pa.Array:
    """An array with `values` at the positions where `valid` is true, and NULL elsewhere."""
    if not len(values):
        return pa.nulls(len(valid), values.type)
    positions = pc.indices_nonzero(valid).cast(pa.int64())  # pc.scatter requires signed indices
    return pc.scatter(values, positions, max_index=len(valid) - 1)


def _to_dictionary(values: pa.Array, target: pa.DictionaryType) -> pa.Array:
    encoded = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(target.index_type), encoded.dictionary)


def _convert_plain(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Convert between types that are not extension types. `array` has no NULLs at the top level."""
    types = pa.types
    if types.is_struct(target) and types.is_struct(array.type):
        return _convert_struct(array, target)
    if types.is_map(target) and types.is_map(array.type):
        return _convert_map(array, target)
    if types.is_union(target) and types.is_union(array.type):
        return _convert_union(array, target)
    if isinstance(target, _LISTS) and isinstance(array.type, _LISTS):
        return _convert_list(array, target)
    if types.is_duration(array.type) and target == pa.month_day_nano_interval():
        return _to_interval(array)
    return _cast(array, target)


# -- single values ----------------------------------------------------------------------------------------------------


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    types = pa.types
    source = array.type
    if types.is_timestamp(source) and types.is_timestamp(target) and bool(source.tz) != bool(target.tz):
        raise _Lossy("one has a time zone and the other does not; convert with AT TIME ZONE")
    if types.is_integer(source) and types.is_decimal(target):
        array = array.cast(_HUGE)  # otherwise Arrow checks the range of the type, not the values
    cast = array.cast(target)
    if source not in _STRINGS and not _equal(cast.cast(array.type), array):
        raise _Lossy("some values would change")
    return cast


def _equal(one: pa.Array, other: pa.Array) -> bool:
    if one.equals(other) or not pa.types.is_floating(one.type):
        return bool(one.equals(other))
    nan = pc.and_(pc.is_nan(one), pc.is_nan(other))
    return bool(pc.all(pc.or_(nan, pc.equal(one, other)), min_count=0).as_py())


def _to_interval(durations: pa.Array) -> pa.Array:
    """Convert durations to intervals with zero months and zero days."""
    nanoseconds = durations.cast(pa.duration("ns")).cast(pa.int64())
    halves = numbers("q", bytes(16 * len(nanoseconds)))
    offset = nanoseconds.offset * 8
    halves[1::2] = numbers("q", nanoseconds.buffers()[1].to_pybytes()[offset : offset + 8 * len(nanoseconds)])
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(nanoseconds), [None, pa.py_buffer(halves)])


# -- extension types --------------------------------------------------------------------------------------------------


def _extension_name(data_type: pa.DataType) -> str:
    """The name of an extension type, or of DuckDB's type for an opaque one; "" for other types."""
    if isinstance(data_type, pa.OpaqueType) and data_type.vendor_name == "DuckDB":
        return str(data_type.type_name)
    return extension_of(pa.field("", data_type))[0]


def _to_storage(array: pa.Array, target: pa.BaseExtensionType) -> pa.Array:
    """Convert `array` to the storage of the extension type `target`."""
    name, source = _extension_name(target), array.type
    if name == _extension_name(source):
        return _convert(array.storage, target.storage_type)
    make = _TO_STORAGE.get(name)
    if make is None and isinstance(source, pa.BaseExtensionType):
        return _convert(_unwrap(array, target.storage_type), target.storage_type)
    return _convert(make(array) if make else array, target.storage_type)


def _unwrap(array: pa.Array, target: pa.DataType) -> pa.Array:
    unwrap = _FROM_STORAGE.get(_extension_name(array.type))
    return unwrap(array.storage, target) if unwrap else array.storage


def _to_uuid(array: pa.Array) -> pa.Array:
    if array.type not in _STRINGS:
        return array
    if not pc.all(pc.match_substring_regex(array, _UUID_TEXT), min_count=0).as_py():
        raise _Lossy("some strings are not UUIDs such as 123e4567-e89b-12d3-a456-426614174000")
    digits = pc.replace_substring(array.cast(pa.large_string()), "-", "")
    text = digits.buffers()[2].slice(0, 32 * len(digits)) if len(digits) else b""  # a new array has no offset
    return _fixed_size_binary(bytes.fromhex(str(text, "ascii")), 16)


def _from_uuid(storage: pa.Array, target: pa.DataType) -> pa.Array:
    if target not in _STRINGS:
        return storage
    start = storage.offset * 16
    digits = storage.buffers()[1].to_pybytes()[start : start + 16 * len(storage)].hex().encode()
    texts = _fixed_size_binary(digits, 32).cast(pa.string())
    return pc.replace_substring_regex(texts, "^(.{8})(.{4})(.{4})(.{4})(.{12})$", r"\1-\2-\3-\4-\5")


def _fixed_size_binary(data: bytes, width: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])


def _to_hugeint(signed: bool) -> Callable[[pa.Array], pa.Array]:
    def make(array: pa.Array) -> pa.Array:
        if _extension_name(array.type) in (
            "hugeint",
            "uhugeint",
        ):  # the other type: the upper half of its values is out of range
            return _lower_half(array.storage)
        if array.type == pa.binary(16):
            return array
        if array.type == _HUGE:  # the form DuckDB sends: 128 bits, even if they are not a valid decimal
            return array.view(pa.binary(16))
        whole = _convert(array, _HUGE)
        if not signed and len(whole) and pc.min(whole).as_py() < 0:
            raise _Lossy("some numbers are negative")
        return whole.view(pa.binary(16))

    return make


def _lower_half(storage: pa.Array) -> pa.Array:
    if pc.any(pc.greater_equal(pc.binary_slice(storage.cast(pa.binary()), 15, 16), b"\x80"), min_count=0).as_py():
        raise _Lossy("some numbers are out of range")
    return storage


def _from_hugeint(storage: pa.Array, _: pa.DataType) -> pa.Array:
    decimal = storage.view(_HUGE)
    most = 10**38 - 1  # 128 bits hold larger numbers
    for bound, beyond in ((most, pc.greater), (-most, pc.less)):
        if pc.any(beyond(decimal, pa.scalar(bound, _HUGE)), min_count=0).as_py():
            raise _Lossy("some numbers have more than 38 digits")
    return decimal


def _from_uhugeint(storage: pa.Array, target: pa.DataType) -> pa.Array:
    return _from_hugeint(_lower_half(storage), target)


def _to_time_tz(array: pa.Array) -> pa.Array:
    if not pa.types.is_time(array.type):
        return array
    micros = _convert(array, pa.time64("us")).cast(pa.int64()).cast(pa.uint64())
    packed = pc.add(pc.shift_left(micros, pa.scalar(24, pa.uint64())), pa.scalar(_TIMETZ_UTC, pa.uint64()))
    return packed.view(pa.binary(8))


def _from_time_tz(storage: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_time(target):
        return storage
    packed = storage.view(pa.uint64())
    offsets = pc.bit_wise_and(packed, pa.scalar((1 << 24) - 1, pa.uint64()))
    if not pc.all(pc.equal(offsets, pa.scalar(_TIMETZ_UTC, pa.uint64())), min_count=0).as_py():
        raise _Lossy("some times have an offset from UTC")
    return pc.shift_right(packed, pa.scalar(24, pa.uint64())).cast(pa.int64()).cast(pa.time64("us"))


def _require_bytes(array: pa.Array) -> pa.Array:
    if array.type in _STRINGS:
        raise _Lossy("the values must be bytes, the first of which is the number of padding bits")
    return array


def _from_bool8(storage: pa.Array, _: pa.DataType) -> pa.Array:
    ones = pc.equal(storage, pa.scalar(1, pa.int8()))
    if not pc.all(pc.or_(ones, pc.equal(storage, pa.scalar(0, pa.int8()))), min_count=0).as_py():
        raise _Lossy("some bytes are neither 0 nor 1")  # DuckDB sends those for nested values
    return ones


# Conversions of other types to the storage of an extension type.
_TO_STORAGE: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "arrow.uuid": _to_uuid,
    "hugeint": _to_hugeint(signed=True),
    "uhugeint": _to_hugeint(signed=False),
    "time_tz": _to_time_tz,
    "bit": _require_bytes,
    "bignum": _require_bytes,
}
# Conversions of the storage of an extension type to other types.
_FROM_STORAGE: Final[dict[str, Callable[[pa.Array, pa.DataType], pa.Array]]] = {
    "arrow.uuid": _from_uuid,
    "hugeint": _from_hugeint,
    "uhugeint": _from_uhugeint,
    "time_tz": _from_time_tz,
    "arrow.bool8": _from_bool8,
}


# -- nested values ----------------------------------------------------------------------------------------------------


def _convert_list(array: pa.Array, target: Any) -> pa.Array:
    values = _convert(array.flatten(), target.value_type)
    lengths = pc.list_value_length(array)
    if pa.types.is_fixed_size_list(target):
        if not pc.all(pc.equal(lengths, target.list_size), min_count=0).as_py():
            raise _Lossy(f"some lists do not have {target.list_size} elements")
        return pa.FixedSizeListArray.from_arrays(values, type=target)
    large = pa.types.is_large_list(target)
    offsets = list_offsets(lengths.cast(pa.int64() if large else pa.int32()))
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, values, type=target)


def list_offsets(lengths: pa.Array) -> pa.Array:
    """The offsets of consecutive lists with these lengths; an error of Arrow if the lists are too long for one array."""
    return pa.concat_arrays([pa.array([0], lengths.type), pc.cumulative_sum_checked(lengths)])


def _convert_struct(array: pa.Array, target: pa.StructType) -> pa.Array:
    names = [field.name for field in array.type]
    if sorted(names) != sorted(field.name for field in target):
        raise _Lossy(f"its fields are {', '.join(map(repr, names))}")
    parts = dict(zip(names, array.flatten(), strict=True))
    children = [_convert(parts[field.name], field.type) for field in target]
    return pa.StructArray.from_arrays(children, fields=list(target))


def _convert_map(array: pa.Array, target: pa.MapType) -> pa.Array:
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys = _convert(array.keys.slice(first, last - first), target.key_type)
    items = _convert(array.items.slice(first, last - first), target.item_type)
    return pa.MapArray.from_arrays(pc.subtract(offsets, offsets[0]), keys, items, type=target)


def _convert_union(array: pa.Array, target: pa.UnionType) -> pa.Array:
    names = [field.name for field in target]
    if array.type.mode != "sparse" or [field.name for field in array.type] != names:
        raise _Lossy(f"its members must be {', '.join(map(repr, names))}, in a sparse union")
    array = (
        array.take(pa.arange(0, len(array))) if array.offset else array
    )  # a slice has the type codes of the whole array
    codes = array.type_codes
    children = [
        scatter_valid(_convert(array.field(i).filter(chosen), target.field(i).type), chosen)
        for i, code in enumerate(array.type.type_codes)
        for chosen in [pc.equal(codes, pa.scalar(code, pa.int8()))]
    ]
    members = pc.index_in(codes, pa.array(array.type.type_codes, pa.int8()))
    return pa.UnionArray.from_sparse(
        pa.array(target.type_codes, pa.int8()).take(members), children, names, target.type_codes
    )


# -- types of stored columns ------------------------------------------------------------------------------------------


def storable(field: pa.Field) -> pa.Field:
    """`field` with a type for the same values that accepts every form in which clients send them.

    DuckDB has fewer types than Arrow: string views, run-end encodings and durations come back as strings, plain values
    and intervals. A dictionary must accept new members, because DuckDB sees a column of strings.
    """
    return field.with_type(_stored_column_type(field.type))


def _stored_column_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(data_type):  # with room for more members than its creator expected
        return pa.dictionary(pa.int32(), _stored_type(data_type.value_type))
    return (
        _stored_type(data_type)
        if not types.is_run_end_encoded(data_type)
        else _stored_column_type(data_type.value_type)
    )


def _stored_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_dictionary(data_type) or types.is_run_end_encoded(data_type):
        return _stored_type(data_type.value_type)
    if isinstance(data_type, pa.Bool8Type):
        return pa.bool_()
    if types.is_string_view(data_type):
        return pa.string()
    if types.is_binary_view(data_type):
        return pa.binary()
    if types.is_duration(data_type):  # DuckDB only has intervals
        return pa.month_day_nano_interval()
    return _stored_nested_type(data_type)


def _stored_nested_type(data_type: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_map(data_type):
        return pa.map_(_stored_field(data_type.key_field).with_nullable(False), _stored_field(data_type.item_field))
    if types.is_fixed_size_list(data_type):
        return pa.list_(_stored_field(data_type.value_field), data_type.list_size)
    if types.is_large_list(data_type) or types.is_large_list_view(data_type):
        return pa.large_list(_stored_field(data_type.value_field))
    if types.is_list(data_type) or types.is_list_view(data_type):
        return pa.list_(_stored_field(data_type.value_field))
    if types.is_struct(data_type):
        return pa.struct([_stored_field(field) for field in data_type])
    if types.is_union(data_type) and data_type.mode == "sparse":
        return pa.sparse_union([_stored_field(field) for field in data_type], type_codes=data_type.type_codes)
    return data_type


def _stored_field(field: pa.Field) -> pa.Field:
    return field.with_type(_stored_type(field.type)).with_nullable(True)
