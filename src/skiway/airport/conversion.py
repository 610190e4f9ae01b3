"""Rows as clients send them, in the types a table keeps.

The Arrow types of what DuckDB sends follow the settings of its session, not the table: a UUID comes as text or as 16
bytes, a HUGEINT as decimal or as opaque bytes, a BOOLEAN as bits or as `arrow.bool8`, and so on, differently from one
statement to the next. `to_column` takes any of these forms for any column and loses nothing.

Bytes under NULLs are arbitrary. So whatever is not in its type already is converted without its NULLs, which are put
back afterwards; nested values the same way, level by level.
"""

from __future__ import annotations

import sys
from array import array as numbers
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.wire.duckdb_sql import duckdb_type, extension_of
from skiway.errors import InvalidArgument

__all__ = ["offsets_of", "present", "spread", "storable", "to_column"]

_HUGE: Final = pa.decimal128(38, 0)
_UTC: Final = 57599  # how DuckDB's TIMETZ says "no offset" in its lower 24 bits
_UUID_TEXT: Final = "^[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}$"

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("the layouts of DuckDB's types are little-endian, and so must this machine be")


class _DoesNotFit(Exception):
    """Why values cannot be converted exactly."""


def to_column(array: pa.Array, field: pa.Field) -> pa.Array:
    """The values of `array` in the type of `field`, exactly; `InvalidArgument` where that cannot be."""
    try:
        return _converted(array, field.type)
    except (_DoesNotFit, pa.ArrowException) as error:
        raise InvalidArgument(
            f"column {field.name!r} takes {duckdb_type(field)}, and this {array.type} cannot be made one without loss: "
            f"{str(error).splitlines()[0]}"
        ) from error


# -- the walk ---------------------------------------------------------------------------------------------------------


def _converted(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if source.equals(target):
        return array
    if pa.types.is_null(source):
        return pa.nulls(len(array), target)
    if pa.types.is_null(target):
        return _only_nulls(array)
    if pa.types.is_string_view(source) or pa.types.is_binary_view(source):  # Arrow can do little with views
        return _converted(array.cast(pa.large_string() if _is_text(source) else pa.large_binary()), target)
    if array.null_count:
        return spread(_converted(present(array), target), array.is_valid())
    if pa.types.is_dictionary(source):
        return _converted(array.dictionary_decode(), target)
    if pa.types.is_run_end_encoded(source):
        return _converted(pc.run_end_decode(array), target)
    if isinstance(target, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(target, _storage_of(array, target))
    if isinstance(source, pa.BaseExtensionType):
        return _converted(_without_extension(array, target), target)
    if pa.types.is_dictionary(target):
        return _encoded(_converted(array, target.value_type), target)
    return _plain(array, target)


def _only_nulls(array: pa.Array) -> pa.Array:
    if not pc.all(array.is_null(), min_count=0).as_py():
        raise _DoesNotFit("the column has the type NULL and takes nothing else")
    return pa.nulls(len(array))


def present(array: pa.Array) -> pa.Array:
    """The values that are not NULL."""
    return array.filter(array.is_valid())  # `drop_null` fails where an extension type is nested and all is NULL


def spread(values: pa.Array, valid: pa.BooleanArray) -> pa.Array:
    """`values` at the places that are `valid`, NULL at the others."""
    if not len(values):
        return pa.nulls(len(valid), values.type)
    places = pc.indices_nonzero(valid).cast(pa.int64())  # a scatter takes signed numbers only
    return pc.scatter(values, places, max_index=len(valid) - 1)


def _encoded(values: pa.Array, target: pa.DictionaryType) -> pa.Array:
    encoded = values.dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(target.index_type), encoded.dictionary)


def _plain(array: pa.Array, target: pa.DataType) -> pa.Array:
    """From one type without extension to another; `array` holds no NULLs at its top."""
    types = pa.types
    if types.is_struct(target) and types.is_struct(array.type):
        return _struct(array, target)
    if types.is_map(target) and types.is_map(array.type):
        return _map(array, target)
    if types.is_union(target) and types.is_union(array.type):
        return _union(array, target)
    if _is_list(target) and _is_list(array.type):
        return _list(array, target)
    if types.is_duration(array.type) and target == pa.month_day_nano_interval():
        return _interval(array)
    return _cast(array, target)


# -- single values ----------------------------------------------------------------------------------------------------


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    types = pa.types
    source = array.type
    if types.is_timestamp(source) and types.is_timestamp(target) and bool(source.tz) != bool(target.tz):
        raise _DoesNotFit("whether there is a time zone differs; convert it with AT TIME ZONE")
    if types.is_integer(source) and types.is_decimal(target):
        array = array.cast(_HUGE)  # Arrow judges by the type's range otherwise, not by the values
    cast = array.cast(target)
    if not _is_text(source) and not _same(cast.cast(array.type), array):
        raise _DoesNotFit("some values would change")
    return cast


def _is_text(data_type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(data_type) or pa.types.is_large_string(data_type) or pa.types.is_string_view(data_type)
    )


def _same(one: pa.Array, other: pa.Array) -> bool:
    if one.equals(other):
        return True
    if not pa.types.is_floating(one.type):
        return False
    nan = pc.and_(pc.is_nan(one), pc.is_nan(other))
    return bool(pc.all(pc.or_(nan, pc.equal(one, other)), min_count=0).as_py())


def _interval(durations: pa.Array) -> pa.Array:
    """Durations as months, days and nanoseconds, the first two zero."""
    nanoseconds = durations.cast(pa.duration("ns")).cast(pa.int64())
    halves = numbers("q", bytes(16 * len(nanoseconds)))
    offset = nanoseconds.offset * 8
    halves[1::2] = numbers("q", nanoseconds.buffers()[1].to_pybytes()[offset : offset + 8 * len(nanoseconds)])
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(nanoseconds), [None, pa.py_buffer(halves)])


