"""Column statistics for DuckDB's optimizer.

DuckDB relies on them: wrong values lead to wrong results, and some responses crash the client. A table is therefore
announced as having statistics only if the client can handle the statistics of every column. A table whose statistics fail
or are invalid has none, and everything else works as before.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from numbers import Integral
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.catalog import ColumnStatistics
from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.errors import InvalidArgument, SkiwayError, Unsupported

__all__ = ["Statistics", "can_announce", "statistics_batch", "statistics_response"]

log = logging.getLogger("skiway.airport")

Statistics = Callable[[str, str], ColumnStatistics]
"""What `HasStatistics.column_statistics` is: the statistics of a column, by its name and its type in DuckDB."""

# DuckDB's client fails on any statistics of these types.
_WITHOUT_STATISTICS: Final = ("INTERVAL", "BIT", "UNION", "GEOMETRY", "NULL", "BIGNUM")

# Bounds that hold for every string and every blob: the response if a bound that was known at ATTACH is now unknown. A
# table is never announced as having statistics because of them.
_WIDEST_BOUNDS: Final[dict[str, tuple[Any, Any]]] = {
    "VARCHAR": ("", "\U0010ffff" * 2),
    "BLOB": (b"", b"\xff" * 8),
}


def can_announce(columns: Iterable[pa.Field], statistics: Statistics, table: object = "") -> bool:
    """Whether DuckDB's client can handle the statistics of every column. `table` is named in the log if they fail."""
    for field in columns:
        try:
            type_name = duckdb_type(field)
            if not _is_legal(field, type_name, _checked(field, statistics(field.name, type_name))):
                return False
        except Unsupported:  # it has none, which is not worth a warning for each of thousands of tables
            return False
        except Exception as error:  # noqa: BLE001  (statistics are optional, the table is not)
            _report(error, table, field.name)
            return False
    return True


def statistics_response(field: pa.Field, statistics: Statistics, type_name: str, table: object) -> pa.RecordBatch:
    """The response to `column_statistics`. If the statistics fail, they are unknown: an error would fail the query."""
    try:
        return statistics_batch(field, statistics(field.name, type_name))
    except Exception as error:  # noqa: BLE001  (statistics are optional, the query is not)
        _report(error, table, field.name)
        return statistics_batch(field, ColumnStatistics())


def _report(error: Exception, table: object, column: str) -> None:
    trace = None if isinstance(error, SkiwayError) else error
    log.warning(
        "table %s has no statistics, because those of column %r failed: %s", table, column, error, exc_info=trace
    )


def _checked(field: pa.Field, statistics: Any) -> ColumnStatistics:
    """The statistics, if they are valid for the column; `InvalidArgument` otherwise."""
    if not isinstance(statistics, ColumnStatistics):
        raise InvalidArgument(
            f"column_statistics returned {type(statistics).__name__} for column {field.name!r}: return a ColumnStatistics"
        )
    for name in ("distinct_count", "max_string_length"):
        value = getattr(statistics, name)
        if value is not None and not (isinstance(value, Integral) and 0 <= int(value) < 2**64):
            raise InvalidArgument(f"statistics of column {field.name!r}: {name} is {value!r}, not a number of values")
    for name in ("has_null", "has_not_null", "contains_unicode"):
        value = getattr(statistics, name)
        if value is not None and not isinstance(value, bool):
            raise InvalidArgument(f"statistics of column {field.name!r}: {name} is {value!r}, not True, False or None")
    if statistics.min is not None or statistics.max is not None:
        _check_order(field, *_bounds(field, statistics))
    return statistics


def _check_order(field: pa.Field, low: pa.Array, high: pa.Array) -> None:
    storage = low.storage if isinstance(low, pa.ExtensionArray) else low
    if not _has_arrow_order(storage.type) or storage.type != storage_type(field.type):
        return
    other = high.storage if isinstance(high, pa.ExtensionArray) else high
    if pc.greater(storage, other)[0].as_py():
        raise InvalidArgument(f"statistics of column {field.name!r}: the minimum is greater than the maximum")


