"""Deleted rows of Iceberg tables: which delete files apply to which data files, and the positions they delete.

A delete file applies to the data files of its partition that are as old as itself or older (older only, if it deletes by
equality), or to the data file that it names. Equality deletes of an unpartitioned spec apply to all partitions.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.layouts import plain_array
from skiway.formats.files import corrupt
from skiway.formats.schemas import Path, field_id, with_id, with_ids
from skiway.formats.source import FILE_COLUMNS, Content

__all__ = [
    "FILE_PATH_ID",
    "OWN_POSITIONS",
    "PLACES",
    "POSITIONS",
    "deletion_vector",
    "encoded_vector",
    "merged_positions",
    "position_ids",
    "positions_by_file",
    "with_deletes",
]

_MAGIC: Final = bytes.fromhex("d1d33964")

# Additional columns of the file table: which data files a delete file refers to, where in it a deletion vector is, and
# the id of the first row of a data file.
PLACES = pa.schema(
    {
        "referenced": pa.string(),
        "path_from": pa.binary(),
        "path_to": pa.binary(),
        "blob_offset": pa.int64(),
        "blob_size": pa.int64(),
        "first_row_id": pa.int64(),
    }
)

FILE_PATH_ID: Final = 2147483546
"""The field id of `file_path` in position delete files."""

POSITIONS: Final = pa.schema(
    [
        with_id(pa.field("file_path", pa.string()), FILE_PATH_ID),
        with_id(pa.field("pos", pa.int64()), 2147483545),
    ]
)
"""The columns of a position delete file."""

OWN_POSITIONS: Final = "-skiway-deletes.parquet"
"""How the names of the position delete files end that our own writer makes."""


def with_deletes(files: pa.Table, *, unpartitioned: Set[int]) -> pa.Table:
    """Fill the columns `deletes` and `deleted_rows`; `unpartitioned` are the ids of specs without fields."""
    if not pc.any(pc.not_equal(files["content"], Content.DATA), min_count=0).as_py():
        return files
    names = ["ordinal", "path", "content", "row_count", "spec_id", "sequence_number", *PLACES.names]
    rows = files.select(names).to_pylist()
    # As text, because NaN != NaN.
    partitions = [
        (row["spec_id"], repr(value)) for row, value in zip(rows, files["partition"].to_pylist(), strict=True)
    ]
    index = _Index(unpartitioned)
    for row, partition in zip(rows, partitions, strict=True):
        if row["content"] != Content.DATA:
            index.add(row, partition)
    applied = [list(index.of(row, partition)) for row, partition in zip(rows, partitions, strict=True)]
    files = _set(files, "deletes", [[one["ordinal"] for one in found] for found in applied])
    counts = [_deleted_rows(row["path"], found) for row, found in zip(rows, applied, strict=True)]
    return _set(files, "deleted_rows", counts)


def _set(files: pa.Table, name: str, values: list[Any]) -> pa.Table:
    field = FILE_COLUMNS.field(name)
    return files.set_column(files.schema.get_field_index(name), field, pa.array(values, field.type))


def _deleted_rows(path: str, deletes: list[Mapping[str, Any]]) -> int | None:
    """How many rows of the data file at `path` are deleted, if that is known without reading the deletes.

    It is for deletion vectors, and for files of our own writer, which deletes no row twice. Other delete files may have the same rows
    as another one, or rows of other files.
    """
    vectors = [one for one in deletes if one["blob_offset"] is not None]
    if vectors:
        return vectors[0]["row_count"] if len(deletes) == len(vectors) == 1 else None
    return sum(one["row_count"] for one in deletes) if all(_is_distinct(one, path) for one in deletes) else None


def _is_distinct(delete: Mapping[str, Any], path: str) -> bool:
    """Whether our own writer made a delete file, for this data file only."""
    is_of_file = delete["referenced"] == path or delete["path_from"] == delete["path_to"] == path.encode()
    is_own = delete["content"] == Content.POSITION_DELETES and delete["path"].endswith(OWN_POSITIONS)
    return bool(is_of_file and is_own)


class _Index:
    def __init__(self, unpartitioned: Set[int]) -> None:
        self.unpartitioned = unpartitioned
        self.by_path: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        self.by_partition: dict[tuple[int, str], list[Mapping[str, Any]]] = defaultdict(list)
        self.everywhere: list[Mapping[str, Any]] = []

    def add(self, delete: Mapping[str, Any], partition: tuple[int, str]) -> None:
        if delete["referenced"] is not None:
            self.by_path[delete["referenced"]].append(delete)
        elif delete["content"] == Content.EQUALITY_DELETES and delete["spec_id"] in self.unpartitioned:
            self.everywhere.append(delete)
        else:
            self.by_partition[partition].append(delete)

    def of(self, file: Mapping[str, Any], partition: tuple[int, str]) -> Iterator[Mapping[str, Any]]:
        """The delete files that apply to a data file; none for a delete file."""
        if file["content"] != Content.DATA:
            return
        near = (*self.by_path.get(file["path"], ()), *self.by_partition.get(partition, ()), *self.everywhere)
        named = [delete for delete in near if delete["blob_offset"] is not None]
        yield from named  # a deletion vector includes all older position deletes
        for delete in near:
            if delete["content"] == Content.EQUALITY_DELETES:
                if file["sequence_number"] < delete["sequence_number"]:
                    yield delete
            elif not named and _may_delete(delete, file):
                yield delete


def _may_delete(delete: Mapping[str, Any], file: Mapping[str, Any]) -> bool:
    path = file["path"].encode()
    low, high = delete["path_from"], delete["path_to"]
    is_old_enough = file["sequence_number"] <= delete["sequence_number"]
    return bool(is_old_enough and (low is None or low <= path) and (high is None or path <= high))


def deletion_vector(blob: bytes, *, file: str, rows: int) -> pa.Array:
    """Decode the deleted positions from a deletion vector: length, magic, 64-bit Roaring bitmap, checksum.

    `rows` is the number of deleted rows according to the manifest.
    """
    from pyroaring import BitMap64

    length, body, checksum = int.from_bytes(blob[:4]), blob[4:-4], int.from_bytes(blob[-4:])
    if length != len(body) or body[:4] != _MAGIC or zlib.crc32(body) != checksum:
        raise corrupt(file, "the length, magic number or checksum of a deletion vector is wrong")
    bitmap = BitMap64.deserialize(body[4:])
    if len(bitmap) != rows:
        raise corrupt(file, f"a deletion vector has {len(bitmap)} rows, but the manifest says {rows}")
    return pa.array(np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64))


def encoded_vector(positions: np.ndarray) -> bytes:
    """Encode deleted positions as a deletion vector, which `deletion_vector` decodes."""
    from pyroaring import BitMap64

    bitmap = BitMap64(positions)
    bitmap.run_optimize()
    body = _MAGIC + bitmap.serialize()
    return len(body).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)


def position_ids(schema: pa.Schema, file: str) -> pa.Schema:  # noqa: ARG001
    """The schema of a position delete file with field ids; all writers use the same names, and not all write ids."""
    known: dict[Path, int | None] = {(field.name,): field_id(field) for field in POSITIONS}
    return with_ids(schema, known.get)


def positions_by_file(deletes: pa.Table) -> dict[str, pa.Array]:
    """Group the rows of a position delete file (`file_path`, `pos`) by data file; positions are ascending."""
    columns = [plain_array(deletes[name].combine_chunks()) for name in ("file_path", "pos")]
    rows = pa.table(columns, names=["file_path", "pos"])
    ordered = rows.sort_by([("file_path", "ascending"), ("pos", "ascending")]).combine_chunks()
    if not ordered.num_rows:
        return {}
    counts = ordered["file_path"].value_counts()
    paths, lengths = counts.field("values").to_pylist(), counts.field("counts").to_pylist()
    starts = np.concatenate([[0], np.cumsum(lengths)])
    positions = ordered["pos"].combine_chunks()
    return {
        path: positions.slice(int(start), length) for path, start, length in zip(paths, starts, lengths, strict=False)
    }


def merged_positions(parts: Sequence[pa.Array]) -> pa.Array | None:
    """The union of several lists of positions, ascending; None if it is empty."""
    filled = [part for part in parts if len(part)]
    return pa.array(np.unique(np.concatenate(filled))) if filled else None
