"""Statistics of files in the canonical form of the metastore: a list per file, a struct per column, bounds as text.

Whole columns are converted at once, except for types that Arrow cannot format: bytes, UUIDs and decimals.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Final
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.schemas import Leaf, leaves
from skiway.formats.source import PartitionSpec

_FIRST_DAY, _LAST_DAY = (day.toordinal() - date(1970, 1, 1).toordinal() for day in (date.min, date.max))
_PER_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_COUNTS: Final = ("value_count", "null_count", "nan_count")


def canonical_columns(files: pa.Table, schema: pa.Schema) -> pa.ListArray:
    """The statistics of the columns of `schema` for each file of a file table, with bounds as canonical text."""
    stats = files["stats"].combine_chunks()
    measured = {each.name for each in stats.type}  # variants, which are read as JSON, have no statistics
    columns = [leaf for leaf in leaves(schema) if logical_type(leaf.type) and str(leaf.id) in measured]
    rows, width = files.num_rows, len(columns)
    parts = [_column(stats.field(str(leaf.id)), leaf) for leaf in columns]
    if not parts:
        return pa.nulls(rows, pa.list_(pa.struct([])))
    by_file = pa.array(np.arange(rows * width).reshape(width, rows).T.ravel())
    offsets = pa.array(np.arange(0, rows * width + 1, width, dtype=np.int32))
    return pa.ListArray.from_arrays(offsets, pa.concat_arrays(parts).take(by_file))


def _column(stats: pa.StructArray, leaf: Leaf) -> pa.StructArray:
    rows = len(stats)
    columns = {
        "column_id": pa.repeat(pa.scalar(leaf.id, pa.int64()), rows),
        "column_name": pa.repeat(".".join(leaf.path), rows),
        "logical_type": pa.repeat(logical_type(leaf.type), rows),
        **{name: stats.field(name) for name in _COUNTS},
        "min": _text(_expressible(_whole_micros(stats.field("min"), up=False)), of=leaf.type),
        "max": _text(_expressible(_whole_micros(stats.field("max"), up=True)), of=leaf.type),
    }
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def logical_type(of: pa.DataType) -> str:
    """The metastore's name of a type; empty for a type without bounds."""
    if pa.types.is_dictionary(of):
        of = of.value_type
    if pa.types.is_decimal(of):
        return f"DECIMAL({of.precision},{of.scale})"
    if pa.types.is_timestamp(of):
        return "TIMESTAMPTZ" if of.tz else "TIMESTAMP"
    for name, is_kind in _KINDS.items():
        if is_kind(of):
            return name
    return ""


_KINDS: Final[dict[str, Callable[[pa.DataType], bool]]] = {
    "UUID": lambda of: of == pa.uuid(),
    "BOOLEAN": pa.types.is_boolean,
    "INT": pa.types.is_integer,
    "FLOAT": pa.types.is_float32,
    "DOUBLE": pa.types.is_float64,
    "DATE": pa.types.is_date,
    "TIME": pa.types.is_time,
    "STRING": lambda of: of in (pa.string(), pa.large_string(), pa.string_view()),
    "BINARY": lambda of: of in (pa.binary(), pa.large_binary()) or pa.types.is_fixed_size_binary(of),
}


def _whole_micros(values: pa.Array, *, up: bool) -> pa.Array:
    """Round timestamps and times of nanoseconds outwards to microseconds."""
    of = values.type
    if pa.types.is_timestamp(of) and of.unit == "ns":
        # Not with floor_temporal and ceil_temporal, which fail near the first and the last timestamp.
        nanos = values.view(pa.int64()).fill_null(0).to_numpy()
        micros = nanos // 1000 + (nanos % 1000 != 0 if up else 0)
        return pa.array(micros, mask=values.is_null().to_numpy(False)).view(pa.timestamp("us", tz=of.tz))
    if of == pa.time64("ns"):
        nanos = values.cast(pa.int64())  # of a day, so never negative
        return pc.divide(pc.add(nanos, 999) if up else nanos, 1000).cast(pa.time64("us"))
    return values


def _expressible(bounds: pa.Array) -> pa.Array:
    """Bounds with a year of four digits; others are unknown: neither Arrow nor Python can format every year."""
    of = bounds.type
    if pa.types.is_date32(of):
        numbers, per_day = bounds.view(pa.int32()).cast(pa.int64()), 1
    elif pa.types.is_timestamp(of):
        numbers, per_day = bounds.view(pa.int64()), _PER_DAY[of.unit]
    else:
        return bounds
    known = pc.and_(
        pc.greater_equal(numbers, max(_FIRST_DAY * per_day, -(2**63))),
        pc.less_equal(numbers, min((_LAST_DAY + 1) * per_day - 1, 2**63 - 1)),
    )
    return pc.if_else(known, bounds, pa.scalar(None, of))


def _text(values: pa.Array, *, of: pa.DataType | None = None) -> pa.Array:
    """Format values as text. `of` is the type of the column if the values have another one, as UUIDs have bytes."""
    if of == pa.uuid():
        return pa.array(
            [None if value is None else str(UUID(bytes=value)) for value in values.to_pylist()], pa.string()
        )
    of = values.type
    if pa.types.is_timestamp(of):
        unit = "ns" if of.unit == "ns" else "us"
        text = pc.strftime(values.cast(pa.timestamp(unit, tz=of.tz)).cast(pa.timestamp(unit)), "%Y-%m-%dT%H:%M:%S")
        return pc.binary_join_element_wise(_without_zeros(text), "Z" if of.tz else "", "")
    if pa.types.is_time(of):
        return _without_zeros(values.cast(pa.time64("us")).cast(pa.string()))
    if pa.types.is_floating(of):
        # As doubles: the shortest text of a float is a different number when it is parsed as a double.
        text = pc.add(values.cast(pa.float64()), 0.0).cast(pa.string())
        return pc.replace_substring_regex(text, "inf$", "Infinity")
    if pa.types.is_decimal(of):
        return pa.array([None if value is None else _digits(value) for value in values.to_pylist()], pa.string())
    if pa.types.is_binary(of) or pa.types.is_fixed_size_binary(of):
        encoded = [None if value is None else base64.b64encode(value).decode() for value in values.to_pylist()]
        return pa.array(encoded, pa.string())
    return values.cast(pa.string())


def _without_zeros(text: pa.Array) -> pa.Array:
    return pc.replace_substring_regex(text, r"\.0+$", "")


def _digits(value: Decimal) -> str:
    plain = format(value, "f")
    short = plain.rstrip("0").rstrip(".") if "." in plain else plain
    return "0" if value == 0 else short


def partition_json(files: pa.Table, specs: Sequence[PartitionSpec], schema: pa.Schema) -> pa.Array:
    """The partition values of each file as a JSON object of canonical texts, by the field names of its spec.

    `schema` is the schema of the table.
    """
    values = files["partition"].combine_chunks()
    columns = {leaf.id: leaf.type for leaf in leaves(schema)}
    types = {
        str(field.id): columns.get(field.source_id)
        for spec in specs
        for field in spec.fields
        if field.transform == "identity"
    }
    texts = {each.name: _text(values.field(each.name), of=types.get(each.name)).to_pylist() for each in values.type}
    by_id = {spec.id: spec for spec in specs}
    documents = [
        json.dumps({field.name: texts[str(field.id)][row] for field in by_id[spec_id].fields}, ensure_ascii=False)
        for row, spec_id in enumerate(files["spec_id"].to_pylist())
    ]
    return pa.array(documents, pa.string())