# -- extension types --------------------------------------------------------------------------------------------------


def _name(data_type: pa.DataType) -> str:
    """The extension's name; for DuckDB's own types the name of the type."""
    if isinstance(data_type, pa.OpaqueType) and data_type.vendor_name == "DuckDB":
        return str(data_type.type_name)
    return extension_of(pa.field("", data_type))[0]


def _storage_of(array: pa.Array, target: pa.BaseExtensionType) -> pa.Array:
    """What is below the extension type that `array` is to have."""
    name, source = _name(target), array.type
    if name == _name(source):
        return _converted(array.storage, target.storage_type)
    make = _INTO.get(name)
    if make is None and isinstance(source, pa.BaseExtensionType):
        return _converted(_without_extension(array, target.storage_type), target.storage_type)
    return _converted(make(array) if make else array, target.storage_type)


def _without_extension(array: pa.Array, target: pa.DataType) -> pa.Array:
    open_up = _OUT_OF.get(_name(array.type))
    return open_up(array.storage, target) if open_up else array.storage


def _uuid_bytes(array: pa.Array) -> pa.Array:
    if not _is_text(array.type):
        return array
    if not pc.all(pc.match_substring_regex(array, _UUID_TEXT), min_count=0).as_py():
        raise _DoesNotFit("some texts are no UUIDs such as 123e4567-e89b-12d3-a456-426614174000")
    digits = pc.replace_substring(array.cast(pa.large_string()), "-", "")
    text = digits.buffers()[2].slice(0, 32 * len(digits)) if len(digits) else b""  # fresh from a kernel: no offset
    return _fixed(bytes.fromhex(str(text, "ascii")), 16)


def _uuid_text(storage: pa.Array, target: pa.DataType) -> pa.Array:
    if not _is_text(target):
        return storage
    start = storage.offset * 16
    digits = storage.buffers()[1].to_pybytes()[start : start + 16 * len(storage)].hex().encode()
    texts = _fixed(digits, 32).cast(pa.string())
    return pc.replace_substring_regex(texts, "^(.{8})(.{4})(.{4})(.{4})(.{12})$", r"\1-\2-\3-\4-\5")


def _fixed(data: bytes, width: int) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(width), len(data) // width, [None, pa.py_buffer(data)])


def _huge(signed: bool) -> Callable[[pa.Array], pa.Array]:
    def make(array: pa.Array) -> pa.Array:
        if _name(array.type) in ("hugeint", "uhugeint"):  # the other one: its upper half is out of our range
            return _lower_half(array.storage)
        if array.type == pa.binary(16):
            return array
        if array.type == _HUGE:  # DuckDB's own form: the same 128 bits, whatever they would mean as a decimal
            return array.view(pa.binary(16))
        whole = _converted(array, _HUGE)
        if not signed and len(whole) and pc.min(whole).as_py() < 0:
            raise _DoesNotFit("some numbers are negative")
        return whole.view(pa.binary(16))

    return make


def _lower_half(storage: pa.Array) -> pa.Array:
    if pc.any(pc.greater_equal(pc.binary_slice(storage.cast(pa.binary()), 15, 16), b"\x80"), min_count=0).as_py():
        raise _DoesNotFit("some numbers are out of its range")
    return storage


def _decimal(storage: pa.Array, _: pa.DataType) -> pa.Array:
    decimal = storage.view(_HUGE)
    most = 10**38 - 1  # 128 bits hold more than 38 digits do
    for bound, beyond in ((most, pc.greater), (-most, pc.less)):
        if pc.any(beyond(decimal, pa.scalar(bound, _HUGE)), min_count=0).as_py():
            raise _DoesNotFit("some numbers have more than 38 digits")
    return decimal


def _unsigned_decimal(storage: pa.Array, target: pa.DataType) -> pa.Array:
    return _decimal(_lower_half(storage), target)


def _time_tz(array: pa.Array) -> pa.Array:
    if not pa.types.is_time(array.type):
        return array
    micros = _converted(array, pa.time64("us")).cast(pa.int64()).cast(pa.uint64())
    packed = pc.add(pc.shift_left(micros, pa.scalar(24, pa.uint64())), pa.scalar(_UTC, pa.uint64()))
    return packed.view(pa.binary(8))


