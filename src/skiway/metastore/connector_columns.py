"""Of which columns a connector wants statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from skiway.formats import TableSchema
from skiway.formats.schemas import field_id, leaves
from skiway.model import v1

__all__ = ["EVERY_COLUMN", "ColumnChoice", "chosen_columns"]


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """Columns by dotted name, or `#` and an id; a struct stands for all that is in it.

    A column is chosen that is in each of `includes`, and not in `exclude`. What a table does not have is passed over: other
    tables of the connector may.
    """

    includes: tuple[frozenset[str], ...] = ()
    exclude: frozenset[str] = frozenset()

    def of(self, schema: TableSchema) -> TableSchema:
        """The schema with the chosen columns only."""
        if not self.includes and not self.exclude:
            return schema
        kept = filter(None, (self._kept(each, "", self.includes) for each in schema.arrow))
        return TableSchema(schema.id, pa.schema(kept, metadata=schema.arrow.metadata), schema.json)

    def left_out(self, schema: TableSchema) -> frozenset[int]:
        """The ids of the columns that are not chosen."""
        return _ids(schema) - _ids(self.of(schema))

    def _kept(self, field: pa.Field, above: str, missing: tuple[frozenset[str], ...]) -> pa.Field | None:
        """The field as far as it is chosen; `missing` are those includes that nothing above it is in."""
        path = f"{above}{field.name}"
        names = {path, f"#{field_id(field)}"}
        if names & self.exclude:
            return None
        missing = tuple(include for include in missing if not names & include)
        if not pa.types.is_struct(field.type):
            return None if missing else field
        inner = [kept for each in field.type.fields if (kept := self._kept(each, f"{path}.", missing)) is not None]
        return field.with_type(pa.struct(inner)) if inner else None


EVERY_COLUMN = ColumnChoice()


def chosen_columns(source: v1.ConnectorSource, asked: Iterable[str] = ()) -> ColumnChoice:
    """What a connector chooses, and of that what is asked for; all, where nothing is."""
    includes = (frozenset(source.columns), frozenset(asked))
    return ColumnChoice(tuple(filter(None, includes)), frozenset(source.exclude_columns))


def _ids(schema: TableSchema) -> frozenset[int]:
    return frozenset(leaf.id for leaf in leaves(schema.arrow))
