"""Random Arrow schemas and batches, with all kinds of types, sizes and nulls."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

from fuzz.mutation import any_text

SIMPLE: Sequence[pa.DataType] = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()),
    *(pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16), pa.binary(0), pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.month_day_nano_interval()),
    *(
        pa.timestamp("s"),
        pa.timestamp("us"),
        pa.timestamp("ns"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ms", "+01:00"),
    ),
    *(pa.duration("s"), pa.duration("us"), pa.decimal128(38, 10), pa.decimal128(5, -2), pa.decimal256(60, 5)),
    *(pa.decimal32(9, 2), pa.decimal64(18, 4), pa.uuid(), pa.json_(), pa.opaque(pa.binary(16), "hugeint", "DuckDB")),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.int64())),
    pa.run_end_encoded(pa.int32(), pa.string()),
)
METADATA: Sequence[dict[str, str]] = (
    {"is_rowid": "1"},
    {"PARQUET:field_id": "7"},
    {"PARQUET:field_id": "x"},
    {"ARROW:extension:name": "geoarrow.wkb", "ARROW:extension:metadata": "{}"},
    {"ARROW:extension:name": "arrow.opaque", "ARROW:extension:metadata": "{}"},
    {"ARROW:extension:name": "arrow.uuid"},
    {"default": "now()"},
    {"comment": "x"},
)


def any_type(chance: Random, depth: int = 2) -> pa.DataType:
    if not depth or chance.random() < 0.75:
        return chance.choice(SIMPLE)
    inner = any_type(chance, depth - 1)
    match chance.randrange(6):
        case 0:
            return pa.list_(inner)
        case 1:
            return pa.list_(inner, chance.choice((0, 1, 3)))
        case 2:
            return pa.large_list(inner)
        case 3:
            return pa.map_(pa.string(), inner)
        case 4:
            return pa.list_view(inner)
        case _:
            names = ["a", "b", "a", ""][: chance.randrange(4)]
            return pa.struct([pa.field(name, any_type(chance, depth - 1)) for name in names])


def any_schema(chance: Random, names: Sequence[str] = ()) -> pa.Schema:
    """A schema of zero to six columns; names may be repeated, and columns may have metadata."""
    kinds = [any_type(chance) for _ in range(chance.choice((0, 1, 1, 2, 3, 6)))]
    fields = [
        pa.field(
            any_text(chance, names),
            kind,
            nullable=pa.types.is_null(kind) or chance.random() < 0.9,
            metadata=chance.choice(METADATA) if chance.random() < 0.1 else None,
        )
        for kind in kinds
    ]
    return pa.schema(fields, metadata={"check_constraints": any_text(chance)} if chance.random() < 0.05 else None)


def any_batch(schema: pa.Schema, chance: Random) -> pa.RecordBatch:
    """Zero to many rows of this schema."""
    rows = chance.choice((0, 1, 1, 2, 7, 2048, 2049))
    columns = [_array(field.type, rows, chance) for field in schema]
    if not columns:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in schema]))


def _array(kind: pa.DataType, rows: int, chance: Random) -> pa.Array:
    """Values of the type, or only nulls where they cannot be built from Python's values."""
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _array(kind.storage_type, rows, chance))
    if chance.random() < 0.85:
        try:
            values = [_value(kind, chance) for _ in range(min(rows, 7))]
            array = pa.array([values[number % len(values)] for number in range(rows)], kind)
            array.validate(full=True)
            return array
        except (pa.ArrowException, NotImplementedError, OverflowError, TypeError, ValueError):
            pass
    return _empty(kind, rows)


def _empty(kind: pa.DataType, rows: int) -> pa.Array:
    """NULLs; empty lists and structs of NULLs where `pa.nulls` would give run-end encoded children an invalid bitmap."""
    if "run_end_encoded" not in str(kind) or not pa.types.is_nested(kind) or pa.types.is_run_end_encoded(kind):
        return pa.nulls(rows, kind)
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_empty(field.type, rows) for field in kind], fields=list(kind))
    if pa.types.is_fixed_size_list(kind):
        return pa.Array.from_buffers(kind, rows, [None], children=[_empty(kind.value_type, rows * kind.list_size)])
    offsets = [0] * (rows + 1)
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, _empty(kind.key_type, 0), _empty(kind.item_type, 0), type=kind)
    values = _empty(kind.value_type, 0)
    if pa.types.is_list_view(kind):
        return pa.ListViewArray.from_arrays(
            pa.array([0] * rows, pa.int32()), pa.array([0] * rows, pa.int32()), values, type=kind
        )
    lists = pa.LargeListArray if pa.types.is_large_list(kind) else pa.ListArray
    return lists.from_arrays(
        pa.array(offsets, pa.int64() if lists is pa.LargeListArray else pa.int32()), values, type=kind
    )


def _value(kind: pa.DataType, chance: Random) -> Any:
    if chance.random() < 0.2 or pa.types.is_null(kind):
        return None
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _value(kind.value_type, chance)
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, chance) for field in kind}
    if pa.types.is_map(kind):
        return [(any_text(chance), _value(kind.item_type, chance)) for _ in range(chance.randrange(3))]
    if pa.types.is_fixed_size_list(kind):
        return [_value(kind.value_type, chance) for _ in range(kind.list_size)]
    if pa.types.is_nested(kind):
        return [_value(kind.value_type, chance) for _ in range(chance.randrange(4))]
    if pa.types.is_boolean(kind):
        return chance.random() < 0.5
    if pa.types.is_integer(kind):
        bits, signed = kind.bit_width, pa.types.is_signed_integer(kind)
        low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
        return chance.choice((0, 1, 2, low, high))
    if pa.types.is_floating(kind):
        return chance.choice((0.0, 1.5, -2.5, float("nan"), float("inf"), -0.0))
    if pa.types.is_decimal(kind):
        return Decimal(chance.choice((0, 1, -99))).scaleb(-max(kind.scale, 0))
    if pa.types.is_fixed_size_binary(kind):
        return chance.randbytes(kind.byte_width)
    if pa.types.is_date(kind):
        return chance.choice((dt.date(1970, 1, 1), dt.date(1, 1, 1), dt.date(9999, 12, 31)))
    if pa.types.is_timestamp(kind):
        return chance.choice((dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12), dt.datetime(1677, 9, 22)))
    if pa.types.is_time(kind):
        return chance.choice((dt.time(0), dt.time(23, 59, 59)))
    if pa.types.is_duration(kind):
        return dt.timedelta(seconds=chance.choice((0, 1, -1)))
    if pa.types.is_interval(kind):
        return pa.MonthDayNano([1, -2, 3])
    text = any_text(chance)
    return text if kind in (pa.string(), pa.large_string(), pa.string_view()) else text.encode()
