"""Python values as constants of a column's type."""

from __future__ import annotations

import decimal
import uuid
from typing import Any, Final

import pyarrow as pa

from skiway.airport.wire.duckdb_types import duckdb_type, storage_type
from skiway.errors import InvalidArgument, Unsupported

__all__ = ["json_value", "literal"]

_WIDE: Final = decimal.Context(prec=77)  # the default one would round a DECIMAL of 38 digits

# Types of one value that both sides order alike. The others (lists, structs, intervals, DuckDB's own) can only be
# asked whether they are NULL.
_COMPARABLE: Final = frozenset(
    {
        *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
        *("FLOAT", "DOUBLE", "VARCHAR", "JSON", "BLOB", "UUID", "DATE", "TIME", "TIME_NS"),
        *("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE"),
    }
)


def literal(field: pa.Field, value: Any) -> pa.Scalar:
    """`value` as a scalar of the type that is stored for `field`; nothing is rounded or cut to make it fit."""
    spelled = duckdb_type(field)
    if spelled not in _COMPARABLE and not spelled.startswith("DECIMAL"):
        raise Unsupported(
            f"column {field.name!r} is {spelled}, which is not compared here: read it and filter the rows yourself"
        )
    wanted = value_type(field.type)
    given = _plain(spelled, wanted, value)
    try:
        scalar = pa.scalar(given, wanted)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise _misfit(field, spelled, value) from error
    if not pa.types.is_floating(wanted) and scalar.as_py() != given:
        raise _misfit(field, spelled, value)
    return scalar


def value_type(data_type: pa.DataType) -> pa.DataType:
    """The type of the values themselves, below extension types and dictionaries."""
    stored = storage_type(data_type)
    encoded = pa.types.is_dictionary(stored) or pa.types.is_run_end_encoded(stored)
    return value_type(stored.value_type) if encoded else stored


def _plain(spelled: str, wanted: pa.DataType, value: Any) -> Any:
    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if spelled == "UUID":
        return _uuid(value).bytes if pa.types.is_fixed_size_binary(wanted) else str(_uuid(value))
    if spelled == "BOOLEAN" and pa.types.is_integer(wanted) and isinstance(value, bool):
        return int(value)  # arrow.bool8
    return value


def _uuid(value: Any) -> uuid.UUID:
    if isinstance(value, uuid.UUID):
        return value
    try:
        return uuid.UUID(bytes=value) if isinstance(value, bytes) else uuid.UUID(value)
    except (ValueError, TypeError, AttributeError):
        raise InvalidArgument(f"{value!r} is not a UUID: write one as 123e4567-e89b-12d3-a456-426614174000") from None


def _misfit(field: pa.Field, spelled: str, value: Any) -> InvalidArgument:
    return InvalidArgument(
        f"column {field.name!r} is {spelled}, and {value!r} ({type(value).__name__}) is no value of that type: "
        "give one that fits exactly"
    )


def json_value(field: pa.Field, scalar: pa.Scalar) -> Any:
    """The constant as DuckDB writes it into a filter."""
    spelled = duckdb_type(field)
    if spelled.startswith("DECIMAL"):
        unscaled = int(scalar.as_py().scaleb(scalar.type.scale, _WIDE))
        return _halves(unscaled) if scalar.type.precision > 18 else unscaled
    if spelled == "UUID":
        raw = scalar.as_py()
        number = (uuid.UUID(bytes=raw) if isinstance(raw, bytes) else uuid.UUID(raw)).int
        return _halves((number ^ 1 << 127) - ((number ^ 1 << 127) >> 127 << 128))
    if spelled == "BLOB":
        return "".join(_escaped(byte) for byte in scalar.as_py())
    if spelled == "BOOLEAN":
        return bool(scalar.as_py())
    if spelled.startswith(("DATE", "TIME")):
        return _ticks(scalar)
    return scalar.as_py()


def _halves(number: int) -> dict[str, int]:
    return {"upper": number >> 64, "lower": number & 0xFFFF_FFFF_FFFF_FFFF}


def _escaped(byte: int) -> str:
    """One byte of a BLOB: printable ASCII as it is, but for the characters that the form itself uses."""
    return chr(byte) if 32 <= byte < 127 and byte not in b"\\\"'" else f"\\x{byte:02X}"


def _ticks(scalar: pa.Scalar) -> int:
    """Days, or the unit of the type; DuckDB has TIME in microseconds, and DATE in days, however Arrow stores them."""
    if pa.types.is_date64(scalar.type):
        return int(scalar.value) // 86_400_000
    if pa.types.is_time32(scalar.type):
        return int(scalar.value) * (1_000_000 if scalar.type.unit == "s" else 1_000)
    return int(scalar.value)
