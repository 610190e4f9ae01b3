"""Deleted rows of Iceberg tables: by position, in delete files and deletion vectors, and by equality.

Deletion vectors are in Puffin files: blobs, followed by a footer that describes them. Sketches of columns are, too.

A delete file applies to the data files of its partition that are as old as itself or older (older only, if it deletes by
equality), or to the data file that it names. Equality deletes of an unpartitioned spec apply to all partitions.

For equality deletes, columns are matched by field id, so renamed columns still match, and so do columns that the table has dropped
since, as long as the data file has them. NULL equals NULL. A column that a data file does not have yet is compared with its default, or
with NULL.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway import __version__
from skiway.airport.conversion import plain_array
from skiway.errors import Unsupported
from skiway.formats.files import corrupt
from skiway.formats.schemas import Path, field_id, with_id, with_ids
from skiway.formats.source import FILE_COLUMNS, Content

_PUFFIN_MAGIC: Final = b"PFA1"
_NO_FLAGS: Final = b"\0\0\0\0"


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob. `fields` are the ids of the columns that it is about; it belongs to no snapshot if `snapshot_id` is -1."""

    type: str
    data: bytes
    fields: Sequence[int]
    snapshot_id: int = -1
    sequence_number: int = -1
    properties: Mapping[str, str] = dataclass_field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Puffin:
    """A Puffin file, the size of its footer, and the description of its blobs for the metadata of the table."""

    data: bytes
    footer_size: int
    blobs: list[dict[str, Any]]


def puffin_file(blobs: Iterable[Blob]) -> Puffin:
    """A file with these blobs, uncompressed and in this order."""
    data, described = bytearray(_PUFFIN_MAGIC), []
    for blob in blobs:
        described.append(
            {
                "type": blob.type,
                "fields": list(blob.fields),
                "snapshot-id": blob.snapshot_id,
                "sequence-number": blob.sequence_number,
                "offset": len(data),
                "length": len(blob.data),
                "properties": dict(blob.properties),
            }
        )
        data += blob.data
    payload = json.dumps({"blobs": described, "properties": {"created-by": f"Skiway {__version__}"}}).encode()
    footer = b"".join((_PUFFIN_MAGIC, payload, struct.pack("<i", len(payload)), _NO_FLAGS, _PUFFIN_MAGIC))
    return Puffin(bytes(data + footer), len(footer), described)


_VECTOR_MAGIC: Final = bytes.fromhex("d1d33964")

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
    if length != len(body) or body[:4] != _VECTOR_MAGIC or zlib.crc32(body) != checksum:
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
    body = _VECTOR_MAGIC + bitmap.serialize()
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


FieldPath: TypeAlias = tuple[pa.Field, ...]
"""A field, after the structs that contain it, from the outside."""

_Codes: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int64]]


def field_paths(schema: pa.Schema) -> dict[int, FieldPath]:
    """The columns of a schema and the fields of its structs, by id."""
    found: dict[int, FieldPath] = {}

    def add(field: pa.Field, above: FieldPath) -> None:
        number = field_id(field)
        if number is not None:
            found[number] = (*above, field)
        for child in field.type if pa.types.is_struct(field.type) else ():
            add(child, (*above, field))

    for field in schema:
        add(field, ())
    return found


def key_fields(ids: Sequence[int], paths: Mapping[int, FieldPath], *, table: str) -> tuple[pa.Field, ...]:
    """The columns to read in order to compare the fields with these ids.

    A field of a struct is a column with that struct, reduced to the field.
    """
    fields = []
    for number in ids:
        if number not in paths:
            raise Unsupported(
                f"table {table!r} has equality deletes by a column with id {number}, which none of its schemas has; rewrite "
                "its data files with an engine that supports it",
                key="table.feature",
                table=table,
                feature="equality deletes by an unknown column",
            )
        *above, field = paths[number]
        for parent in reversed(above):
            field = with_id(pa.field(parent.name, pa.struct([field.with_nullable(True)])), field_id(parent))
        # Names are unique here, although several fields can be of the same struct.
        name = ".".join(each.name for each in paths[number])
        fields.append(with_id(pa.field(f"{name} (id {number})", field.type), field_id(field)))
    return tuple(fields)


@dataclass(frozen=True)
class EqualityDeletes:
    """The distinct keys of one or several delete files.

    Each column has its distinct values. A key is a sequence of numbers of values, and is found column by column:
    `_known[n]` has the combinations that occur in the first columns up to `n`, ascending.
    """

    fields: tuple[pa.Field, ...]
    _values: tuple[pa.Array, ...]
    _known: tuple[_Codes, ...]

    @classmethod
    def of(cls, fields: tuple[pa.Field, ...], deletes: Sequence[pa.Table]) -> EqualityDeletes:
        """The keys in `deletes`, which have the columns `fields`."""
        keys = pa.concat_tables(deletes)
        columns = [_leaf(keys[field.name].combine_chunks()) for field in fields]
        values = tuple(column.unique() for column in columns)
        known: list[_Codes] = []
        before: _Codes = np.zeros(keys.num_rows, dtype=np.int64)
        for column, distinct in zip(columns, values, strict=True):
            combined = before * len(distinct) + _numbers(column, distinct)
            found, before = np.unique(combined, return_inverse=True)
            known.append(found)
        return cls(fields, values, tuple(known))

    @property
    def nbytes(self) -> int:
        """The memory that the keys take."""
        return sum(each.nbytes for each in (*self._values, *self._known))

    def matches(self, columns: Sequence[pa.Array]) -> pa.Array:
        """A mask of the rows that have one of the keys."""
        before: _Codes = np.zeros(len(columns[0]), dtype=np.int64)
        for column, distinct, known in zip(columns, self._values, self._known, strict=True):
            if not len(known):
                return pa.repeat(False, len(column))
            numbers = _numbers(_leaf(column), distinct)
            combined = np.where(numbers < 0, -1, before * len(distinct) + numbers)  # negative if not found
            places = np.minimum(np.searchsorted(known, combined), len(known) - 1)
            before = np.where(known[places] == combined, places, -1)
        return pa.array(before >= 0)


def _numbers(column: pa.Array, distinct: pa.Array) -> _Codes:
    """The place of each value in `distinct`, or -1."""
    found = pc.fill_null(pc.index_in(column, value_set=distinct), -1)
    return np.asarray(found, dtype=np.int64)


def _leaf(column: pa.Array) -> pa.Array:
    """The values of a column, or of the only field of nested structs."""
    while pa.types.is_struct(column.type):
        column = pc.struct_field(column, [0])
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    return plain_array(column)
