"""Rows as clients send them, made rows of the table as it is now.

A client sends the columns that it knows, in the types of its session. Columns are matched by id with those of now: they
may be called otherwise, or be wider. One that was dropped cannot be written any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from skiway.airport.memory import to_column
from skiway.errors import ConstraintViolation, InvalidArgument
from skiway.formats.schemas import field_id
from skiway.lake.columns import ROWID, Columns, table_changed

__all__ = ["Incoming"]


class Incoming:
    """Converts the batches of one statement; `given` is their schema, `known` the columns that the client knows."""

    def __init__(self, table: str, given: pa.Schema, *, known: Columns, now: pa.Schema) -> None:
        self._table = table
        names_now = {field_id(field): field for field in now}
        self.columns: list[tuple[int, pa.Field, pa.Field]] = []  # place in the input, as announced, as it is now
        for place, name in enumerate(given.names):
            if name != ROWID:
                at = _position(known.stored, name, table)
                found = names_now.get(field_id(known.stored.field(at)))
                if found is None:
                    raise table_changed(table, f"column {name!r} was dropped")
                self.columns.append((place, known.announced.field(at), found))

    @property
    def names(self) -> Sequence[str]:
        """What the columns that come are called now."""
        return [now.name for _, _, now in self.columns]

    def announced(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows in the types that the client was told; what does not fit them, or may not be NULL, is refused."""
        columns = [to_column(rows.column(place), told) for place, told, _ in self.columns]
        for column, (_, told, now) in zip(columns, self.columns, strict=True):
            if column.null_count and not now.nullable:
                raise ConstraintViolation(
                    f"NOT NULL constraint failed: {self._table}.{told.name}", key="column.not_null", column=told.name
                )
        return pa.RecordBatch.from_arrays(columns, schema=pa.schema([told for _, told, _ in self.columns]))

    def stored(self, announced: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows under the names of now."""
        return announced.rename_columns(list(self.names))


def _position(schema: pa.Schema, name: str, table: str) -> int:
    for place, known in enumerate(schema.names):
        if known.casefold() == name.casefold():
            return place
    raise InvalidArgument(
        f"table {table!r} has no column {name!r}; it has {', '.join(schema.names)}", key="column.unknown", column=name
    )
