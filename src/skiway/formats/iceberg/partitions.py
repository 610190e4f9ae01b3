# mypy: disable-error-code=no-any-return
"""Partition specs, parsed from text, and rows split by partition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.typedef import Record

__all__ = ["partition_spec", "split_by_partition"]

_TRANSFORM: Final = re.compile(r"(?P<name>[a-z]+)(?:\[(?P<width>\d+)\])?\((?P<column>.+)\)")
_ROW: Final = "$row"


def partition_spec(schema: Schema, parts: Sequence[str]) -> PartitionSpec:
    """Parse a spec; each part is a column or a transform of one: `region`, `day(ts)`, `bucket[16](id)`."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec

    fields = []
    for number, part in enumerate(parts, PARTITION_FIELD_ID_START):
        column, transform = _parsed(part)
        if column not in schema.column_names:
            raise InvalidArgument(
                f"partition {part!r} refers to the unknown column {column!r}; the table has {', '.join(schema.column_names)}",
                key="column.unknown",
                column=column,
            )
        source = schema.find_field(column)
        if not transform.can_transform(source.field_type):
            raise InvalidArgument(
                f"partition {part!r} is not possible: column {column!r} has type {source.field_type}",
                key="partition.invalid",
                column=column,
            )
        name = column if str(transform) == "identity" else f"{column}_{re.sub(r'[^a-z0-9]+', '_', str(transform))}"
        fields.append(PartitionField(source.field_id, number, transform, name.rstrip("_")))
    return PartitionSpec(*fields)


def _parsed(part: str) -> tuple[str, Any]:
    from pyiceberg.transforms import UnknownTransform, parse_transform

    found = _TRANSFORM.fullmatch(part.strip())
    if found is None:
        return part.strip(), parse_transform("identity")
    name = found["name"] + (f"[{found['width']}]" if found["width"] else "")
    try:
        transform = parse_transform(name)
    except ValueError:
        transform = UnknownTransform(name)
    if isinstance(transform, UnknownTransform):
        raise InvalidArgument(
            f"partition {part!r} has an unknown transform; use a column, or year, month, day, hour, bucket[N] or "
            "truncate[N] of one",
            key="partition.invalid",
        )
    return found["column"].strip(), transform


def split_by_partition(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Record, pa.Table]]:
    """Yield the rows of each partition, in their original order."""
    from pyiceberg.typedef import Record

    names = [f"{place}" for place in range(len(spec.fields))]
    values = pa.table(dict(zip(names, (_values(rows, field, schema) for field in spec.fields), strict=True)))
    numbered = values.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    groups = numbered.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    for key, places in zip(groups.select(names).to_pylist(), groups[f"{_ROW}_list"], strict=True):
        whole = len(places) == rows.num_rows
        yield Record(*key.values()), rows if whole else rows.take(places.values)


def _values(rows: pa.Table, field: Any, schema: Schema) -> pa.ChunkedArray:
    """The partition value of each row, as in manifests: dates and timestamps as numbers, UUIDs as bytes."""
    path = schema.find_column_name(field.source_id)
    if path is None:
        raise InvalidArgument(f"the source column of partition {field.name!r} was dropped", key="partition.invalid")
    column: Any = rows[path] if path in rows.column_names else _nested(rows, path.split("."))
    if column.type == pa.uuid():
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], pa.binary(16))
    source = schema.find_field(field.source_id).field_type
    made = field.transform.pyarrow_transform(source)(column)
    return (
        made.cast(pa.int32() if made.type.bit_width == 32 else pa.int64()) if pa.types.is_temporal(made.type) else made
    )


def _nested(rows: pa.Table, path: Sequence[str]) -> pa.ChunkedArray:
    column = rows[path[0]]
    for name in path[1:]:
        column = pc.struct_field(column, name)
    return column
