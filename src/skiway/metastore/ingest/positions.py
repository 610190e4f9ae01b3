"""How far a table has been loaded: the position of its source, in the summary of the snapshot that has the rows.

A position is committed together with the rows up to it, and is read from the history of the current snapshot. So it is always
that of the rows that the table has: also after a killed load, after commits of others, and after a rollback. A position with
many files does not fit into a summary; then the summary names a file with it, in the folder of the table.
"""

from __future__ import annotations

import gzip
import json
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from skiway.errors import Conflict, PreconditionFailed
from skiway.formats.iceberg.snapshots import history, summary_properties
from skiway.formats.iceberg.warehouse import TableFiles

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

__all__ = [
    "NO_ROWS",
    "POSITION",
    "POSITION_FILE",
    "Position",
    "StoredPosition",
    "check_position",
    "position_file",
    "position_history",
    "position_snapshot",
    "read_position",
    "summary_of",
]

POSITION: Final = "skiway.ingest.position"
POSITION_FILE: Final = "skiway.ingest.position-file"
_INLINE_BYTES: Final = 4096

Position: TypeAlias = Mapping[str, Any]
"""What a source needs to find later changes, as JSON. The key `kind` says what it is."""

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