def _has_arrow_order(data_type: pa.DataType) -> bool:
    """Whether Arrow orders values of the type as DuckDB does."""
    types = pa.types
    return (
        bool(
            types.is_integer(data_type)
            or types.is_floating(data_type)
            or types.is_decimal(data_type)
            or types.is_temporal(data_type)
            or types.is_string(data_type)
            or types.is_large_string(data_type)
        )
        and not types.is_duration(data_type)
        and not types.is_interval(data_type)
    )


def _is_legal(field: pa.Field, type_name: str, statistics: ColumnStatistics) -> bool:
    if type_name.startswith(_WITHOUT_STATISTICS) or pa.types.is_dictionary(field.type):
        return False
    return (
        type_name not in ("VARCHAR", "BLOB", "JSON")
        or statistics.has_not_null is False
        or None not in (statistics.min, statistics.max)
    )


def statistics_batch(field: pa.Field, statistics: ColumnStatistics) -> pa.RecordBatch:
    """The one-row response to `column_statistics`: bounds in the column's type, and safe values for unknown statistics."""
    low, high = _bounds(field, _checked(field, statistics))
    columns: list[tuple[pa.Field, pa.Array]] = [
        (field.with_name("min").with_nullable(True), low),
        (field.with_name("max").with_nullable(True), high),
        (pa.field("has_not_null", pa.bool_(), nullable=False), pa.array([statistics.has_not_null is not False])),
        (pa.field("has_null", pa.bool_(), nullable=False), pa.array([statistics.has_null is not False])),
        # DuckDB reads zero as unknown
        (
            pa.field("distinct_count", pa.uint64(), nullable=False),
            pa.array([statistics.distinct_count or 0], pa.uint64()),
        ),
    ]
    if pa.types.is_string(storage_type(field.type)) or pa.types.is_large_string(storage_type(field.type)):
        if statistics.contains_unicode is not None:
            columns.append((pa.field("contains_unicode", pa.bool_()), pa.array([statistics.contains_unicode])))
        if statistics.max_string_length is not None:
            columns.append(
                (pa.field("max_string_length", pa.uint64()), pa.array([statistics.max_string_length], pa.uint64()))
            )
    return pa.record_batch([array for _, array in columns], schema=pa.schema([f for f, _ in columns]))


def _bounds(field: pa.Field, statistics: ColumnStatistics) -> tuple[pa.Array, pa.Array]:
    low, high = statistics.min, statistics.max
    if low is None or high is None:
        widest = _WIDEST_BOUNDS.get("VARCHAR" if duckdb_type(field) == "JSON" else duckdb_type(field), (None, None))
        if pa.types.is_fixed_size_binary(field.type) and widest[0] is not None:
            widest = bytes(field.type.byte_width), b"\xff" * field.type.byte_width
        low = widest[0] if low is None else low
        high = widest[1] if high is None else high
    return _single_value(field, low), _single_value(field, high)


def _single_value(field: pa.Field, value: Any) -> pa.Array:
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return pa.nulls(1, field.type)  # works for all types, even those that pyarrow cannot build from Python values
    try:
        if isinstance(value, pa.Scalar):
            return _scalar_array(value, field.type)
        return pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"statistics of column {field.name!r}: {value!r} is not a value of its type {field.type}"
        ) from error


def _scalar_array(value: pa.Scalar, target: pa.DataType) -> pa.Array:
    """An array with one scalar. Python values cannot represent every date and time, so none are created."""
    plain = value.value if isinstance(value, pa.ExtensionScalar) else value
    column = pa.repeat(plain if plain.type == storage_type(target) else plain.cast(storage_type(target)), 1)
    return pa.ExtensionArray.from_storage(target, column) if isinstance(target, pa.BaseExtensionType) else column
