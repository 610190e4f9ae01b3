"""What all catalogs of a server share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from skiway.formats.kept import Kept
from skiway.lake.callers import Callers
from skiway.lake.columns import Columns
from skiway.lake.handles import Handles
from skiway.lake.parts import MAX_PARTS, PART_BYTES
from skiway.lake.pins import LakeTransactions
from skiway.lake.plan_log import PlanLog
from skiway.lake.versions import Versions

__all__ = ["Context"]


@dataclass(frozen=True)
class Context:
    """Who calls, what is open, what is pinned, what is known."""

    callers: Callers
    handles: Handles
    transactions: LakeTransactions
    versions: Versions = field(default_factory=Versions)
    plans: PlanLog = field(default_factory=PlanLog)
    bound_columns: Kept[tuple[str, str], Columns] = field(default_factory=lambda: Kept(10_000))
    part_bytes: int = PART_BYTES
    max_parts: int = MAX_PARTS

    def columns(self, table_id: str, columns_id: str, find: Callable[[], Columns]) -> Columns:
        """The columns of a table that a client knows, found where they are not at hand."""
        return self.bound_columns.get((table_id, columns_id), find)
