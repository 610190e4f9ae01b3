"""How far a table has been loaded, and which rows of its source are new since then.

The position is in the summary of the snapshot that has the rows. A table of a database has a column that grows with every new or
changed row.
"""

from __future__ import annotations

import gzip
import json
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from skiway.errors import Conflict, PreconditionFailed
from skiway.formats.iceberg.metadata import history, summary_properties
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

POSITION: Final = "skiway.ingest.position"
POSITION_FILE: Final = "skiway.ingest.position-file"
_INLINE_BYTES: Final = 4096

Position: TypeAlias = Mapping[str, Any]
"""What a source needs to find later changes, as JSON. The key `kind` says what it is."""

PART: Final = "part"
"""The kind of the position after some of the files of a snapshot."""

MORE: Final = "more"
"""The key of a position after which the source has more to load at once."""

NO_ROWS: Final[Position] = {"kind": "empty"}
"""The position after a full load of a source without rows."""


@dataclass(frozen=True, slots=True)
class StoredPosition:
    """The position of a table, and the snapshot that has it; both None before the first load, or if it is lost."""

    value: Position | None = None
    snapshot_id: int | None = None
    is_lost: bool = False

    @property
    def loaded(self) -> Position | None:
        """The position of the rows that were loaded; None if there are none."""
        return None if self.value == NO_ROWS else self.value


def read_position(files: TableFiles, metadata: TableMetadata, *, may_be_lost: bool = False) -> StoredPosition:
    """The position of the rows that the table has now.

    Raise `PreconditionFailed` if it expired with its snapshot, unless it `may_be_lost`.
    """
    try:
        found = position_snapshot(metadata)
    except PreconditionFailed:
        if not may_be_lost:
            raise
        return StoredPosition(is_lost=True)
    if found is None:
        return StoredPosition()
    place = position_file(found)
    try:
        text = gzip.decompress(files.read(place)) if place else summary_properties(found)[POSITION].encode()
        value = json.loads(text)
        if not isinstance(value, dict):
            raise ValueError("not an object")
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        if may_be_lost:
            return StoredPosition(None, found.snapshot_id)
        raise PreconditionFailed(
            f"the position of the copy in snapshot {found.snapshot_id} cannot be read, so the changes since then are unknown: load "
            "the table again in full, with skiway connectors sync --full",
            key="ingest.position.damaged",
            detail=str(error),
        ) from error
    return StoredPosition(value, found.snapshot_id)


def summary_of(
    position: Position, files: TableFiles, metadata: TableMetadata, *, ids: Callable[[], object] = uuid.uuid4
) -> dict[str, str]:
    """The properties for the summary of a snapshot with this position. A long one is written to a file first."""
    text = json.dumps(position, separators=(",", ":"), sort_keys=True)
    if len(text) <= _INLINE_BYTES:
        return {POSITION: text}
    place = f"{metadata.location}/metadata/ingest-{ids()}.json.gz"
    files.write(place, gzip.compress(text.encode(), mtime=0))
    return {POSITION_FILE: place}


def check_position(metadata: TableMetadata, expected: StoredPosition) -> None:
    """Raise `Conflict` unless the table still has the expected position, or none if that is expected."""
    try:
        found = position_snapshot(metadata)
    except PreconditionFailed:
        if expected.is_lost:
            return
        raise
    if (None if found is None else found.snapshot_id) != expected.snapshot_id:
        raise Conflict(
            "another load of the table was faster, so nothing was committed: its rows are there already",
            key="ingest.overtaken",
        )


def position_snapshot(metadata: TableMetadata) -> Snapshot | None:
    """The latest snapshot in the history of the current one that has a position; None if there has not been any.

    Raise `PreconditionFailed` if the history is incomplete, because the position may have been in an expired snapshot.
    """
    found = position_history(metadata)
    return found[-1] if found else None


def position_history(metadata: TableMetadata) -> list[Snapshot]:
    """The snapshots from the current one back to the one with the position; empty if there has not been any."""
    found: list[Snapshot] = []
    for each in history(metadata):
        found.append(each)
        if POSITION in summary_properties(each) or position_file(each):
            return found
    # The first snapshot of a table has the number 1. Parents do not tell: some catalogs clear them when they expire.
    if found and (found[-1].sequence_number or 0) > 1:
        raise PreconditionFailed(
            "the position of the copy is lost, because the snapshot that had it has expired: load the table again in full, "
            "with skiway connectors sync --full",
            key="ingest.position.lost",
        )
    return []


def position_file(snapshot: Snapshot) -> str:
    """The file with the position of a snapshot; empty if the position is elsewhere, or there is none."""
    return summary_properties(snapshot).get(POSITION_FILE, "")


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

    def rest_after(self, value: str, rows: int) -> CursorRange:
        """The rows that are left after `rows` rows up to a value were loaded, those that are read again among them."""
        return replace(self, after=value, known=self.known + rows, repeats=False, overlap=None, since=None)

    @property
    def part(self) -> Position:
        """The position before these rows, if a load has to stop there."""
        return {"kind": PART, "range": asdict(self)}

    @classmethod
    def rest_of(cls, table: str, column: str, position: Position) -> CursorRange:
        """The rows that a load has left when it was stopped. Raise `PreconditionFailed` if it was of another column."""
        found = cls(**position.get("range", {"column": "", "upto": ""}))
        if found.column != column:
            raise _other(table)
        return found

    def position(self, rows: int, below: int = 0) -> Position:
        """The position after these rows were read; now, `below` rows are below the next overlap."""
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
        raise _other(table)
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


def _other(table: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"the last load of {table} was in another mode, or with another cursor column, so the new rows are unknown: load the "
        "table again in full, with skiway connectors sync --full",
        key="ingest.position.other",
    )


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
