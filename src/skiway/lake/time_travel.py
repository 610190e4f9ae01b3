"""Points in time of a table, which `AT (…)` names: snapshots, and ranges of them.

A snapshot is named by its id, by a name (a branch or tag of Iceberg, a version of Delta, the number of a Parquet listing), or by
the time at which it was current.

A range, such as `12..15`, has the rows that were appended after its first snapshot, up to its last one; `..15` begins with the
table. Between the two, rows may only have been appended: then the rows are those of the files that the last snapshot has and the
first one has not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import TimePoint
from skiway.errors import NotFound, PreconditionFailed, Unsupported
from skiway.formats import OpenedTable, Snapshot
from skiway.formats.iceberg.table import IcebergTable

__all__ = ["AppendedRange", "snapshot_as_of", "snapshot_at", "snapshot_with_id"]

_RANGE: Final = re.compile(r"(\d*)\.\.(\d+)")


def snapshot_with_id(table: OpenedTable, snapshot_id: int) -> Snapshot:
    """The snapshot with this id."""
    for snapshot in table.snapshots:
        if snapshot.id == snapshot_id:
            return snapshot
    raise _none(table, f"with id {snapshot_id}")


def snapshot_at(table: OpenedTable, point: TimePoint) -> Snapshot:
    """The snapshot that `AT (…)` names."""
    if point.unit == "timestamp":
        found = snapshot_as_of(table, point.timestamp())
        if found is None:
            raise _none(table, f"as old as {point.value}")
        return found
    named = table.handle.refs.get(point.value)
    if named is not None:
        return snapshot_with_id(table, named)
    between = AppendedRange.parse(point.value)
    if between is not None:
        return between.last(table)
    if not point.value.isdecimal():
        names = ", ".join(sorted(table.handle.refs)) or "none"
        raise _none(table, f"called {point.value!r} (named ones: {names})")
    return snapshot_with_id(table, int(point.value))


def snapshot_as_of(table: OpenedTable, moment: datetime) -> Snapshot | None:
    """The snapshot that was current at `moment`; None if there was none yet."""
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
        f"table {table.handle.name.name!r} has no snapshot {which}: skiway.snapshots lists its snapshots",
        key="snapshot.not_found",
        table=table.handle.name.name,
    )


@dataclass(frozen=True, slots=True)
class AppendedRange:
    """A range of snapshots; `after` is None if it begins with the table."""

    after: int | None
    until: int

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """The range that a text describes; None if it describes none."""
        found = _RANGE.fullmatch(text)
        return None if found is None else cls(int(found[1]) if found[1] else None, int(found[2]))

    def last(self, table: OpenedTable) -> Snapshot:
        """The last snapshot. Raise unless rows were only appended after the first one."""
        name = table.handle.name.name
        if not isinstance(table.handle, IcebergTable):
            raise Unsupported(
                f"table {name!r} has the format {table.handle.format}: appended rows can only be read from Iceberg tables",
                key="snapshot.range",
            )
        known = {each.id: each for each in table.snapshots}
        last = found = snapshot_with_id(table, self.until)
        if self.after is not None:
            snapshot_with_id(table, self.after)
        while found.id != self.after:
            operation = found.summary.get("operation", "")
            if operation != "append":
                raise PreconditionFailed(
                    f"rows of table {name!r} were not only appended: snapshot {found.id} is the result of {operation!r}; "
                    "read a range that does not contain it",
                    key="snapshot.range",
                    snapshot=str(found.id),
                )
            if found.parent_id is None and self.after is None:
                break
            if found.parent_id is None or found.parent_id not in known:
                raise PreconditionFailed(
                    f"snapshot {self.until} of table {name!r} does not follow snapshot {self.after or 'none'}: snapshots "
                    "between them have expired, or the table was rolled back",
                    key="snapshot.range",
                    snapshot=str(self.until),
                )
            found = known[found.parent_id]
        return last

    def appended(self, table: OpenedTable, files: pa.Table) -> pa.Table:
        """Those of the last snapshot's files that the first one has not."""
        if self.after is None:
            return files
        first = snapshot_with_id(table, self.after)
        before = table.at(first).files(first)["path"].combine_chunks()
        return files.filter(pc.invert(pc.is_in(files["path"], before)))
