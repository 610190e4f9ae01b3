"""Rows that equality deletes delete: those whose values in some columns equal the values of a row of a delete file.

Columns are matched by field id, so renamed columns still match, and so do columns that the table has dropped since, as long
as the data file has them. NULL equals NULL. A column that a data file does not have yet is compared with its default, or
with NULL.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.layouts import plain_array
from skiway.errors import Unsupported
from skiway.formats.schemas import field_id, with_id

__all__ = ["EqualityDeletes", "FieldPath", "field_paths", "key_fields"]

FieldPath: TypeAlias = tuple[pa.Field, ...]
"""A field, after the structs that contain it, from the outside."""

_Codes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


def field_paths(schema: pa.Schema) -> dict[int, FieldPath]:
    """The columns of a schema and the fields of its structs, by id."""
    found: dict[int, FieldPath] = {}

    def add(field: pa.Field, above: FieldPath) -> None:
        number = field_id(field)
        if number is not None:
            found[number] = (*above, field)
        for child in field.type if pa.types.is_struct(field.type) else ():
            add(child, (*above, field))

    for field in schema:
        add(field, ())
    return found


def key_fields(ids: Sequence[int], paths: Mapping[int, FieldPath], *, table: str) -> tuple[pa.Field, ...]:
    """The columns to read in order to compare the fields with these ids.

    A field of a struct is a column with that struct, reduced to the field.
    """
    fields = []
    for number in ids:
        if number not in paths:
            raise Unsupported(
                f"table {table!r} has equality deletes by a column with id {number}, which none of its schemas has; rewrite "
                "its data files with an engine that supports it",
                key="table.feature",
                table=table,
                feature="equality deletes by an unknown column",
            )
        *above, field = paths[number]
        for parent in reversed(above):
            field = with_id(pa.field(parent.name, pa.struct([field.with_nullable(True)])), field_id(parent))
        # Names are unique here, although several fields can be of the same struct.
        name = ".".join(each.name for each in paths[number])
        fields.append(with_id(pa.field(f"{name} (id {number})", field.type), field_id(field)))
    return tuple(fields)


@dataclass(frozen=True)
class EqualityDeletes:
    """The distinct keys of one or several delete files.

    Each column has its distinct values. A key is a sequence of numbers of values, and is found column by column:
    `_known[n]` has the combinations that occur in the first columns up to `n`, ascending.
    """

    fields: tuple[pa.Field, ...]
    _values: tuple[pa.Array, ...]
    _known: tuple[_Codes, ...]

    @classmethod
    def of(cls, fields: tuple[pa.Field, ...], deletes: Sequence[pa.Table]) -> EqualityDeletes:
        """The keys in `deletes`, which have the columns `fields`."""
        keys = pa.concat_tables(deletes)
        columns = [_leaf(keys[field.name].combine_chunks()) for field in fields]
        values = tuple(column.unique() for column in columns)
        known: list[_Codes] = []
        before: _Codes = np.zeros(keys.num_rows, dtype=np.int64)
        for column, distinct in zip(columns, values, strict=True):
            combined = before * len(distinct) + _numbers(column, distinct)
            found, before = np.unique(combined, return_inverse=True)
            known.append(found)
        return cls(fields, values, tuple(known))

    @property
    def nbytes(self) -> int:
        """The memory that the keys take."""
        return sum(each.nbytes for each in (*self._values, *self._known))

    def matches(self, columns: Sequence[pa.Array]) -> pa.Array:
        """A mask of the rows that have one of the keys."""
        before: _Codes = np.zeros(len(columns[0]), dtype=np.int64)
        for column, distinct, known in zip(columns, self._values, self._known, strict=True):
            if not len(known):
                return pa.repeat(False, len(column))
            numbers = _numbers(_leaf(column), distinct)
            combined = np.where(numbers < 0, -1, before * len(distinct) + numbers)  # negative if not found
            places = np.minimum(np.searchsorted(known, combined), len(known) - 1)
            before = np.where(known[places] == combined, places, -1)
        return pa.array(before >= 0)


def _numbers(column: pa.Array, distinct: pa.Array) -> _Codes:
    """The place of each value in `distinct`, or -1."""
    found = pc.fill_null(pc.index_in(column, value_set=distinct), -1)
    return np.asarray(found, dtype=np.int64)


def _leaf(column: pa.Array) -> pa.Array:
    """The values of a column, or of the only field of nested structs."""
    while pa.types.is_struct(column.type):
        column = pc.struct_field(column, [0])
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return plain_array(column)
