"""Rows on their way to the server: taken from the caller, fitted to a table's columns, cut to DuckDB's size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.wire.duckdb_types import storage_type
from skiway.client.catalog import ROWID, Table
from skiway.errors import ConstraintViolation, InvalidArgument, NullRowId

__all__ = ["Batches", "Outgoing", "batches_of", "cast", "in_vectors"]

VECTOR: Final = 2048  # rows that DuckDB has in one batch at most

_KEPT_METADATA: Final = (b"ARROW:extension:name", b"ARROW:extension:metadata")

Batches = Iterator[pa.RecordBatch]


def batches_of(rows: Any) -> tuple[pa.Schema | None, Batches]:
    """Schema and batches of anything with `__arrow_c_stream__`, a batch, or an iterable of batches; None if empty."""
    if isinstance(rows, pa.RecordBatch):
        return rows.schema, iter([rows])
    if hasattr(rows, "__arrow_c_stream__"):
        reader = pa.RecordBatchReader.from_stream(rows)
        return reader.schema, iter(reader)
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise InvalidArgument(f"rows are Arrow data or batches of it, not {_kind(rows)}: try pyarrow.table(…)")
    batches = _checked(iter(rows))
    first = next(batches, None)
    return (None, iter(())) if first is None else (first.schema, chain([first], batches))


def _checked(batches: Iterator[Any]) -> Batches:
    schema = None
    for batch in batches:
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidArgument(f"rows are Arrow data or batches of it, but there is a {_kind(batch)} among them")
        schema = schema or batch.schema
        if not batch.schema.equals(schema):
            raise InvalidArgument(
                f"all batches need the same columns: {', '.join(schema.names)} came first, "
                f"and {', '.join(batch.schema.names)} after it, or in other types"
            )
        yield batch


def _kind(value: Any) -> str:
    return type(value).__name__


def in_vectors(batches: Iterable[pa.RecordBatch]) -> Batches:
    """The same rows in batches as small as DuckDB's."""
    for batch in batches:
        for start in range(0, batch.num_rows, VECTOR):
            yield batch.slice(start, VECTOR)


@dataclass(frozen=True)
class Outgoing:
    """Columns of a table that a statement sends: `fields` as the table has them, `schema` as the wire does.

    The wire knows no NOT NULL and no comments, so all that is left of a field's metadata is its extension type.
    """

    table: Table
    fields: tuple[pa.Field, ...]

    @classmethod
    def of(cls, table: Table, names: Iterable[str]) -> Outgoing:
        """These columns, in this order; `rowid` is the row id."""
        positions = [table.position(name) for name in names]
        return cls(
            table,
            tuple(
                table.schema.field(position).with_name(ROWID)
                if position == table.rowid
                else table.schema.field(position)
                for position in positions
            ),
        )

    @property
    def schema(self) -> pa.Schema:
        """What is announced to the server."""
        return pa.schema([_on_the_wire(field) for field in self.fields])

    def fitted(self, given: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Batches:
        """The caller's batches in these columns, found by name; what is missing is NULL."""
        sources = self._sources(given)  # now: mistakes in names show before anything is sent
        return (self._fit({name: batch.column(i) for name, i in sources.items()}, batch.num_rows) for batch in batches)

    def _fit(self, found: Mapping[str, pa.Array], rows: int) -> pa.RecordBatch:
        return self.batch(
            [
                self.cast(found[field.name], field) if field.name in found else pa.nulls(rows, field.type)
                for field in self.fields
            ]
        )

    def batch(self, columns: list[pa.Array]) -> pa.RecordBatch:
        """One batch of these columns; refuses NULLs where the table or the row id has none, as DuckDB does."""
        for field, column in zip(self.fields, columns, strict=True):
            if field.name == ROWID and column.null_count:
                raise NullRowId
            if not field.nullable and column.null_count:
                raise ConstraintViolation(
                    f"NOT NULL constraint failed: {self.table.name}.{field.name}",
                    key="not_null",
                    table=self.table.name,
                    column=field.name,
                )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def cast(self, column: pa.Array, field: pa.Field) -> pa.Array:
        """A column's values in its type; `InvalidArgument` if one does not fit."""
        try:
            return cast(column, field.type)
        except pa.ArrowException as error:
            raise InvalidArgument(
                f"column {field.name!r} of {self.table} is {field.type}, and {column.type} was given: {error}"
            ) from error

    def _sources(self, given: pa.Schema) -> dict[str, int]:
        """Where in the input each column is."""
        sources: dict[str, int] = {}
        for index, name in enumerate(given.names):
            position = self.table.position(name)
            known = ROWID if position == self.table.rowid else self.table.schema.field(position).name
            if known in sources:
                raise InvalidArgument(f"column {name!r} of {self.table} is given twice")
            if all(field.name != known for field in self.fields):
                raise InvalidArgument(f"column {name!r} of {self.table} cannot be given: the server numbers the rows")
            sources[known] = index
        return sources


def cast(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """An array in another type; extension types go by what is stored below them."""
    if column.type == wanted:
        return column
    plain = column.storage if isinstance(column, pa.ExtensionArray) else column
    stored = _laid_out(plain).cast(storage_type(wanted))
    return pa.ExtensionArray.from_storage(wanted, stored) if isinstance(wanted, pa.BaseExtensionType) else stored


def _laid_out(column: pa.Array) -> pa.Array:
    """Views of lists as lists. Arrow's own cast makes arrays of them whose offsets lead outside of their buffers."""
    of = column.type
    if pa.types.is_list_view(of) or pa.types.is_large_list_view(of):
        lengths = pc.fill_null(pc.list_value_length(column), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        values = _laid_out(column.flatten())
        return pa.LargeListArray.from_arrays(offsets, values, mask=column.is_null() if len(column) else None)
    if any(_is_view(of.field(place).type) for place in range(of.num_fields)):
        raise pa.ArrowInvalid("views of lists within other types cannot be converted: give lists")
    return column


def _is_view(of: pa.DataType) -> bool:
    inside = [of.field(place).type for place in range(of.num_fields)]
    return pa.types.is_list_view(of) or pa.types.is_large_list_view(of) or any(map(_is_view, inside))


def _on_the_wire(field: pa.Field) -> pa.Field:
    kept = {key: field.metadata[key] for key in _KEPT_METADATA if key in (field.metadata or {})}
    return pa.field(field.name, field.type, metadata=kept or None)
