"""How values of each type are read, hashed and ordered by Spark, and written down as text."""

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

__all__ = ["ValueKind", "kept_type", "parsed", "texts", "value_kind"]


@dataclass(frozen=True, slots=True)
class ValueKind:
    """What Spark does with the values of a column; `{v}` stands for a value of the Spark type `sql`.

    `hashed` is what the theta sketch is fed, and `domain` names these bytes: sketches of different domains cannot be
    united. `number` is what the KLL sketch is fed, as a double. `width` is the size of a value in bytes, where all have
    the same. Frequent values are told where they are `ranked`; of measures and moments hardly one occurs twice, and
    looking for them is dear. `as_iceberg` tells whether Iceberg hashes the same bytes.
    """

    sql: str
    domain: str
    hashed: str
    number: str | None = None
    width: int | None = None
    ranked: bool = True
    has_nan: bool = False
    as_iceberg: bool = True


# Iceberg hashes the bytes of its single-value serialization: an int is four, the lowest first. Spark casts an int to
# four bytes with the highest first, so the int is turned round before.
_TURNED: Final = (
    "CAST(shiftleft({n}, 24) | shiftleft({n} & 65280, 8) | (shiftrightunsigned({n}, 8) & 65280) "
    "| shiftrightunsigned({n}, 24) AS BINARY)"
)
_SMALL_INTS: Final = (pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16())
_MICROS: Final = "unix_micros(CAST({v} AS TIMESTAMP))"


def value_kind(of: pa.DataType) -> ValueKind | None:
    """What Spark does with a column of this type; None for a type it cannot read."""
    of = kept_type(of)
    if pa.types.is_boolean(of):
        return ValueKind("BOOLEAN", "boolean", "CASE WHEN {v} THEN X'01' WHEN NOT {v} THEN X'00' END", width=1)
    if of in _SMALL_INTS:
        return ValueKind("INT", "int", _TURNED.format(n="{v}"), number="{v}", width=4)
    if of in (pa.int64(), pa.uint32()):
        return ValueKind("BIGINT", "long", "{v}", number="{v}", width=8)
    if of == pa.float32():
        # As a double: a column may become one, and Iceberg's bytes of a float cannot be had in SQL.
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
        return ValueKind("DATE", "int", _TURNED.format(n="unix_date({v})"), number="unix_date({v})", width=4)
    if pa.types.is_timestamp(of) and of.unit != "ns":
        sql = "TIMESTAMP" if of.tz else "TIMESTAMP_NTZ"
        return ValueKind(sql, "long", _MICROS, number=_MICROS, width=8, ranked=False)
    if pa.types.is_timestamp(of) or pa.types.is_time(of):  # as numbers: Spark has no such moments
        fine = of.unit == "ns"
        domain = "nanos" if fine else "long"
        return ValueKind("BIGINT", domain, "{v}", number="{v}", width=8, ranked=False, as_iceberg=not fine)
    return _kind_of_bytes(of)


def _kind_of_bytes(of: pa.DataType) -> ValueKind | None:
    """Those whose sketch is fed with texts or bytes."""
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


def kept_type(of: pa.DataType) -> pa.DataType:
    """The plain type in which values of a column are handled."""
    return pa.binary(16) if of == pa.uuid() else bound_type(of)


def texts(values: pa.Array, of: pa.DataType, *, up: bool = False) -> pa.Array:
    """Values of a column of type `of` in the form in which the metastore keeps bounds; NaN has none.

    What is finer than a microsecond is rounded down, or `up`.
    """
    kind = logical_type(of)
    if not kind:
        return pa.nulls(len(values), pa.string())
    plain = pa.binary() if kind == "BINARY" else pa.decimal128(20, 0) if of == pa.uint64() else kept_type(of)
    side = "max" if up else "min"
    stats = column_stats(plain, len(values), **{side: values.cast(plain)})
    files = pa.table({"stats": stats_struct({1: stats}, len(values))})
    schema = pa.schema([with_id(pa.field("value", pa.uuid() if kind == "UUID" else plain), 1)])
    return canonical_columns(files, schema).flatten().field(side)


def parsed(said: pa.Array, of: pa.DataType) -> pa.Array:
    """The values that `texts` wrote down."""
    of, kind = kept_type(of), logical_type(of)
    if pa.types.is_time(of):
        moments = pc.binary_join_element_wise("1970-01-01", said, "T").cast(pa.timestamp("us"))
        return moments.cast(pa.time64("us")).cast(of)
    if kind in ("BINARY", "UUID"):
        return pa.array([None if text is None else _bytes(text, kind) for text in said.to_pylist()], of)
    if pa.types.is_timestamp(of):
        # Bounds of a column that once held dates, or moments without a zone, are in UTC.
        moments = pc.replace_substring_regex(said, "Z$", "").cast(pa.timestamp("us"))
        return moments.cast(pa.timestamp(of.unit)).cast(pa.int64()).cast(of)
    return said.cast(of)


def _bytes(text: str, kind: str) -> bytes:
    return uuid.UUID(text).bytes if kind == "UUID" else base64.b64decode(text)
