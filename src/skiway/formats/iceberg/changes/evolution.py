# mypy: disable-error-code="no-any-return,call-arg,arg-type"
"""The evolution of tables: their columns, partition specs and sort orders.

Columns are identified by id, whatever their names, so old files stay readable. Partition specs and sort orders are parsed from
text, and rows are split by partition.

    evolved(metadata, [AddColumn("age", pa.int32()), RenameColumn("name", "full_name")])

Types can be widened as Iceberg allows: int to long, float to double, decimals to a higher precision.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import AlreadyExists, InvalidArgument, NotFound
from skiway.formats.iceberg import lib
from skiway.formats.iceberg.changes.commits import Change, Producer, of_metadata
from skiway.formats.iceberg.metadata import updated
from skiway.formats.iceberg.types import iceberg_type
from skiway.formats.schemas import list_items

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.table.update import TableUpdate
    from pyiceberg.table.update.schema import UpdateSchema
    from pyiceberg.typedef import Record

# PyIceberg's models accept the names of fields, but are typed with their JSON aliases.


_TRANSFORM: Final = re.compile(r"(?i:(?P<name>[a-z]+))(?:\[(?P<width>\d+)\])?\((?:(?P<first>\d+)\s*,)?(?P<column>.+)\)")
_SORT_KEY: Final = re.compile(r"(?P<column>.+?)(?i:\s+(?P<direction>asc|desc))?(?i:\s+nulls\s+(?P<nulls>first|last))?")
_ROW: Final = "$row"


def partition_spec(schema: Schema, parts: Sequence[str] | str) -> PartitionSpec:
    """Parse a spec; each part is a column or a transform of one: `region`, `day(ts)`, `bucket(16, id)`, `bucket[16](id)`.

    A text has commas between the parts.
    """
    fields = []
    parts = list_items(parts) if isinstance(parts, str) else parts
    for number, part in enumerate(parts, lib.partitioning.PARTITION_FIELD_ID_START):
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
        fields.append(lib.partitioning.PartitionField(source.field_id, number, transform, name.rstrip("_")))
    return lib.partitioning.PartitionSpec(*fields)


def _parsed(part: str) -> tuple[str, Any]:
    found = _TRANSFORM.fullmatch(part.strip())
    if found is None:
        return part.strip(), lib.transforms.parse_transform("identity")
    width = found["width"] or found["first"]
    name = found["name"].lower() + (f"[{width}]" if width else "")
    try:
        transform = lib.transforms.parse_transform(name)
    except (ValueError, lib.exceptions.ValidationError):
        transform = lib.transforms.UnknownTransform(name)
    unusable = (lib.transforms.UnknownTransform, lib.transforms.VoidTransform)
    if isinstance(transform, unusable) or (width is not None and int(width) < 1):
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

    def produce(metadata: TableMetadata) -> Change:
        fields = []
        old = {(each.source_id, str(each.transform)): each for spec in metadata.partition_specs for each in spec.fields}
        unused = count((metadata.last_partition_id or lib.partitioning.PARTITION_FIELD_ID_START - 1) + 1)
        for field in partition_spec(metadata.schema(), text).fields:
            # A known field keeps its id, so that engines can compare values.
            known = old.get((field.source_id, str(field.transform)))
            number, name = (next(unused), field.name) if known is None else (known.field_id, known.name)
            fields.append(lib.partitioning.PartitionField(field.source_id, number, field.transform, name))
        if len({each.name for each in fields}) < len(fields):
            raise InvalidArgument(f"partitions {text!r} name a column twice", key="partition.invalid")
        unchanged = (
            lib.update.AssertDefaultSpecId(default_spec_id=metadata.default_spec_id),
            lib.update.AssertLastAssignedPartitionId(last_assigned_partition_id=metadata.last_partition_id),
        )
        updates = (
            lib.update.AddPartitionSpecUpdate(spec=lib.partitioning.PartitionSpec(*fields)),
            lib.update.SetDefaultSpecUpdate(spec_id=-1),
        )
        return Change(unchanged, updates)

    return of_metadata(produce)


def sort_by(text: str) -> Producer:
    """Sort rows that are written from now on, by a list such as `ts DESC, id`; not at all if it is empty."""

    def produce(metadata: TableMetadata) -> Change:
        unchanged = lib.update.AssertDefaultSortOrderId(default_sort_order_id=metadata.default_sort_order_id)
        added = lib.update.AddSortOrderUpdate(sort_order=sort_order(metadata.schema(), text))
        return Change((unchanged,), (added, lib.update.SetDefaultSortOrderUpdate(sort_order_id=-1)))

    return of_metadata(produce)


def sort_order(schema: Schema, text: str) -> SortOrder:
    """The sort order that a list such as `ts DESC, id` describes."""
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
        direction = lib.sorting.SortDirection((found["direction"] or "asc").lower())
        usual = "first" if direction == lib.sorting.SortDirection.ASC else "last"
        first = (found["nulls"] or usual).lower() == "first"
        nulls = lib.sorting.NullOrder.NULLS_FIRST if first else lib.sorting.NullOrder.NULLS_LAST
        fields.append(lib.sorting.SortField(source.field_id, lib.transforms.IdentityTransform(), direction, nulls))
    return lib.sorting.SortOrder(*fields)


def split_by_partition(rows: pa.Table, spec: PartitionSpec, schema: Schema) -> Iterator[tuple[Record, pa.Table]]:
    """Yield the rows of each partition, in their original order."""
    names = [f"{place}" for place in range(len(spec.fields))]
    values = pa.table(dict(zip(names, (_values(rows, field, schema) for field in spec.fields), strict=True)))
    numbered = values.append_column(_ROW, pa.array(range(rows.num_rows), pa.int64()))
    groups = numbered.group_by(names, use_threads=False).aggregate([(_ROW, "list")])
    for key, places in zip(groups.select(names).to_pylist(), groups[f"{_ROW}_list"], strict=True):
        whole = len(places) == rows.num_rows
        yield lib.typedef.Record(*key.values()), rows if whole else rows.take(places.values)


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


Path: TypeAlias = "str | tuple[str, ...]"
"""The name of a column, or the path of names to a field in a struct."""


@dataclass(frozen=True, slots=True)
class AddColumn:
    """Add a column, NULL in all existing rows. A path adds a field to a struct."""

    path: Path
    type: pa.DataType
    doc: str | None = None


@dataclass(frozen=True, slots=True)
class DropColumn:
    """Drop a column."""

    path: Path


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """Rename a column."""

    path: Path
    to: str


@dataclass(frozen=True, slots=True)
class MoveColumn:
    """Move a column behind another one of the same level, or to the front."""

    path: Path
    after: Path | None = None


@dataclass(frozen=True, slots=True)
class WidenColumn:
    """Change the type of a column to a wider one."""

    path: Path
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class MakeOptional:
    """Allow NULL in a column."""

    path: Path


@dataclass(frozen=True, slots=True)
class ColumnDoc:
    """Set the comment of a column."""

    path: Path
    doc: str


ColumnChange: TypeAlias = AddColumn | DropColumn | RenameColumn | MoveColumn | WidenColumn | MakeOptional | ColumnDoc


def evolve(changes: Sequence[ColumnChange]) -> Producer:
    """A producer that applies the changes in order. After a lost race, it applies them to the new schema."""
    return of_metadata(lambda metadata: evolved(metadata, changes))


def evolved(metadata: TableMetadata, changes: Sequence[ColumnChange]) -> Change:
    """The requirements and updates of the changes; empty if they change nothing."""
    after = metadata
    for change in changes:
        _check(change, after)
        after = updated(after, (), _step(change, after))
    if after.schema() == metadata.schema():
        return Change((), ())
    updates: list[Any] = [
        lib.update.AddSchemaUpdate(schema=after.schema()),
        lib.update.SetCurrentSchemaUpdate(schema_id=-1),
    ]
    if after.properties != metadata.properties:
        # The name mapping for files without field ids.
        updates.append(lib.update.SetPropertiesUpdate(updates=after.properties))
    unchanged = (
        lib.update.AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        lib.update.AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),
    )
    return Change(unchanged, tuple(updates))


def _step(change: ColumnChange, metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    from pyiceberg.table.update.schema import UpdateSchema

    # PyIceberg's builder only uses the metadata of its transaction.
    update = UpdateSchema(SimpleNamespace(table_metadata=metadata), name_mapping=metadata.name_mapping())
    try:
        _apply(change, update, metadata.format_version)
        return update._commit()[0]
    except (ValueError, TypeError, lib.exceptions.ValidationError) as error:
        path, reason = _dotted(change.path), str(error).partition("\n")[0]
        raise InvalidArgument(
            f"column {path!r} cannot be changed: {reason}", key="column.change", column=path
        ) from error


def _apply(change: ColumnChange, update: UpdateSchema, version: int) -> None:
    match change:
        case AddColumn(path, of, doc):
            update.add_column((path,) if isinstance(path, str) else path, _type(path, of, version), doc)
        case DropColumn(path):
            update.delete_column(path)
        case RenameColumn(path, to):
            update.rename_column(path, to)
        case MoveColumn(path, None):
            update.move_first(path)
        case MoveColumn(path, after):
            update.move_after(path, after)
        case WidenColumn(path, of):
            update.update_column(path, _type(path, of, version))
        case MakeOptional(path):
            update.make_column_optional(path)
        case ColumnDoc(path, doc):
            update.update_column(path, doc=doc)


def _type(path: Path, of: pa.DataType, version: int) -> Any:
    return iceberg_type(pa.field(_dotted(path), of), format_version=version)


def _check(change: ColumnChange, metadata: TableMetadata) -> None:
    """Report common mistakes with better messages than PyIceberg's."""
    schema = metadata.schema()
    known = {name.casefold() for name in schema._name_to_id}
    *above, name = (change.path,) if isinstance(change.path, str) else change.path
    wanted = ".".join((*above, change.to if isinstance(change, RenameColumn) else name))
    renamed_in_case = isinstance(change, RenameColumn) and wanted.casefold() == _dotted(change.path).casefold()
    if isinstance(change, AddColumn | RenameColumn) and wanted.casefold() in known and not renamed_in_case:
        raise AlreadyExists(
            f"column {wanted!r} already exists (names are case-insensitive); choose another name",
            key="column.already.exists",
            column=wanted,
        )
    if isinstance(change, DropColumn) and [_dotted(change.path)] == _names(schema):
        raise InvalidArgument(
            f"column {wanted!r} is the only column of the table; add another first, or drop the table",
            key="columns.none",
        )
    if not isinstance(change, AddColumn) and _dotted(change.path) not in schema._name_to_id:
        raise NotFound(
            f"the table has no column {_dotted(change.path)!r}; it has {', '.join(_names(schema))}",
            key="column.unknown",
            column=_dotted(change.path),
        )


def _names(schema: Schema) -> list[str]:
    return [field.name for field in schema.fields]


def _dotted(path: Path) -> str:
    return path if isinstance(path, str) else ".".join(path)
