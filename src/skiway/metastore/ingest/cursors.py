"""Incremental loads from a database: which rows are new, by a column that grows with every new or changed row.

A load reads the rows above the position, up to the highest value that the column had when the load began. So it never
depends on rows that are added while it runs. The position also has the number of rows up to it. If there are more of them
later, rows were added below the position, or the column of a row went backward: a load would never see these rows, so it
fails instead. Deleted rows, and rows that moved above the position, only make the number smaller.
"""

from __future__ import annotations

from dataclasses import dataclass

from skiway.errors import PreconditionFailed
from skiway.metastore.ingest.positions import Position

__all__ = ["CursorFacts", "CursorRange", "cursor_range"]


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """What one query says about the cursor column of a table.

    `highest` is its highest value as text; None without rows. Compared with the position, `known` rows are at or below it, and
    `is_lower` says whether all rows are below it. `without` rows have no value.
    """

    highest: str | None
    known: int = 0
    is_lower: bool = False
    without: int = 0


@dataclass(frozen=True, slots=True)
class CursorRange:
    """The rows to load: those above `after`, if it is set, up to `upto`. `known` rows were loaded before."""

    column: str
    after: str | None
    upto: str
    known: int = 0

    def position(self, rows: int) -> Position:
        """The position after so many rows were read."""
        return {"kind": "cursor", "column": self.column, "value": self.upto, "rows": self.known + rows}


def cursor_range(table: str, column: str, position: Position | None, facts: CursorFacts) -> CursorRange | None:
    """The rows to load; None if there are none. Raise `PreconditionFailed` if the column went backward."""
    if facts.without:
        raise PreconditionFailed(
            f"the cursor column {column!r} of {table} is NULL in {facts.without} rows, which would never be loaded: fill it, or "
            "choose another cursor_column",
            key="ingest.cursor.null",
            column=column,
        )
    if position is None:
        return None if facts.highest is None else CursorRange(column, None, facts.highest)
    if position.get("kind") != "cursor" or position["column"] != column:
        raise PreconditionFailed(
            f"the last load of {table} was in another mode, or with another cursor column, so the new rows are unknown: load the "
            "table again in full, with skiway connectors sync --full",
            key="ingest.position.other",
        )
    value, rows = position["value"], position["rows"]
    if facts.highest is None:
        raise PreconditionFailed(
            f"{table} is empty, but rows with {column!r} up to {value} were loaded, and deleted rows stay in the copy: if they were "
            "deleted on purpose, empty the copy with skiway connectors sync --full",
            key="ingest.cursor.backward",
            column=column,
        )
    if facts.is_lower or facts.known > rows:
        found = (
            f"its highest value is {facts.highest}, but rows up to {value} were loaded"
            if facts.is_lower
            else f"{facts.known} rows are at or below {value}, but only {rows} were loaded"
        )
        raise PreconditionFailed(
            f"the cursor column {column!r} of {table} went backward: {found}; choose a column that grows with every new or changed "
            "row, and load the table again in full, with skiway connectors sync --full",
            key="ingest.cursor.backward",
            column=column,
        )
    return None if facts.highest == value else CursorRange(column, value, facts.highest, facts.known)
