"""Incremental loads from a database: which rows are new, by a column that grows with every new or changed row.

A load reads the rows above the position, up to the highest value that the column had when the load began. A transaction that commits
late can add rows at or below the position. They are found in one of two ways:

    transactions    PostgreSQL shows which transaction has written a row. The position has the oldest one that was still running. A
                    load also reads the rows below the position that this transaction, or a later one, has written.
    overlap         Elsewhere, the position has a checksum of the rows from a value on that was the highest one an hour ago. A load
                    reads these rows again if the checksum has changed.

Rows that are read again replace those in the copy: by key, or in the mode append by the value of the cursor column.

A load fails if rows appear where it does not look for them: below the overlap, or written by transactions that had ended. Deleted
rows only make the numbers smaller. If rows appear below the next overlap while a load reads, the overlap stays where it is, because
the load may have missed them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from skiway.errors import PreconditionFailed
from skiway.metastore.ingest.positions import Position

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
    below the two values of `overlap_starts`. `content` and `content_next` are checksums of the rows from these values on, up to the
    position and up to `highest`. `recent` is a value near the highest one, if there is no position. `at` is the time of the source in
    seconds.
    """

    highest: str | None
    known: int = 0
    is_lower: bool = False
    without: int = 0
    rows: int = 0
    below: int = 0
    below_next: int = 0
    content: str = ""
    content_next: str = ""
    recent: str | None = None
    at: int = 0
    transactions: Transactions | None = None


@dataclass(frozen=True, slots=True)
class CursorRange:
    """The rows to load: those above `after`, if it is set, up to `upto`. `known` rows were loaded before.

    If the load `repeats` its overlap, also those from `overlap` on, or all if it is None. Those that were written by transaction
    `since` or a later one, if it is set. `more` is for the position, and `unmoved` if the overlap has to stay where it is.
    """

    column: str
    after: str | None
    upto: str
    known: int = 0
    repeats: bool = False
    overlap: str | None = None
    since: int | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    unmoved: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reads_again(self) -> bool:
        """Whether rows are read that the copy may have."""
        return self.repeats or self.since is not None

    @property
    def next_overlap(self) -> str | None:
        """The value from which the next load reads rows again; None if it is not known, or if these are all rows."""
        return self.more.get("from")

    def position(self, rows: int, below: int = 0) -> Position:
        """The position after so many rows were read; now, `below` rows are below the next overlap."""
        more = {**self.more, **self.unmoved} if below > self.more.get("below", 0) else self.more
        return {"kind": "cursor", "column": self.column, "value": self.upto, "rows": self.known + rows, **more}


def overlap_starts(position: Position) -> tuple[str | None, str | None]:
    """The value from which the rows are read again in the next load, and the one for the load after it; None for all rows."""
    start = position.get("from", position["value"])
    marks = position.get("marks", [])
    old = [value for value, at in marks if at <= marks[-1][1] - OVERLAP_S]
    return start, old[-1] if old else start


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
        return None if facts.highest is None else _first(column, facts.highest, facts)
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
    return _by_overlap(column, position, facts.highest, facts)


def _first(column: str, highest: str, facts: CursorFacts) -> CursorRange:
    """All rows."""
    if facts.transactions is not None:
        return CursorRange(column, None, highest, more=_pending(facts, facts.transactions))
    more = {
        "from": facts.recent if facts.below else None,
        "below": facts.below,
        "content": facts.content_next,
        "marks": [[highest, facts.at]],
    }
    return CursorRange(column, None, highest, more=more, unmoved={"from": None, "below": 0, "content": ""})


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


def _by_overlap(column: str, position: Position, highest: str, facts: CursorFacts) -> CursorRange | None:
    value = position["value"]
    start, following = overlap_starts(position)
    is_changed = "below" in position and facts.content != position.get("content")
    if highest == value and not is_changed:
        return None
    marks = position.get("marks", [])
    first = next((place for place, (mark, _) in enumerate(marks) if mark == following), 0)
    marks = marks[first:]
    if not marks or facts.at >= marks[-1][1] + _MARK_S:
        marks = [*marks, [highest, facts.at]]
    return CursorRange(
        column,
        value,
        highest,
        facts.below if is_changed else facts.known,
        repeats=is_changed,
        overlap=start if is_changed else None,
        more={"from": following, "below": facts.below_next, "content": facts.content_next, "marks": marks},
        unmoved={"from": start, "below": facts.below, "content": ""},
    )
