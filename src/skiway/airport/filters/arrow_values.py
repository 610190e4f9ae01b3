"""Arrow's types and values for those of DuckDB."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from skiway.airport.filters.logic import Unsaid
from skiway.airport.filters.nodes import Constant, Node
from skiway.airport.filters.types import LogicalType

__all__ = ["TYPES", "literal_type", "scalar", "value_set"]

TYPES: Final = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UTINYINT": pa.uint8(),
    "USMALLINT": pa.uint16(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "VARCHAR": pa.string(),
    "BLOB": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "TIME_NS": pa.time64("ns"),
    "TIMESTAMP_S": pa.timestamp("s"),
    "TIMESTAMP_MS": pa.timestamp("ms"),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMP_NS": pa.timestamp("ns"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
}


def scalar(node: Node, of: pa.DataType) -> pa.Scalar:
    """The constant `node`, not NULL, as a value of type `of`."""
    if not isinstance(node, Constant) or node.value is None:
        raise Unsaid
    try:
        return pa.scalar(node.value, of)
    except (pa.ArrowException, OverflowError, TypeError):
        raise Unsaid from None  # the column's type does not hold this value


def value_set(nodes: Sequence[Node], of: pa.DataType) -> pa.Array:
    """The constants `nodes` as a set to look for; NaN is not among the values that Arrow finds as DuckDB does."""
    values = [scalar(node, of) for node in nodes]
    if not pa.types.is_floating(of):
        return pa.array(values, of)
    numbers = [value.as_py() for value in values]
    if any(math.isnan(number) for number in numbers):
        raise Unsaid
    return pa.array([*numbers, 0.0, -0.0] if 0.0 in numbers else numbers, of)  # a set tells one zero from the other


def literal_type(of: LogicalType, stored: pa.DataType | None) -> pa.DataType:
    """The type of literals beside a column that the client sees as `of` and that is `stored` so."""
    seen = pa.decimal128(of.width, of.scale) if of.id == "DECIMAL" else TYPES.get(of.id)
    if seen is None:
        raise Unsaid
    if stored is None:
        return seen
    if pa.types.is_dictionary(stored):
        stored = stored.value_type
    if stored == seen or any(
        is_kind(seen) and is_kind(stored) for is_kind in (pa.types.is_integer, _is_text, _is_bytes)
    ):
        return stored
    if pa.types.is_decimal(seen) and pa.types.is_decimal(stored) and stored.scale == seen.scale:
        return stored
    if pa.types.is_timestamp(seen) and pa.types.is_timestamp(stored):
        return _timestamp(seen, stored)
    raise Unsaid


def _is_text(of: pa.DataType) -> bool:
    return of in (pa.string(), pa.large_string(), pa.string_view())


def _is_bytes(of: pa.DataType) -> bool:
    return of in (pa.binary(), pa.large_binary(), pa.binary_view())


def _timestamp(seen: pa.DataType, stored: pa.DataType) -> pa.DataType:
    # In another unit the client sees rounded values; a zone's name does not matter, only that there is one.
    if seen.unit != stored.unit or (seen.tz is None) != (stored.tz is None):
        raise Unsaid
    return stored
