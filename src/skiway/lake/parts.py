"""A large scan in several parts, about equally heavy."""

from __future__ import annotations

import heapq
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["Part", "split"]

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