def _time(storage: pa.Array, target: pa.DataType) -> pa.Array:
    if not pa.types.is_time(target):
        return storage
    packed = storage.view(pa.uint64())
    offsets = pc.bit_wise_and(packed, pa.scalar((1 << 24) - 1, pa.uint64()))
    if not pc.all(pc.equal(offsets, pa.scalar(_UTC, pa.uint64())), min_count=0).as_py():
        raise _DoesNotFit("some times have an offset from UTC")
    return pc.shift_right(packed, pa.scalar(24, pa.uint64())).cast(pa.int64()).cast(pa.time64("us"))


def _bits(array: pa.Array) -> pa.Array:
    if _is_text(array.type):
        raise _DoesNotFit("it comes as bytes, the first of which counts the padding bits")
    return array


def _truth(storage: pa.Array, _: pa.DataType) -> pa.Array:
    return pc.not_equal(storage, pa.scalar(0, pa.int8()))


# How the storage of an extension type is made of other types.
_INTO: Final[dict[str, Callable[[pa.Array], pa.Array]]] = {
    "arrow.uuid": _uuid_bytes,
    "hugeint": _huge(signed=True),
    "uhugeint": _huge(signed=False),
    "time_tz": _time_tz,
    "bit": _bits,
    "bignum": _bits,
}
# What the storage of an extension type becomes for a column without it.
_OUT_OF: Final[dict[str, Callable[[pa.Array, pa.DataType], pa.Array]]] = {
    "arrow.uuid": _uuid_text,
    "hugeint": _decimal,
    "uhugeint": _unsigned_decimal,
    "time_tz": _time,
    "arrow.bool8": _truth,
}


# -- nested values ----------------------------------------------------------------------------------------------------


def _is_list(data_type: pa.DataType) -> bool:
    """Whether it is a list of any kind, maps aside."""
    types = pa.types
    return bool(
        types.is_list(data_type)
        or types.is_large_list(data_type)
        or types.is_fixed_size_list(data_type)
        or types.is_list_view(data_type)
        or types.is_large_list_view(data_type)
    )


def _list(array: pa.Array, target: Any) -> pa.Array:
    values = _converted(array.flatten(), target.value_type)
    lengths = pc.list_value_length(array)
    if pa.types.is_fixed_size_list(target):
        if not pc.all(pc.equal(lengths, target.list_size), min_count=0).as_py():
            raise _DoesNotFit(f"some lists do not have {target.list_size} elements")
        return pa.FixedSizeListArray.from_arrays(values, type=target)
    large = pa.types.is_large_list(target)
    offsets = offsets_of(lengths.cast(pa.int64() if large else pa.int32()))
    return (pa.LargeListArray if large else pa.ListArray).from_arrays(offsets, values, type=target)


def offsets_of(lengths: pa.Array) -> pa.Array:
    """Where lists of these lengths begin and end, laid end to end."""
    return pa.concat_arrays([pa.array([0], lengths.type), pc.cumulative_sum_checked(lengths)])


def _struct(array: pa.Array, target: pa.StructType) -> pa.Array:
    given = [field.name for field in array.type]
    if sorted(given) != sorted(field.name for field in target):
        raise _DoesNotFit(f"its members are {', '.join(map(repr, given))}")
    parts = dict(zip(given, array.flatten(), strict=True))
    children = [_converted(parts[field.name], field.type) for field in target]
    return pa.StructArray.from_arrays(children, fields=list(target))


def _map(array: pa.Array, target: pa.MapType) -> pa.Array:
    offsets = array.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    keys = _converted(array.keys.slice(first, last - first), target.key_type)
    items = _converted(array.items.slice(first, last - first), target.item_type)
    return pa.MapArray.from_arrays(pc.subtract(offsets, offsets[0]), keys, items, type=target)


def _union(array: pa.Array, target: pa.UnionType) -> pa.Array:
    names = [field.name for field in target]
    if array.type.mode != "sparse" or [field.name for field in array.type] != names:
        raise _DoesNotFit(f"its members must be {', '.join(map(repr, names))}, in a sparse union")
    array = array.take(pa.arange(0, len(array))) if array.offset else array  # a slice still shows all its type codes
    codes = array.type_codes
    children = [
        spread(_converted(array.field(i).filter(chosen), target.field(i).type), chosen)
        for i, code in enumerate(array.type.type_codes)
        for chosen in [pc.equal(codes, pa.scalar(code, pa.int8()))]
    ]
    members = pc.index_in(codes, pa.array(array.type.type_codes, pa.int8()))
    return pa.UnionArray.from_sparse(
        pa.array(target.type_codes, pa.int8()).take(members), children, names, target.type_codes
    )


# --------------------
# Which type a column should have, so that it takes every form in which clients send its values.
#
# DuckDB knows fewer types than Arrow: views, run-ends and durations come back as strings, plain values and intervals. And
# a dictionary that was made for few members must take more, since the client takes it for a column of texts.


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
