"""A table that was opened in its current state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats.source import Snapshot, TableHandle, data_files

__all__ = ["OpenedTable", "Totals"]


@dataclass(frozen=True, slots=True)
class Totals:
    """How much data a snapshot has: its data files, their size, and the rows. `rows` is None if deletes have to be read first."""

    files: int
    size_bytes: int
    rows: int | None

    @classmethod
    def of(cls, files: pa.Table) -> Self:
        """The totals of a file table."""
        data = data_files(files)
        is_known = not (data["deleted_rows"].null_count or data["row_count"].null_count)
        rows = _sum(data["row_count"]) - _sum(data["deleted_rows"]) if is_known else None
        return cls(data.num_rows, _sum(data["size_bytes"]), rows)


@dataclass(frozen=True)
class OpenedTable:
    """A table in its current state.

    A Parquet folder has no snapshot ids of its own. For such a table, `known` has the snapshots that the metastore recorded,
    and `recall` returns a handle for each of them. For all other tables, `handle` reads every snapshot.
    """

    handle: TableHandle
    current: Snapshot | None
    known: Sequence[Snapshot] = ()
    recall: Callable[[Snapshot], TableHandle] | None = None

    @cached_property
    def snapshots(self) -> Sequence[Snapshot]:
        """All snapshots, from old to new."""
        return [*self.known, *self.handle.snapshots(self.known)]

    def at(self, snapshot: Snapshot) -> TableHandle:
        """The handle that reads the snapshot."""
        return self.handle if self.recall is None else self.recall(snapshot)

    def totals(self, snapshot: Snapshot) -> Totals:
        """How much data a snapshot has. The totals of the current one are computed once: every scan needs them, at 0.2 ms."""
        return self._current_totals if snapshot is self.current else Totals.of(self.at(snapshot).files(snapshot))

    @cached_property
    def _current_totals(self) -> Totals:
        assert self.current is not None  # `totals` is called with a snapshot
        return Totals.of(self.at(self.current).files(self.current))


def _sum(column: pa.ChunkedArray) -> int:
    found: int = pc.sum(column, min_count=0).as_py()
    return found
