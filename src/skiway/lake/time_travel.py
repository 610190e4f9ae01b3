"""Which snapshot a time-travel query means: an id or a name (a version, for Delta; a listing's number, for Parquet), or the
one that was current at a moment.
"""

from __future__ import annotations

from datetime import UTC, datetime

from skiway.airport import TimePoint
from skiway.errors import NotFound
from skiway.formats import Snapshot
from skiway.formats.iceberg import IcebergTable
from skiway.lake.handles import OpenedTable

__all__ = ["snapshot_as_of", "snapshot_at", "snapshot_with_id"]


def snapshot_with_id(table: OpenedTable, snapshot_id: int) -> Snapshot:
    """The snapshot with that id."""
    for snapshot in table.snapshots:
        if snapshot.id == snapshot_id:
            return snapshot
    raise _none(table, f"with id {snapshot_id}")


def snapshot_at(table: OpenedTable, point: TimePoint) -> Snapshot:
    """The snapshot that `AT (…)` means."""
    if point.unit == "timestamp":
        found = snapshot_as_of(table, point.timestamp())
        if found is None:
            raise _none(table, f"as old as {point.value}")
        return found
    named = table.handle.refs.get(point.value)
    if named is not None:
        return snapshot_with_id(table, named)
    if not point.value.isdecimal():
        names = ", ".join(sorted(table.handle.refs)) or "none"
        raise _none(table, f"called {point.value!r} (named ones: {names})")
    return snapshot_with_id(table, int(point.value))


def snapshot_as_of(table: OpenedTable, moment: datetime) -> Snapshot | None:
    """The snapshot that was current at `moment`; None where there was none yet."""
    if isinstance(table.handle, IcebergTable):
        log = table.handle.metadata.snapshot_log
        earlier = [
            entry.snapshot_id for entry in log if datetime.fromtimestamp(entry.timestamp_ms / 1000, UTC) <= moment
        ]
        return snapshot_with_id(table, earlier[-1]) if earlier else None
    found = [snapshot for snapshot in table.snapshots if snapshot.created_at <= moment]
    return found[-1] if found else None


def _none(table: OpenedTable, which: str) -> NotFound:
    return NotFound(
        f"table {table.handle.name.name!r} has no snapshot {which}: see which there are in skiway.snapshots",
        key="snapshot.not_found",
        table=table.handle.name.name,
    )
