"""How the values of each type are processed, and how they are formatted as text."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.canonical import canonical_columns, logical_type
from skiway.formats.schemas import Leaf, with_id
from skiway.formats.statistics import bound_type, column_stats, stats_struct


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How the values of a column are processed: as values of the Arrow type `type`.

    `domain` names what the theta sketch hashes: sketches of different domains cannot be merged. If a value `is_number`, or can be
    counted as one, it is in the KLL sketch. `width` is the size of a value in bytes, if all have the same.
    Frequent values are computed only if `ranked`: measurements and timestamps rarely repeat, and finding frequent ones is
    expensive. `as_iceberg` says whether Iceberg hashes the same bytes.

    Stored profiles of versions before `since` have wrong figures of such columns, so these files are read again. A fix of what is
    computed per file sets it to the new `CURRENT_VERSION` of the metastore's statistics.
    """

    type: pa.DataType
    domain: str
    width: int | None = None
    is_number: bool = True
    ranked: bool = True
    has_nan: bool = False
    as_iceberg: bool = True
    since: int = 0

    @property
    def unit(self) -> str:
        """The unit in which times are processed as numbers."""
        return "ns" if self.domain == "nanos" else "us"


_SMALL_INTS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_FIRST_NANO, _LAST_NANO = -(2**63), 2**63 - 1


def value_kind(of: pa.DataType) -> ValueKind | None:
    """How a column of this type is processed; None if it is not."""
    of = storage_type_of(of)
    if pa.types.is_boolean(of):
        return ValueKind(of, "boolean", width=1, is_number=False)
    if of in _SMALL_INTS:
        return ValueKind(pa.int32(), "int", width=4)
    if of in (pa.int64(), pa.uint32()):
        return ValueKind(pa.int64(), "long", width=8)
    if of == pa.float32():
        # It is hashed as a double, because the column may be widened to one.
        return ValueKind(of, "double", width=4, ranked=False, has_nan=True, as_iceberg=False)
    if of == pa.float64():
        return ValueKind(of, "double", width=8, ranked=False, has_nan=True)
    if pa.types.is_date(of):
        return ValueKind(pa.date32(), "int", width=4)
    if pa.types.is_timestamp(of) and of.unit != "ns":
        return ValueKind(pa.timestamp("us", "UTC" if of.tz else None), "long", width=8, ranked=False)
    if pa.types.is_timestamp(of) or pa.types.is_time(of):  # as numbers
        fine = of.unit == "ns"
        return ValueKind(pa.int64(), "nanos" if fine else "long", width=8, ranked=False, as_iceberg=not fine)
    return _kind_of_bytes(of)


def _kind_of_bytes(of: pa.DataType) -> ValueKind | None:
    """The kinds whose sketches hash strings or bytes."""
    if of == pa.uint64():
        of = pa.decimal128(20, 0)
    if pa.types.is_decimal(of) and of.precision <= 38:
        return ValueKind(pa.decimal128(of.precision, of.scale), f"decimal.{of.scale}", width=16, as_iceberg=False)
    if pa.types.is_string(of):
        return ValueKind(of, "string", is_number=False)
    if pa.types.is_binary(of):
        return ValueKind(of, "binary", is_number=False, ranked=False)
    if pa.types.is_fixed_size_binary(of):
        return ValueKind(pa.binary(), "binary", width=of.byte_width, is_number=False, ranked=False)
    return None


def kind_of(leaf: Leaf) -> ValueKind:
    """The kind of the values of a column that is profiled."""
    kind = value_kind(leaf.type)
    assert kind is not None
    return kind


def quoted(name: str) -> str:
    """Quote a name for SQL."""
    return "`" + name.replace("`", "``") + "`"


def storage_type_of(of: pa.DataType) -> pa.DataType:
    """The storage type in which values of a column are processed."""
    return pa.binary(16) if of == pa.uuid() else bound_type(of)


def texts(values: pa.Array, of: pa.DataType, *, up: bool = False) -> pa.Array:
    """Format values of a column of type `of` in the canonical text form of bounds; NaN becomes NULL.

    Nanoseconds are rounded down to microseconds, or `up`.
    """
    kind = logical_type(of)
    if not kind:
        return pa.nulls(len(values), pa.string())
    plain = pa.binary() if kind == "BINARY" else pa.decimal128(20, 0) if of == pa.uint64() else storage_type_of(of)
    side = "max" if up else "min"
    stats = column_stats(plain, len(values), **{side: values.cast(plain)})
    files = pa.table({"stats": stats_struct({1: stats}, len(values))})
    schema = pa.schema([with_id(pa.field("value", pa.uuid() if kind == "UUID" else plain), 1)])
    return canonical_columns(files, schema).flatten().field(side)


def parsed(text: pa.Array, of: pa.DataType) -> pa.Array:
    """Parse values that `texts` has formatted."""
    of, kind = storage_type_of(of), logical_type(of)
    if pa.types.is_time(of):
        timestamps = pc.binary_join_element_wise("1970-01-01", text, "T").cast(pa.timestamp("us"))
        return timestamps.cast(pa.time64("us")).cast(of)
    if kind in ("BINARY", "UUID"):
        return pa.array([None if value is None else _bytes(value, kind) for value in text.to_pylist()], of)
    if pa.types.is_timestamp(of):
        # Bounds of a column that used to be a date or a timestamp without time zone are in UTC.
        timestamps = pc.replace_substring_regex(text, "Z$", "").cast(pa.timestamp("us"))
        if of.unit == "ns":
            return _nanos(timestamps.cast(pa.int64())).cast(of)
        return timestamps.cast(pa.timestamp(of.unit)).cast(pa.int64()).cast(of)
    return text.cast(of)


def _nanos(micros: pa.Array) -> pa.Array:
    """Microseconds in nanoseconds. Bounds rounded beyond the first or last nanosecond become these."""
    fits = pc.and_(pc.greater_equal(micros, _FIRST_NANO // 1000 + 1), pc.less_equal(micros, _LAST_NANO // 1000))
    limit = pc.if_else(pc.less(micros, 0), _FIRST_NANO, _LAST_NANO)
    return pc.if_else(fits, pc.multiply(pc.if_else(fits, micros, 0), 1000), limit)


def is_exact_as_text(value: pa.Array, text: pa.Array, of: pa.DataType) -> pa.Array:
    """Is the text that `texts` made of each value that value? Nanoseconds are rounded; NULL where there is no value."""
    if pa.types.is_timestamp(value.type) and value.type.unit == "ns":
        nanos = value.cast(pa.int64())
        return pc.equal(nanos, pc.multiply(pc.divide(nanos, 1000), 1000))
    return pc.equal(parsed(text, of), value)


def _bytes(text: str, kind: str) -> bytes:
    return uuid.UUID(text).bytes if kind == "UUID" else base64.b64decode(text)
