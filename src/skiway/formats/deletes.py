"""Rows that were deleted from a data file, as ascending positions."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from skiway.errors import PreconditionFailed

__all__ = ["deletion_vector", "from_kept", "positions_by_file", "united"]

_MAGIC = bytes.fromhex("d1d33964")


def deletion_vector(blob: bytes, *, file: str, rows: int) -> pa.Array:
    """The positions in an Iceberg deletion vector: length, magic, a 64-bit Roaring bitmap, and a checksum of both.

    `rows` is how many its metadata says there are.
    """
    from pyroaring import BitMap64

    length, body, checksum = int.from_bytes(blob[:4]), blob[4:-4], int.from_bytes(blob[-4:])
    if length != len(body) or body[:4] != _MAGIC or zlib.crc32(body) != checksum:
        raise _corrupt(file, "its length, its mark or its checksum is wrong")
    bitmap = BitMap64.deserialize(body[4:])
    if len(bitmap) != rows:
        raise _corrupt(file, f"it deletes {len(bitmap)} rows where {rows} are announced")
    return pa.array(np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64))


def positions_by_file(deletes: pa.Table) -> dict[str, pa.Array]:
    """The rows of a position delete file (`file_path`, `pos`), apart for each data file."""
    ordered = deletes.select(["file_path", "pos"]).sort_by([("file_path", "ascending"), ("pos", "ascending")])
    ordered = ordered.combine_chunks()
    if not ordered.num_rows:
        return {}
    counts = ordered["file_path"].value_counts()
    paths, lengths = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = ordered["pos"].combine_chunks()
    return {
        path: positions.slice(int(start), length) for path, start, length in zip(paths, starts, lengths, strict=False)
    }


def from_kept(kept: pa.Array) -> pa.Array:
    """The positions where a mask of rows to keep says no."""
    return pa.array(np.flatnonzero(~kept.to_numpy(zero_copy_only=False)).astype(np.int64))


def united(parts: Sequence[pa.Array]) -> pa.Array | None:
    """All positions together; None for none."""
    filled = [part for part in parts if len(part)]
    return pa.array(np.unique(np.concatenate(filled))) if filled else None


def _corrupt(file: str, reason: str) -> PreconditionFailed:
    return PreconditionFailed(
        f"deletion vector in file {file!r} is corrupt: {reason}; restore the file", key="file.corrupt", file=file
    )
