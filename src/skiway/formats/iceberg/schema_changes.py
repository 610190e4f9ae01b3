# mypy: disable-error-code="no-any-return,arg-type,call-arg"
"""Schema evolution. Columns are identified by id, whatever their names, so old files stay readable.

    evolved(metadata, [AddColumn("age", pa.int32()), RenameColumn("name", "full_name")])

Types can be widened as Iceberg allows: int to long, float to double, decimals to a higher precision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from skiway.clock import Clock
from skiway.errors import AlreadyExists, InvalidArgument, NotFound
from skiway.formats.iceberg.commits import Change, Producer
from skiway.formats.iceberg.metadata import updated
from skiway.formats.iceberg.types import iceberg_type
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableUpdate
    from pyiceberg.table.update.schema import UpdateSchema

__all__ = [
    "AddColumn",
    "ColumnChange",
    "ColumnDoc",
    "DropColumn",
    "MakeOptional",
    "MoveColumn",
    "RenameColumn",
    "WidenColumn",
    "evolve",
    "evolved",
]

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

    def produce(metadata: TableMetadata, files: TableFiles, clock: Clock) -> Change:  # noqa: ARG001
        return evolved(metadata, changes)

    return produce


def evolved(metadata: TableMetadata, changes: Sequence[ColumnChange]) -> Change:
    """The requirements and updates of the changes; empty if they change nothing."""
    from pyiceberg.table.update import (
        AddSchemaUpdate,
        AssertCurrentSchemaId,
        AssertLastAssignedFieldId,
        SetCurrentSchemaUpdate,
        SetPropertiesUpdate,
    )

    after = metadata
    for change in changes:
        _check(change, after)
        after = updated(after, (), _step(change, after))
    if after.schema() == metadata.schema():
        return Change((), ())
    updates: list[Any] = [AddSchemaUpdate(schema=after.schema()), SetCurrentSchemaUpdate(schema_id=-1)]
    if after.properties != metadata.properties:
        updates.append(SetPropertiesUpdate(updates=after.properties))  # the name mapping for files without field ids
    unchanged = (
        AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id),
        AssertLastAssignedFieldId(last_assigned_field_id=metadata.last_column_id),
    )
    return Change(unchanged, tuple(updates))


def _step(change: ColumnChange, metadata: TableMetadata) -> tuple[TableUpdate, ...]:
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.table.update.schema import UpdateSchema

    # PyIceberg's builder only uses the metadata of its transaction.
    update = UpdateSchema(SimpleNamespace(table_metadata=metadata), name_mapping=metadata.name_mapping())
    try:
        _apply(change, update, metadata.format_version)
        return update._commit()[0]
    except (ValueError, TypeError, ValidationError) as error:
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
