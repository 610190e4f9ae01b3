"""How Spark reads, hashes and orders the values of each type, and how they are formatted as text."""

from __future__ import annotations

import base64
import uuid
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.canonical import canonical_columns, logical_type
from skiway.formats.schemas import with_id
from skiway.formats.statistics import bound_type, column_stats, stats_struct


@dataclass(frozen=True, slots=True)
class ValueKind:
    """How Spark processes the values of a column, as SQL in which `{v}` is a value of the Spark type `sql`.

    `hashed` is the input of the theta sketch, and `domain` names its form: sketches of different domains cannot be merged.
    `number` is the input of the KLL sketch, as a double. `width` is the size of a value in bytes, if all have the same.
    Frequent values are computed only if `ranked`: measurements and timestamps rarely repeat, and finding frequent ones is
    expensive. `as_iceberg` says whether Iceberg hashes the same bytes.

    Stored profiles of versions before `since` have wrong figures of such columns, so these files are read again. A fix of what is
    computed per file sets it to the new `CURRENT_VERSION` of the metastore's statistics.
    """

    sql: str
    domain: str
    hashed: str
    number: str | None = None
    width: int | None = None
    ranked: bool = True
    has_nan: bool = False
    as_iceberg: bool = True
    since: int = 0


# Iceberg hashes its single-value serialization, in which an int is four bytes in little-endian order. Spark casts an int
# to bytes in big-endian order, so the bytes are reversed first.
_REVERSED_BYTES: Final = (
    "CAST(shiftleft({n}, 24) | shiftleft({n} & 65280, 8) | (shiftrightunsigned({n}, 8) & 65280) "
    "| shiftrightunsigned({n}, 24) AS BINARY)"
)
_SMALL_INTS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_SPARK_TYPES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.uint8(): "SMALLINT",
    pa.uint16(): "INT",
    pa.uint32(): "BIGINT",
    pa.uint64(): "DECIMAL(20,0)",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.binary(): "BINARY",
}
_FIRST_NANO, _LAST_NANO = -(2**63), 2**63 - 1
_MICROS: Final = "unix_micros(CAST({v} AS TIMESTAMP))"


def value_kind(of: pa.DataType) -> ValueKind | None:
    """How Spark processes a column of this type; None if it cannot read the type."""
    of = storage_type_of(of)
    if pa.types.is_boolean(of):
        return ValueKind("BOOLEAN", "boolean", "CASE WHEN {v} THEN X'01' WHEN NOT {v} THEN X'00' END", width=1)
    if of in _SMALL_INTS:
        return ValueKind("INT", "int", _REVERSED_BYTES.format(n="{v}"), number="{v}", width=4)
    if of in (pa.int64(), pa.uint32()):
        return ValueKind("BIGINT", "long", "{v}", number="{v}", width=8)
    if of == pa.float32():
        # As a double: the column may be widened to one, and SQL cannot produce Iceberg's bytes of a float.
        return ValueKind(
            "FLOAT",
            "double",
            "CAST({v} AS DOUBLE)",
            number="{v}",
            width=4,
            ranked=False,
            has_nan=True,
            as_iceberg=False,
        )
    if of == pa.float64():
        return ValueKind("DOUBLE", "double", "{v}", number="{v}", width=8, ranked=False, has_nan=True)
    if pa.types.is_date(of):
        return ValueKind("DATE", "int", _REVERSED_BYTES.format(n="unix_date({v})"), number="unix_date({v})", width=4)
    if pa.types.is_timestamp(of) and of.unit != "ns":
        sql = "TIMESTAMP" if of.tz else "TIMESTAMP_NTZ"
        return ValueKind(sql, "long", _MICROS, number=_MICROS, width=8, ranked=False)
    if pa.types.is_timestamp(of) or pa.types.is_time(of):  # as numbers, because Spark does not have these types
        fine = of.unit == "ns"
        domain = "nanos" if fine else "long"
        return ValueKind("BIGINT", domain, "{v}", number="{v}", width=8, ranked=False, as_iceberg=not fine)
    return _kind_of_bytes(of)


def _kind_of_bytes(of: pa.DataType) -> ValueKind | None:
    """The kinds whose sketches hash strings or bytes."""
    if of == pa.uint64():
        of = pa.decimal128(20, 0)
    if pa.types.is_decimal(of) and of.precision <= 38:
        sql = f"DECIMAL({of.precision},{of.scale})"
        return ValueKind(sql, f"decimal.{of.scale}", "CAST({v} AS STRING)", number="{v}", width=16, as_iceberg=False)
    if pa.types.is_string(of):
        return ValueKind("STRING", "string", "{v}")
    if pa.types.is_binary(of):
        return ValueKind("BINARY", "binary", "{v}", ranked=False)
    if pa.types.is_fixed_size_binary(of):
        return ValueKind("BINARY", "binary", "{v}", ranked=False, width=of.byte_width)
    return None


def spark_type(of: pa.DataType) -> str | None:
    """The Spark type to read a column of a file as; times and nanosecond timestamps are read as numbers."""
    of = storage_type_of(of)
    if pa.types.is_decimal(of) and of.precision <= 38:
        return f"DECIMAL({of.precision},{of.scale})"
    if pa.types.is_date(of):
        return "DATE"
    if pa.types.is_timestamp(of) and of.unit != "ns":
        return "TIMESTAMP" if of.tz else "TIMESTAMP_NTZ"
    if pa.types.is_time(of):
        return "INT" if of.bit_width == 32 else "BIGINT"
    if pa.types.is_timestamp(of):
        return "BIGINT"
    return "BINARY" if pa.types.is_fixed_size_binary(of) else _SPARK_TYPES.get(of)


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
