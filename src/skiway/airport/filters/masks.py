"""Filters as masks of rows, for batches that are in memory.

`batch.filter(to_arrow(filter, schema))` has the same result, but each call makes an Acero plan, which takes 0.7 ms for a batch of
65,536 rows; a mask takes 0.05 ms. The conditions are written once, and computed for each batch by calling Arrow's functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.filters.arrow import MAX_CONDITIONS, ConditionWriter, join_balanced
from skiway.airport.filters.logic import translate
from skiway.airport.filters.nodes import Filter

__all__ = ["RowMask", "row_mask"]

RowMask: TypeAlias = Callable[[pa.RecordBatch], pa.Array]
"""Returns for each row of a batch whether it is kept: true, false, or NULL, which also means no."""

_Columns: TypeAlias = Callable[[tuple[str, ...]], pa.Array]
"""Returns the column, or the struct field, at a path."""

_Value: TypeAlias = Callable[[_Columns], Any]
"""Computes an array, or a scalar, from columns."""


def row_mask(filter: Filter, schema: pa.Schema) -> RowMask | None:  # noqa: A002
    """The mask that keeps the rows that `to_arrow(filter, schema)` keeps; None if nothing can be expressed."""
    kept: _Value | None = translate(
        filter,
        _MaskWriter(schema).condition,
        all_of=join_balanced(_joined(pc.and_kleene)),
        any_of=join_balanced(_joined(pc.or_kleene)),
        limit=MAX_CONDITIONS,
    )
    if kept is None:
        return None

    def mask(batch: pa.RecordBatch) -> pa.Array:
        found = kept(lambda path: _within(batch.column(path[0]), path))
        return pa.repeat(found, batch.num_rows) if isinstance(found, pa.Scalar) else found

    return mask


class _MaskWriter(ConditionWriter):
    """Writes conditions as functions of columns."""

    def field(self, path: tuple[str, ...]) -> _Value:
        return lambda columns: columns(path)

    def constant(self, value: pa.Scalar) -> _Value:
        return lambda _: value

    def call(self, function: Callable[..., Any], *arguments: _Value, **options: Any) -> _Value:
        return lambda columns: function(*(argument(columns) for argument in arguments), **options)

    def check(self, expression: _Value) -> None:
        assert self.schema is not None
        empty = {field.name: field.type for field in self.schema}
        expression(lambda path: _within(pa.array([], empty[path[0]]), path))


def _joined(by: Callable[[Any, Any], Any]) -> Callable[[_Value, _Value], _Value]:
    return lambda left, right: lambda columns: by(left(columns), right(columns))


def _within(column: pa.Array, path: tuple[str, ...]) -> pa.Array:
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column
