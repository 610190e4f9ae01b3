"""Row lineage (version 3): the id of a row, and the commit that last changed it, stay with the row when it moves.

Files of new rows do not contain them: readers derive the id from the file's first row id and the row's position, and the
commit from the file's sequence number. When an existing row is written to another file, both values are written with it.
For a row that was changed, the commit is left NULL, so that readers take the one that adds the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.schemas import with_id

if TYPE_CHECKING:
    from pyiceberg.schema import Schema

__all__ = ["FileLineage", "Lineage", "with_lineage"]

_ROW_ID: Final = ("_row_id", 2147483540)
_LAST_UPDATED: Final = ("_last_updated_sequence_number", 2147483539)


@dataclass(frozen=True, slots=True)
class Lineage:
    """The two columns of a table's files. Readers find them by id; their names differ from those of the table's columns."""

    row_id: pa.Field
    last_updated: pa.Field

    @classmethod
    def of(cls, schema: pa.Schema) -> Lineage:
        """The columns for a table with this schema."""
        row_id, last_updated = (
            with_id(pa.field(_distinct(name, schema.names), pa.int64()), number)
            for name, number in (_ROW_ID, _LAST_UPDATED)
        )
        return cls(row_id, last_updated)

    def added_to(self, schema: pa.Schema) -> pa.Schema:
        """`schema` with the two columns at its end."""
        return pa.schema([*schema, self.row_id, self.last_updated])

    def filled(self, rows: pa.RecordBatch, positions: pa.Array, file: FileLineage) -> pa.RecordBatch:
        """`rows`, which are at `positions` of a file, with the values that they inherit from the file."""
        if file.first_row_id is not None:
            inherited = pc.add(positions, pa.scalar(file.first_row_id, pa.int64()))
            rows = _with(rows, self.row_id, pc.coalesce(rows.column(self.row_id.name), inherited))
        number = pa.scalar(file.sequence_number, pa.int64())
        return _with(rows, self.last_updated, pc.coalesce(rows.column(self.last_updated.name), number))

    def changed(self, rows: pa.RecordBatch, which: pa.Array) -> pa.RecordBatch:
        """`rows`, of which those in the mask `which` were changed."""
        before = rows.column(self.last_updated.name)
        return _with(rows, self.last_updated, pc.if_else(which, pa.scalar(None, pa.int64()), before))


@dataclass(frozen=True, slots=True)
class FileLineage:
    """What the rows of a file inherit. Rows of a table that was upgraded have no ids until the next commit."""

    first_row_id: int | None
    sequence_number: int | None


def with_lineage(schema: Schema) -> Schema:
    """The schema of files that contain the lineage of their rows."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import LongType, NestedField

    taken = [field.name for field in schema.fields]
    more = [
        NestedField(number, _distinct(name, taken), LongType(), required=False)
        for name, number in (_ROW_ID, _LAST_UPDATED)
    ]
    return Schema(*schema.fields, *more, schema_id=schema.schema_id)


def _distinct(name: str, taken: list[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _with(rows: pa.RecordBatch, field: pa.Field, column: pa.Array) -> pa.RecordBatch:
    return rows.set_column(rows.schema.get_field_index(field.name), field, column)
