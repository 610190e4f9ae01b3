"""Incremental loads from a database: which rows are new, by a column that grows with every new or changed row.

A load reads the rows above the position, up to the highest value that the column had when the load began. A transaction that commits
late can add rows at or below the position. They are found in one of two ways:

    transactions    PostgreSQL shows which transaction has written a row. The position has the oldest one that was still running. A
                    load also reads the rows below the position that this transaction, or a later one, has written.
    overlap         Elsewhere, a load also reads the rows from a value on that was the highest one an hour ago. In the mode append it
                    does so only if their number has changed.

Rows that are read again replace those in the copy: by key, or in the mode append by the value of the cursor column.

A load fails if rows appear where it does not look for them: below the overlap, or written by transactions that had ended. Deleted
rows only make the numbers smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skiway.errors import PreconditionFailed
from skiway.metastore.ingest.positions import Position
from skiway.metastore.ingest.settings import CopyMode

__all__ = ["OVERLAP_S", "CursorFacts", "CursorRange", "Transactions", "cursor_range", "overlap_starts"]

OVERLAP_S: Final = 3600
"""How long a transaction may take, by the clock of the source, for its rows to be read without information about transactions."""

_MARK_S: Final = 300


@dataclass(frozen=True, slots=True)
class Transactions:
    """What PostgreSQL says about the transactions that have written the rows of a table.

    `oldest` is the oldest one that is still running. `late` rows at or below the position were written by transaction `since`, or a
    later one. `pending` and `written` identify the rows that were written by `oldest` and by `since`, and later.
    """

    oldest: int
    since: int = 0
    late: int = 0
    pending: str = ""
    written: str = ""


@dataclass(frozen=True, slots=True)
class CursorFacts:
    """What one query says about the cursor column of a table.

    `highest` is its highest value as text; None without rows. Compared with the position, `known` rows are at or below it, and
    `is_lower` says whether all rows are below it. `without` rows have no value, and `rows` have one. `below` and `below_next` rows are
    below the two values of `overlap_starts`; `recent` is a value near the highest one, if there is no position. `at` is the time of the
    source in seconds.
    """

    highest: str | None
    known: int = 0
    is_lower: bool = False
    without: int = 0
    rows: int = 0
    below: int = 0
    below_next: int = 0
    recent: str | None = None
    at: int = 0
    transactions: Transactions | None = None


@dataclass(frozen=True, slots=True)
class CursorRange:
    """The rows to load: those above `after`, if it is set, up to `upto`. `known` rows were loaded before.

    Also those from `overlap` on, or those that were written by transaction `since` or a later one, if these are set. `more` is for the
    position.
    """

    column: str
    after: str | None
    upto: str
    known: int = 0
    overlap: str | None = None
    since: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_again(self) -> bool:
        """Whether rows are read that the copy may have."""
        return self.overlap is not None or self.since is not None

    def position(self, rows: int) -> Position:
        """The position after so many rows were read."""
        return {"kind": "cursor", "column": self.column, "value": self.upto, "rows": self.known + rows, **self.more}


def overlap_starts(position: Position) -> tuple[str, str]:
    """The value from which the rows are read again in the next load, and the one for the load after it."""
    start = position.get("from", position["value"])
    marks = position.get("marks", [])
    old = [value for value, at in marks if at <= marks[-1][1] - OVERLAP_S]
    return start, old[-1] if old else start


def cursor_range(
    table: str, column: str, position: Position | None, facts: CursorFacts, mode: CopyMode
) -> CursorRange | None:
    """The rows to load; None if there are none. Raise `PreconditionFailed` if the column went backward."""
    if facts.without:
        raise PreconditionFailed(
            f"the cursor column {column!r} of {table} is NULL in {facts.without} rows, which would never be loaded: fill it, or "
            "choose another cursor_column",
            key="ingest.cursor.null",
            column=column,
        )
    if position is None:
        return None if facts.highest is None else CursorRange(column, None, facts.highest, more=_first(facts))
    if position.get("kind") != "cursor" or position["column"] != column:
        raise PreconditionFailed(
            f"the last load of {table} was in another mode, or with another cursor column, so the new rows are unknown: load the "
            "table again in full, with skiway connectors sync --full",
            key="ingest.position.other",
        )
    value = position["value"]
    if facts.highest is None:
        raise PreconditionFailed(
            f"{table} is empty, but rows with {column!r} up to {value} were loaded, and deleted rows stay in the copy: if they were "
            "deleted on purpose, empty the copy with skiway connectors sync --full",
            key="ingest.cursor.backward",
            column=column,
        )
    difference = f"its highest value is {facts.highest}, but rows up to {value} were loaded" if facts.is_lower else ""
    difference = difference or _unexpected(position, facts)
    if difference:
        raise PreconditionFailed(
            f"the cursor column {column!r} of {table} went backward: {difference}; choose a column that grows with every new or changed "
            "row, and load the table again in full, with skiway connectors sync --full",
            key="ingest.cursor.backward",
            column=column,
        )
    if facts.transactions is not None:
        return _by_transactions(column, position, facts.highest, facts, facts.transactions)
    return _by_overlap(column, position, facts.highest, facts, mode)


def _first(facts: CursorFacts) -> dict[str, Any]:
    """What the position has after a load of all rows."""
    if facts.transactions is not None:
        return _pending(facts, facts.transactions)
    if facts.recent is None:
        return {}
    return {"from": facts.recent, "below": facts.below, "marks": [[facts.highest, facts.at]]}


def _unexpected(position: Position, facts: CursorFacts) -> str:
    """Which rows a load would not see; empty if there are none."""
    value, rows, below = position["value"], position["rows"], position.get("below")
    late = facts.transactions.late if facts.transactions is not None and "transaction" in position else 0
    if below is not None and facts.transactions is None:
        if facts.below > below:
            return f"{facts.below} rows are below {position['from']}, but only {below} were loaded"
        return ""
    if facts.known - late > rows:
        return f"{facts.known} rows are at or below {value}, but only {rows} were loaded"
    return ""


def _by_transactions(
    column: str, position: Position, highest: str, facts: CursorFacts, found: Transactions
) -> CursorRange | None:
    value, knows_transactions = position["value"], "transaction" in position
    is_late = knows_transactions and found.late > 0
    if highest == value and not (is_late and found.written != position["pending"]):
        return None
    return CursorRange(column, value, highest, since=found.since if is_late else None, more=_pending(facts, found))


def _pending(facts: CursorFacts, found: Transactions) -> dict[str, Any]:
    """The rows that the query has seen count, and not those that the load reads: it may also read later ones, which are pending."""
    return {"rows": facts.rows, "transaction": found.oldest, "pending": found.pending}


def _by_overlap(
    column: str, position: Position, highest: str, facts: CursorFacts, mode: CopyMode
) -> CursorRange | None:
    value, below = position["value"], position.get("below")
    start, following = overlap_starts(position)
    is_changed = below is not None and facts.known - facts.below != position["rows"] - below
    if highest == value and not is_changed:
        return None
    marks = position.get("marks", [])
    first = next((place for place, (mark, _) in enumerate(marks) if mark == following), 0)
    marks = marks[first:]
    if not marks or facts.at >= marks[-1][1] + _MARK_S:
        marks = [*marks, [highest, facts.at]]
    more = {"from": following, "below": facts.below_next, "marks": marks}
    if is_changed or (mode == CopyMode.UPSERT and below is not None):
        return CursorRange(column, value, highest, facts.below, overlap=start, more=more)
    return CursorRange(column, value, highest, facts.known, more=more)
