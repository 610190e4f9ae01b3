"""A large scan in several parts, about equally heavy."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from skiway.security import utc_now

__all__ = ["MAX_PARTS", "PART_BYTES", "Part", "Plan", "PlanLog", "split"]

PART_BYTES: Final = 64 << 20
MAX_PARTS: Final = 16


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Some files of a snapshot, by their ordinals."""

    snapshot_id: int
    ordinals: list[int]

    def packed(self) -> bytes:
        """The part as it travels."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def unpacked(cls, data: bytes) -> Part:
        """The part that travelled."""
        return msgspec.msgpack.decode(data, type=cls)

    def of(self, files: pa.Table) -> pa.Table:
        """Its rows of a file table."""
        return files.filter(pc.is_in(files["ordinal"], value_set=pa.array(self.ordinals, pa.int32())))


def split(snapshot_id: int, files: pa.Table, *, part_bytes: int = PART_BYTES, most: int = MAX_PARTS) -> list[Part]:
    """`files` of a snapshot in parts: the largest file first, each to the part that has the least so far."""
    sizes: list[int] = files["size_bytes"].to_pylist()
    wanted = min(most, files.num_rows, -(-sum(sizes) // part_bytes) or 1)
    if not wanted:
        return []
    loads = [(0, number) for number in range(wanted)]
    chosen: list[list[int]] = [[] for _ in range(wanted)]
    for size, ordinal in sorted(zip(sizes, files["ordinal"].to_pylist(), strict=True), reverse=True):
        load, number = heapq.heappop(loads)
        chosen[number].append(ordinal)
        heapq.heappush(loads, (load + size, number))
    return [Part(snapshot_id, sorted(ordinals)) for ordinals in chosen]


# --------------------
# Which files recent scans of this process looked at, and which their filters spared them.


@dataclass(frozen=True, slots=True)
class Plan:
    """One scan as it was planned. `account_id` is whose table it was; sizes are those of whole files."""

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


class PlanLog:
    """The last plans, of all callers."""

    def __init__(self, keep: int = 1000, *, clock: Callable[[], datetime] = utc_now) -> None:
        self.clock = clock
        self._plans: deque[Plan] = deque(maxlen=keep)

    def add(self, plan: Plan) -> None:
        """Remember a plan, and forget the oldest if there are too many."""
        self._plans.append(plan)

    def of_account(self, account_id: str) -> list[Plan]:
        """Those about tables of an account, older ones first."""
        return [plan for plan in list(self._plans) if plan.account_id == account_id]
