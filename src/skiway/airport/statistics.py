"""Column statistics: what DuckDB's optimizer may believe.

DuckDB prunes with these numbers, so a wrong one is a wrong result, and some answers break the client altogether. A
table is therefore announced as able to give statistics only when each of its columns gives a legal answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from skiway.airport.wire.duckdb_sql import duckdb_type, storage_type
from skiway.errors import InvalidArgument, SkiwayError

__all__ = ["ColumnStatistics", "can_announce", "statistics_batch"]

# Statistics of these types end the client's query, whatever the answer is.
_REFUSED: Final = ("INTERVAL", "BIT", "UNION", "GEOMETRY", "NULL", "BIGNUM")

# Bounds of all texts and bytes: true of every value, so they are an honest answer when a known bound got lost between
# ATTACH and the query. (They are never a reason to announce statistics.)
_LOOSE: Final[dict[str, tuple[Any, Any]]] = {"VARCHAR": ("", "\U0010ffff" * 2), "BLOB": (b"", b"\xff" * 8)}


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """What is known about a column; None is "not known".

    `min` and `max` are Python values or pyarrow scalars of the column's type; bounds wider than the data are fine,
    narrower ones are wrong results.
    """

    min: Any = None
    max: Any = None
    has_null: bool | None = None
    has_not_null: bool | None = None
    distinct_count: int | None = None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


def can_announce(columns: Iterable[pa.Field], ask: Callable[[str, str], ColumnStatistics]) -> bool:
    """Whether every column's answer would be legal for the client."""
    try:
        return all(_is_legal(field, ask(field.name, duckdb_type(field))) for field in columns)
    except SkiwayError:
        return False


def _is_legal(field: pa.Field, known: ColumnStatistics) -> bool:
    spelled = duckdb_type(field)
    if spelled.startswith(_REFUSED) or pa.types.is_dictionary(field.type):
        return False
    return (
        spelled not in ("VARCHAR", "BLOB", "JSON") or known.has_not_null is False or None not in (known.min, known.max)
    )


def statistics_batch(field: pa.Field, known: ColumnStatistics) -> pa.RecordBatch:
    """The one-row answer: bounds in the column's own type, and for the rest what is safe to believe."""
    low, high = _bounds(field, known)
    columns: list[tuple[pa.Field, pa.Array]] = [
        (field.with_name("min").with_nullable(True), low),
        (field.with_name("max").with_nullable(True), high),
        (pa.field("has_not_null", pa.bool_(), nullable=False), pa.array([known.has_not_null is not False])),
        (pa.field("has_null", pa.bool_(), nullable=False), pa.array([known.has_null is not False])),
        # zero is DuckDB's own word for "not known"
        (pa.field("distinct_count", pa.uint64(), nullable=False), pa.array([known.distinct_count or 0], pa.uint64())),
    ]
    if pa.types.is_string(storage_type(field.type)) or pa.types.is_large_string(storage_type(field.type)):
        if known.contains_unicode is not None:
            columns.append((pa.field("contains_unicode", pa.bool_()), pa.array([known.contains_unicode])))
        if known.max_string_length is not None:
            columns.append(
                (pa.field("max_string_length", pa.uint64()), pa.array([known.max_string_length], pa.uint64()))
            )
    return pa.record_batch([array for _, array in columns], schema=pa.schema([f for f, _ in columns]))


def _bounds(field: pa.Field, known: ColumnStatistics) -> tuple[pa.Array, pa.Array]:
    low, high = known.min, known.max
    if low is None or high is None:
        loose = _LOOSE.get("VARCHAR" if duckdb_type(field) == "JSON" else duckdb_type(field), (None, None))
        low = loose[0] if low is None else low
        high = loose[1] if high is None else high
    return _one(field, low), _one(field, high)


def _one(field: pa.Field, value: Any) -> pa.Array:
    if value is None or (isinstance(value, pa.Scalar) and not value.is_valid):
        return pa.nulls(1, field.type)  # of any type, also of those that pyarrow cannot build from Python values
    try:
        if isinstance(value, pa.Scalar):
            return _of_scalar(value, field.type)
        return pa.array([value], field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidArgument(
            f"statistics of column {field.name!r}: {value!r} is not a value of its type {field.type}"
        ) from error


def _of_scalar(value: pa.Scalar, wanted: pa.DataType) -> pa.Array:
    """A scalar as an array of one, never by way of Python values, which cannot carry every date and time."""
    plain = value.value if isinstance(value, pa.ExtensionScalar) else value
    column = pa.repeat(plain if plain.type == storage_type(wanted) else plain.cast(storage_type(wanted)), 1)
    return pa.ExtensionArray.from_storage(wanted, column) if isinstance(wanted, pa.BaseExtensionType) else column
