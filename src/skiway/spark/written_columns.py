"""The columns of a DataFrame as those of the table that it is written to.

Columns are matched by name. A DataFrame must have all columns of the table and no others, in the types that Spark reads from the
table, or in smaller ones: an INT fits into a BIGINT.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    ByteType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StructType,
)

from skiway.errors import InvalidArgument, Unsupported
from skiway.spark.types import spark_schema

__all__ = ["check_columns", "table_rows"]

_INTEGERS: Final[tuple[type[DataType], ...]] = (ByteType, ShortType, IntegerType, LongType)
_UUID: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


def check_columns(given: StructType, columns: pa.Schema, *, table: str) -> None:
    """Raise `InvalidArgument` if a DataFrame cannot be written to a table with these columns; the message names what differs."""
    found = {field.name.casefold(): field.dataType for field in given}
    if len(found) < len(given):
        raise InvalidArgument(
            f"the DataFrame has columns whose names are equal without regard to case ({', '.join(given.names)}): rename them"
        )
    wanted = {field.name.casefold(): field for field in columns}
    missing = [field.name for name, field in wanted.items() if name not in found]
    unknown = [field.name for field in given if field.name.casefold() not in wanted]
    differing = []
    for name, field in wanted.items():
        if name in found:
            expected = _type(field)
            if not _fits(found[name], expected):
                differing.append(
                    f"column {field.name!r} is {found[name].simpleString()} instead of {expected.simpleString()}"
                )
    parts = [
        *([f"it lacks {', '.join(map(repr, missing))}"] if missing else []),
        *([f"the table has no {', '.join(map(repr, unknown))}"] if unknown else []),
        *differing,
    ]
    if parts:
        raise InvalidArgument(
            f"the DataFrame does not have the columns of table {table}: {'; '.join(parts)}. Select and cast its columns"
        )


def table_rows(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """The rows of a DataFrame under the names of the table's columns. The server casts them to its types."""
    wanted = {field.name.casefold(): field for field in columns}
    fields = [wanted[name.casefold()] for name in batch.schema.names]
    arrays = [
        _uuids(column, field.name) if field.type == pa.uuid() else column
        for column, field in zip(batch.columns, fields, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])


def _type(field: pa.Field) -> DataType:
    """The type in which Spark reads a column."""
    try:
        return spark_schema(pa.schema([field])).fields[0].dataType
    except Unsupported:
        raise Unsupported(f"column {field.name!r} has type {field.type}, which Spark cannot write") from None


def _fits(given: DataType, wanted: DataType) -> bool:
    """Whether all values of a type are values of another one."""
    match given, wanted:
        case ArrayType(), ArrayType():
            return _fits(given.elementType, wanted.elementType)
        case MapType(), MapType():
            return _fits(given.keyType, wanted.keyType) and _fits(given.valueType, wanted.valueType)
        case StructType(), StructType():
            return given.names == wanted.names and all(
                _fits(one.dataType, other.dataType) for one, other in zip(given, wanted, strict=True)
            )
        case DecimalType(), DecimalType():
            whole = given.precision - given.scale
            return given.scale <= wanted.scale and whole <= wanted.precision - wanted.scale
        case FloatType(), DoubleType():
            return True
    if isinstance(given, _INTEGERS) and isinstance(wanted, _INTEGERS):
        return _INTEGERS.index(type(given)) <= _INTEGERS.index(type(wanted))
    return given == wanted


def _uuids(column: pa.Array, name: str) -> pa.Array:
    """Texts as UUIDs, without a Python object for each of them."""
    valid = pc.fill_null(pc.match_substring_regex(column, _UUID), True)
    if not pc.all(valid, min_count=0).as_py():
        found = column.filter(pc.invert(valid))[0].as_py()
        raise InvalidArgument(
            f"{found[:100]!r} in column {name!r} is not a UUID: write it like 123e4567-e89b-12d3-a456-426614174000"
        )
    texts = pc.fill_null(pc.replace_substring(column, "-", ""), "0" * 32).cast(pa.string())
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(texts)], texts), "")[0].as_py()
    data = pa.py_buffer(bytes.fromhex(joined))
    plain = pa.FixedSizeBinaryArray.from_buffers(pa.binary(16), len(texts), [None, data])
    masked = pc.if_else(column.is_valid(), plain, pa.scalar(None, pa.binary(16)))
    return pa.ExtensionArray.from_storage(pa.uuid(), masked)
