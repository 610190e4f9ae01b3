"""Arrow types as types of Spark.

Spark has neither unsigned integers nor UUIDs nor nanoseconds: they become the next larger type that has all their values, or
text. Types without such a type are rejected, with the name of the column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType

from skiway.errors import Unsupported

_LARGER: Final[dict[pa.DataType, pa.DataType]] = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
    pa.float16(): pa.float32(),
    pa.string_view(): pa.string(),
    pa.binary_view(): pa.binary(),
    pa.large_string(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.time32("s"): pa.time64("us"),
    pa.time32("ms"): pa.time64("us"),
}
_DIGITS: Final = [place for place in range(36) if place not in (8, 13, 18, 23)]
"""The places of the digits in the text of a UUID."""


def spark_schema(schema: pa.Schema) -> StructType:
    """The columns as Spark sees them."""
    found = []
    for field in arrow_target(schema):
        try:
            found.append(
                StructField(field.name, from_arrow_type(field.type, prefer_timestamp_ntz=True), field.nullable)
            )
        except (PySparkException, TypeError):
            raise _unsupported(schema.field(field.name)) from None
    return StructType(found)


def arrow_target(schema: pa.Schema) -> pa.Schema:
    """The columns in Arrow types that Spark reads."""
    return pa.schema([pa.field(each.name, _target(each.type, each), each.nullable) for each in schema])


def converted(batch: pa.RecordBatch, target: pa.Schema) -> pa.RecordBatch:
    """The rows in the types of `arrow_target`."""
    if batch.schema.equals(target):
        return batch
    columns = [
        _uuid_texts(column) if column.type == pa.uuid() else column.cast(field.type)
        for column, field in zip(batch.columns, target, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _uuid_texts(column: pa.Array) -> pa.Array:
    """UUIDs as text, without a Python object for each of them."""
    import numpy as np  # comes with Spark's Arrow support

    filled = pc.fill_null(column.storage, bytes(16))
    count, data = len(filled), memoryview(filled.buffers()[1])[filled.offset * 16 :]
    digits = np.frombuffer(data[: count * 16].hex().encode(), np.uint8).reshape(count, 32)
    texts = np.full((count, 36), ord("-"), np.uint8)
    texts[:, _DIGITS] = digits
    offsets = pa.array(np.arange(0, 36 * (count + 1), 36, dtype=np.int32))
    found = pa.StringArray.from_buffers(count, offsets.buffers()[1], pa.py_buffer(texts.tobytes()))
    return pc.if_else(column.is_valid(), found, pa.scalar(None, pa.string()))


def _target(of: pa.DataType, column: pa.Field) -> pa.DataType:
    if of == pa.uuid() and column.type == of:
        return pa.string()
    if of == pa.uuid():
        raise _unsupported(column)  # inside of another type
    if isinstance(of, pa.BaseExtensionType):
        return _target(of.storage_type, column)
    if pa.types.is_dictionary(of):
        return _target(of.value_type, column)
    if pa.types.is_timestamp(of):
        if of.unit == "ns":
            raise _unsupported(column)
        return pa.timestamp("us", "UTC" if of.tz else None)
    if pa.types.is_time64(of) and of.unit == "ns":
        raise _unsupported(column)
    if pa.types.is_fixed_size_binary(of):
        return pa.binary()
    return _LARGER.get(of) or _nested(of, column, _target)


def _nested(of: pa.DataType, column: pa.Field, target: Callable[[pa.DataType, pa.Field], pa.DataType]) -> pa.DataType:
    if pa.types.is_struct(of):
        return pa.struct([pa.field(each.name, target(each.type, column), each.nullable) for each in of])
    if pa.types.is_map(of):
        return pa.map_(target(of.key_type, column), target(of.item_type, column))
    if pa.types.is_list(of) or pa.types.is_large_list(of) or pa.types.is_fixed_size_list(of):
        return pa.list_(pa.field("element", target(of.value_type, column), of.value_field.nullable))
    return of


def _unsupported(column: pa.Field) -> Unsupported:
    return Unsupported(
        f"column {column.name!r} has type {column.type}, which Spark cannot read: choose other columns with the option columns"
    )
