"""The rows that were appended between two snapshots: `AT (VERSION => '12..15')`.

A range begins after its first snapshot, which may be missing (`..15` has all rows), and ends with its last one. Between them
rows may only have been appended: then the rows are those of the files that the last snapshot has and the first one has not.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from skiway.errors import NotFound, PreconditionFailed, Unsupported
from skiway.formats import OpenedTable, Snapshot
from skiway.formats.iceberg.table import IcebergTable

__all__ = ["AppendedRange"]

_RANGE: Final = re.compile(r"(\d*)\.\.(\d+)")


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
                f"table {name!r} has the format {table.handle.format}: only of Iceberg tables can appended rows be read",
                key="snapshot.range",
            )
        known = {each.id: each for each in table.snapshots}
        last = found = _known(known, self.until, name)
        if self.after is not None:
            _known(known, self.after, name)
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
        first = next(each for each in table.snapshots if each.id == self.after)
        before = table.at(first).files(first)["path"].combine_chunks()
        return files.filter(pc.invert(pc.is_in(files["path"], before)))


def _known(known: dict[int, Snapshot], snapshot_id: int, table: str) -> Snapshot:
    if snapshot_id not in known:
        raise NotFound(
            f"table {table!r} has no snapshot with id {snapshot_id}: skiway.snapshots lists its snapshots",
            key="snapshot.not_found",
            table=table,
        )
    return known[snapshot_id]
