"""What is known of a table in one of its snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from skiway.client.metastore.calls import Calls
from skiway.client.metastore.changes import time_of
from skiway.errors import NotFound
from skiway.model import v1

__all__ = ["TableStats", "known_stats"]

_UNKNOWN: Final = frozenset(("snapshot.none", "table.stats"))
"""Keys of a table that is there but has no snapshot yet, or one that was never profiled."""


@dataclass(frozen=True, slots=True)
class TableStats:
    """Statistics of a table. None means unknown; `message` is what was received, if anything was."""

    message: v1.TableStats | None

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot they are of."""
        return None if self.message is None else self.message.snapshot_id

    @property
    def row_count(self) -> int | None:
        """How many rows there are."""
        return None if self.message is None else self.message.row_count

    @property
    def data_file_count(self) -> int | None:
        """How many data files there are."""
        return None if self.message is None else self.message.data_file_count

    @property
    def total_size_bytes(self) -> int | None:
        """How large the data files are, all together."""
        return None if self.message is None else self.message.total_size_bytes

    @property
    def updated_at(self) -> datetime | None:
        """When they were stored last."""
        return None if self.message is None else time_of(self.message.updated_at)

    @property
    def properties(self) -> Mapping[str, str]:
        """What was noted of them."""
        return {} if self.message is None else dict(self.message.properties)

    def __bool__(self) -> bool:
        """Is anything known?"""
        return self.message is not None

    def __repr__(self) -> str:
        facts = ("snapshot_id", "row_count", "data_file_count", "total_size_bytes")
        return f"TableStats({', '.join(f'{fact}={getattr(self, fact)}' for fact in facts)})"


def known_stats(calls: Calls, table_id: v1.ResourceId) -> TableStats:
    """The statistics of a table's current snapshot; unknown ones where there are none."""
    request = v1.GetTableStatsRequest(table_id=table_id, snapshot=v1.SnapshotRef(special=v1.SS_CURRENT))
    try:
        return TableStats(calls.ask(request, v1.GetTableStatsResponse).stats)
    except NotFound as error:
        if error.key not in _UNKNOWN:
            raise
        return TableStats(None)
