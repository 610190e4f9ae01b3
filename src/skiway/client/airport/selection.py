"""The columns and the filter of a scan, as DuckDB requests them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from skiway.airport.wire.payloads import ROWID_COLUMN
from skiway.client.airport.catalog import ROWID, Table
from skiway.client.airport.filters import filter_json, filter_mask
from skiway.client.airport.predicates import Predicate
from skiway.errors import InvalidArgument

__all__ = ["Selection", "Where", "select"]

Where = Predicate | str | None


@dataclass(frozen=True)
class Selection:
    """The columns and the filter of a scan of `table`.

    `columns` are those of the result; None selects all visible ones. As in DuckDB, the columns of the filter are requested
    before them and dropped from the result. A filter given as JSON is sent unchanged and is not applied again here.
    The columns in `repeated` are requested last, each once more even if it is among the others, as UPDATE and DELETE do.
    """

    table: Table
    columns: Sequence[str] | None
    where: Where
    repeated: Sequence[str] = ()

    @cached_property
    def positions(self) -> list[int]:
        """The columns of the result, as positions in the table's schema."""
        return [*self._selected, *(self.table.position(name) for name in self.repeated)]

    @cached_property
    def _selected(self) -> list[int]:
        names = self.table.columns if self.columns is None else self.columns
        return [self.table.position(name) for name in names]

    @cached_property
    def filter_columns(self) -> dict[str, int]:
        """The columns of the filter, by the names it uses, with their positions."""
        if not isinstance(self.where, Predicate):
            return {}
        return {name: self.table.position(name) for name in self.where.columns()}

    @cached_property
    def referenced(self) -> list[int]:
        """All columns that the scan needs, each once, followed by the repeated ones."""
        once = dict.fromkeys([*self.filter_columns.values(), *self._selected])
        return [*once, *self.positions[len(self._selected) :]]

    @cached_property
    def schema(self) -> pa.Schema:
        """The schema of the result."""
        return pa.schema([self._field(position) for position in self.positions])

    def column_ids(self) -> list[int]:
        """The referenced columns as DuckDB numbers them. A scan that needs no column still has to request one."""
        if not self.referenced:
            return [ROWID_COLUMN] if self.table.rowid is not None else [0] if self.table.columns else []
        return [self._column_id(position) for position in self.referenced]

    def json_filters(self) -> str:
        """The filter as JSON, including the names of the columns that it refers to by number."""
        if isinstance(self.where, str):
            return _check_json_filter(self.where)
        names = [self._field(position).name for position in self.referenced]
        aliases = {name: self._field(position) for name, position in self.filter_columns.items()}
        return filter_json(self.where, names, aliases)

    def statistics_columns(self) -> list[int]:
        """The columns whose statistics DuckDB requests: each referenced column twice, or the first column if only rows are counted."""
        if not self.referenced:
            return (
                [] if self.table.rowid is not None else [self.table.position(name) for name in self.table.columns[:1]]
            )
        return [position for position in dict.fromkeys(self.referenced) if position != self.table.rowid] * 2

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the matching rows and the selected columns of a batch that has all columns of the table."""
        selected = batch.select(self.positions)
        if isinstance(self.where, Predicate):
            mask = filter_mask(self.where, batch, self.filter_columns)
            selected = selected.filter(mask) if self.positions else selected.slice(0, mask.true_count)
        return pa.RecordBatch.from_arrays(selected.columns, schema=self.schema) if self.positions else selected

    def _field(self, position: int) -> pa.Field:
        field = self.table.schema.field(position)
        return field.with_name(ROWID) if position == self.table.rowid else field

    def _column_id(self, position: int) -> int:
        rowid = self.table.rowid
        if position == rowid:
            return ROWID_COLUMN
        return position if rowid is None or position < rowid else position - 1


def _check_json_filter(text: str) -> str:
    try:
        document = json.loads(text) if text else {}
    except ValueError as error:
        raise InvalidArgument(f"where= is not valid filter JSON: {error}; build a predicate with col(…)") from error
    if not isinstance(document, dict):
        raise InvalidArgument(f"where= is a JSON {type(document).__name__}, expected an object with 'filters'")
    return text


def select(table: Table, columns: Sequence[str] | None, where: Where) -> Selection:
    """Return a validated selection: errors in names and values surface before any request is sent."""
    if isinstance(columns, str):
        raise InvalidArgument(f"columns={columns!r} is a string; give a list of names: [{columns!r}]")
    selection = Selection(table, columns, where)
    selection.json_filters()
    return selection
