"""Large scans are split into parts of about equal size, and recent scans of this process are logged."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from skiway.formats import MatchingPart
from skiway.security import utc_now

__all__ = ["MAX_PARTS", "PART_BYTES", "Part", "Plan", "PlanLog", "split", "without_empty"]

PART_BYTES: Final = 32 << 20
MAX_PARTS: Final = 16


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Some files of a snapshot, by their ordinals; without any, all files. `share` is the share of each file to read."""

    snapshot_id: int
    ordinals: list[int]
    share: tuple[int, int] | None = None

    def packed(self) -> bytes:
        """The part as bytes, for a ticket."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpacked(cls, data: bytes) -> Part:
        """The part from bytes."""
        return msgspec.msgpack.decode(data, type=cls)

    def of(self, files: pa.Table) -> pa.Table:
        """The rows of a file table that belong to the part."""
        return files.filter(pc.is_in(files["ordinal"], value_set=pa.array(self.ordinals, pa.int32())))


def split(
    snapshot_id: int,
    files: pa.Table,
    *,
    part_bytes: int = PART_BYTES,
    most: int = MAX_PARTS,
    within_files: bool = False,
    matching: Mapping[int, MatchingPart] = MappingProxyType({}),
) -> list[Part]:
    """Split `files` of a snapshot into parts: each file, largest first, goes to the smallest part so far.

    `within_files`, Parquet files that are larger than a part are split, too. `matching` says how much of a file is read, by
    its ordinal; for other files, everything is.
    """
    ordinals: list[int] = files["ordinal"].to_pylist()
    sizes = [
        matching[ordinal].size_bytes if ordinal in matching else size
        for ordinal, size in zip(ordinals, files["size_bytes"].to_pylist(), strict=True)
    ]
    total = sum(sizes)
    wanted = min(most, -(-total // part_bytes) or 1)
    parts: list[Part] = []
    whole = []
    for size, ordinal, kind in zip(sizes, ordinals, files["format"].to_pylist(), strict=True):
        shares = wanted * size // total if within_files and kind == "parquet" and total else 1
        if ordinal in matching:
            shares = min(shares, matching[ordinal].row_groups)
        if shares > 1:
            parts += (Part(snapshot_id, [ordinal], (number, shares)) for number in range(shares))
        else:
            whole.append((size, ordinal))
    return [*parts, *_balanced(snapshot_id, whole, min(len(whole), max(1, wanted - len(parts))))]


def _balanced(snapshot_id: int, files: Sequence[tuple[int, int]], wanted: int) -> list[Part]:
    """So many parts of whole files, which are given by size and ordinal."""
    loads = [(0, number) for number in range(wanted)]
    chosen: list[list[int]] = [[] for _ in range(wanted)]
    for size, ordinal in sorted(files, reverse=True):
        load, number = heapq.heappop(loads)
        chosen[number].append(ordinal)
        heapq.heappush(loads, (load + size, number))
    return [Part(snapshot_id, sorted(ordinals)) for ordinals in chosen]


@dataclass(frozen=True, slots=True)
class Plan:
    """A planned scan. `account_id` is the owner of the table; sizes are those of whole files."""

    account_id: str
    planned_at: datetime
    subject: str
    catalog: str
    schema_name: str
    table_name: str
    snapshot_id: int | None
    filter: str
    columns: list[str] | None
    files_considered: int
    files_read: int
    bytes_considered: int
    bytes_read: int
    endpoints: int
    reader: str = "server"


class PlanLog:
    """The most recent plans, of all callers."""

    def __init__(self, keep: int = 1000, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.clock = clock
        self._plans: deque[Plan] = deque(maxlen=keep)

    def add(self, plan: Plan) -> None:
        """Add a plan, and drop the oldest if there are too many."""
        self._plans.append(plan)

    def of_account(self, account_id: str) -> list[Plan]:
        """The plans for tables of an account, from old to new."""
        return [plan for plan in list(self._plans) if plan.account_id == account_id]


def without_empty(files: pa.Table, matching: Mapping[int, MatchingPart]) -> pa.Table:
    """The files without those of which the filter leaves nothing."""
    empty = [ordinal for ordinal, part in matching.items() if not part.row_groups]
    return files.filter(pc.invert(pc.is_in(files["ordinal"], pa.array(empty, pa.int32())))) if empty else files
