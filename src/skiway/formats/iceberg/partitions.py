# mypy: disable-error-code="no-any-return,call-arg"
# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.
"""Partition specs and sort orders, parsed from text, and rows split by partition."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.clock import Clock
from skiway.errors import InvalidArgument
from skiway.formats.iceberg.commits import Change, Producer
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.typedef import Record

__all__ = ["list_items", "partition_by", "partition_spec", "sort_by", "sort_order", "split_by_partition"]

_TRANSFORM: Final = re.compile(r"(?i:(?P<name>[a-z]+))(?:\[(?P<width>\d+)\])?\((?:(?P<first>\d+)\s*,)?(?P<column>.+)\)")
_SORT_KEY: Final = re.compile(r"(?P<column>.+?)(?i:\s+(?P<direction>asc|desc))?(?i:\s+nulls\s+(?P<nulls>first|last))?")
_LIST_ITEM: Final = re.compile(r'(?:"(?:[^"]|"")*"|\([^()]*\)|\[[^\]]*\]|[^,])+')
_ROW: Final = "$row"


def partition_spec(schema: Schema, parts: Sequence[str]) -> PartitionSpec:
    """Parse a spec; each part is a column or a transform of one: `region`, `day(ts)`, `bucket(16, id)`, `bucket[16](id)`."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec

    fields = []
    for number, part in enumerate(parts, PARTITION_FIELD_ID_START):
        named, transform = _parsed(part)
        column = _column(schema, named, what=f"partition {part!r}")
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
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.transforms import UnknownTransform, VoidTransform, parse_transform

    found = _TRANSFORM.fullmatch(part.strip())
    if found is None:
        return part.strip(), parse_transform("identity")
    width = found["width"] or found["first"]
    name = found["name"].lower() + (f"[{width}]" if width else "")
    try:
        transform = parse_transform(name)
    except (ValueError, ValidationError):
        transform = UnknownTransform(name)
    if isinstance(transform, UnknownTransform | VoidTransform) or (width is not None and int(width) < 1):
        raise InvalidArgument(
            f"partition {part!r} has an unknown transform; use a column, or year(c), month(c), day(c), hour(c), "
            "bucket(N, c) or truncate(N, c) of one",
            key="partition.invalid",
        )
    return found["column"].strip(), transform


def _column(schema: Schema, named: str, *, what: str) -> str:
    """The name of a column, given in any case, and possibly quoted."""
    name = named.strip()
    if len(name) > 1 and name[0] == name[-1] == '"':
        name = name[1:-1].replace('""', '"')
    if name in schema.column_names:
        return name
    alike = [known for known in schema.column_names if known.casefold() == name.casefold()]
    if len(alike) != 1:
        raise InvalidArgument(
            f"{what} refers to the unknown column {name!r}; the table has {', '.join(schema.column_names)}",
            key="column.unknown",
            column=name,
        )
    return alike[0]


def partition_by(text: str) -> Producer:
    """Partition rows that are written from now on, by a list such as `day(ts), region`; by nothing if it is empty.

    Existing files stay as they are.
    """

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
        from pyiceberg.table.update import (
            AddPartitionSpecUpdate,
            AssertDefaultSpecId,
            AssertLastAssignedPartitionId,
            SetDefaultSpecUpdate,
        )

        fields = []
        old = {(each.source_id, str(each.transform)): each for spec in metadata.partition_specs for each in spec.fields}
        unused = count((metadata.last_partition_id or PARTITION_FIELD_ID_START - 1) + 1)
        for each in partition_spec(metadata.schema(), list_items(text)).fields:
            known = old.get(
                (each.source_id, str(each.transform))
            )  # it keeps its id, so that engines can compare values
            number, name = (next(unused), each.name) if known is None else (known.field_id, known.name)
            fields.append(PartitionField(each.source_id, number, each.transform, name))
        if len({each.name for each in fields}) < len(fields):
            raise InvalidArgument(f"partitions {text!r} name a column twice", key="partition.invalid")
        unchanged = (
            AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
            AssertLastAssignedPartitionId(last_assigned_partition_id=metadata.last_partition_id),
        )
        updates = (AddPartitionSpecUpdate(spec=PartitionSpec(*fields)), SetDefaultSpecUpdate(spec_id=-1))
        return Change(unchanged, updates)

    return produce


def sort_by(text: str) -> Producer:
    """Sort rows that are written from now on, by a list such as `ts DESC, id`; not at all if it is empty."""

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        from pyiceberg.table.update import AddSortOrderUpdate, AssertDefaultSortOrderId, SetDefaultSortOrderUpdate

        unchanged = AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id)
        added = AddSortOrderUpdate(sort_order=sort_order(metadata.schema(), text))
        return Change((unchanged,), (added, SetDefaultSortOrderUpdate(sort_order_id=-1)))

    return produce


def sort_order(schema: Schema, text: str) -> SortOrder:
    """The sort order that a list such as `ts DESC, id` describes."""
    from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    fields = []
    for item in list_items(text):
        found = _SORT_KEY.fullmatch(item.strip())
        assert found is not None  # it accepts any text
        source = schema.find_field(_column(schema, found["column"], what=f"sort key {item!r}"))
        if not source.field_type.is_primitive:
            raise InvalidArgument(
                f"sort key {item!r} is not possible: column {source.name!r} has type {source.field_type}",
                key="sort.invalid",
                column=source.name,
            )
        direction = SortDirection((found["direction"] or "asc").lower())
        first = (found["nulls"] or ("first" if direction == SortDirection.ASC else "last")).lower() == "first"
        nulls = NullOrder.NULLS_FIRST if first else NullOrder.NULLS_LAST
        fields.append(SortField(source.field_id, IdentityTransform(), direction, nulls))
    return SortOrder(*fields)


def list_items(text: str) -> list[str]:
    """The items of a list with commas, which names in quotes and parentheses may contain."""
    return [item.strip() for item in _LIST_ITEM.findall(text) if item.strip()]


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
