"""Scans of tables: their parts, the files that DuckDB reads itself, and the ids of rows.

Large scans are split into parts of about equal size, and recent scans of this process are logged.

DuckDB finds columns by the names that they have in each file, so files with other names, missing columns or partition values
are read as well: files that are alike form a group. Tables with types that other readers convert differently are scanned.

Inside of nested columns, DuckDB finds fields by name, too, and tables by id. So files in which the fields of such a column have
other names or ids, are missing, or have another order or type, are scanned. A map with a key that occurs twice, which scans
reject, is returned as it is stored.

A row id is the location of a row as one number, so that the server does not have to remember ids:

    0 | tag of the snapshot | ordinal of the file | position in the file

The numbers of bits of the last two follow from the snapshot's files, and the tag takes the rest. So an id of another
snapshot or table is recognized and rejected.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import ScanOptions, Table
from skiway.airport.conversion import plain_type
from skiway.airport.tables import ArrowData, project_schema, record_batches
from skiway.airport.wire.duckdb_sql import castable_type
from skiway.errors import Conflict, LimitExceeded
from skiway.formats import FILE_ORDINAL, ROW_POSITION, MatchingPart, WholeFile, field_id
from skiway.lake.reading.columns import ROWID
from skiway.sandbox.relations import FileColumn, FileGroup
from skiway.security import utc_now
from skiway.sql.queries import MERGE_ROWID

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
        if len(self.ordinals) == files.num_rows:
            return files
        chosen = pc.is_in(files["ordinal"], value_set=pa.array(self.ordinals, pa.int32()))
        places = np.flatnonzero(chosen.to_numpy())
        if len(places) and places[-1] - places[0] == len(places) - 1:  # without a copy of the statistics
            return files.slice(places[0], len(places))
        return files.take(pa.array(places))


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
    """Parts of whole files, of which `files` has sizes and ordinals: as many as `wanted`."""
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


MAX_FILES: Final = 1000
"""How many files of a table DuckDB reads itself: each is an open file of its process."""

MAX_REMOTE_FILES: Final = 64
"""How many files of a table in an object store DuckDB reads itself: their footers are read before the query starts."""

_MAX_GROUPS: Final = 200
"""How many groups of files a table may have, each of which is a part of the query."""

DIRECT_TYPES: Final = frozenset(
    {
        *(pa.bool_(), pa.string(), pa.binary(), pa.float32(), pa.float64(), pa.date32()),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.timestamp("us"), pa.timestamp("us", tz="UTC")),
    }
)
"""The types, besides decimals, that DuckDB reads from Parquet files exactly as the readers of table formats do."""

_WIDENED: Final[Mapping[pa.DataType, frozenset[pa.DataType]]] = {
    pa.int32(): frozenset({pa.int8(), pa.int16(), pa.uint8(), pa.uint16()}),
    pa.int64(): frozenset({pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16(), pa.uint32()}),
    pa.float64(): frozenset({pa.float32()}),
}
"""The types in files, by the type in their table, that DuckDB converts without a loss."""

_AS_TEXT: Final[Sequence[Callable[[pa.DataType], bool]]] = (
    *(pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date32, pa.types.is_decimal),
)
"""The types of partition values that DuckDB reads from their text."""


def is_direct(column: pa.Field) -> bool:
    """Whether DuckDB reads a column as a scan does. In the files of geometries, it ignores their coordinate system."""
    of = column.type
    if b"ARROW:extension:name" in (column.metadata or {}):
        return False
    if is_nested(of):
        fields = _fields(of)
        names = {field.name.casefold() for field in fields}
        return bool(fields) and len(names) == len(fields) and all(each.name and is_direct(each) for each in fields)
    return pa.types.is_decimal128(of) or of in DIRECT_TYPES


def is_nested(of: pa.DataType) -> bool:
    """Whether values of this type have values inside."""
    return bool(pa.types.is_struct(of) or pa.types.is_list(of) or pa.types.is_map(of))


def _fields(of: pa.DataType) -> Sequence[pa.Field]:
    """The fields of a nested type: those of a struct, the element of a list, or the key and the value of a map."""
    if pa.types.is_struct(of):
        return list(of)
    return [of.key_field, of.item_field] if pa.types.is_map(of) else [of.value_field]


def _is_alike(column: pa.DataType, stored: pa.DataType) -> bool:
    """Whether a column of a file has exactly the type of the table, and the ids of its fields, which are found by name."""
    if not is_nested(column):
        return bool(column == stored)
    if column.id != stored.id or column.num_fields != stored.num_fields:
        return False
    pairs = zip(_fields(column), _fields(stored), strict=True)
    has_names = pa.types.is_struct(column)
    return all(
        field_id(one) == field_id(other)
        and (one.name == other.name or not has_names)
        and _is_alike(one.type, other.type)
        for one, other in pairs
    )


def file_groups(schema: pa.Schema, files: Sequence[WholeFile]) -> list[FileGroup] | None:
    """The files, for DuckDB to read them as a table with these columns; None if it would return something else."""
    if not files or len(files) > MAX_FILES or not all(map(is_direct, schema)):
        return None
    groups: dict[tuple[FileColumn, ...], list[WholeFile]] = {}
    known: dict[int, tuple[FileColumn, ...] | None] = {}  # of files without constants, by the identity of their columns
    for file in files:
        if file.constants:
            found = _file_columns(schema, file)
        else:
            if id(file.columns) not in known:
                known[id(file.columns)] = _file_columns(schema, file)
            found = known[id(file.columns)]
        if found is None:
            return None
        groups.setdefault(found, []).append(file)
        if len(groups) > _MAX_GROUPS:
            return None
    return [_group(columns, alike) for columns, alike in groups.items()]


def _file_columns(schema: pa.Schema, file: WholeFile) -> tuple[FileColumn, ...] | None:
    """How DuckDB gets all columns of the table from a file; None if it cannot."""
    columns = [_column(each, file) for each in schema]
    found = tuple(each for each in columns if each is not None)
    if len(found) < len(columns) or not _is_unambiguous(file.columns, found):
        return None
    if any(each.is_widened for each in found) and any(is_nested(column.type) for column in schema):
        return None  # the schema that converts types would have to describe nested columns, too
    return found


def _group(columns: Sequence[FileColumn], files: Sequence[WholeFile]) -> FileGroup:
    local = [file.open for file in files if file.open_remote is None]
    return FileGroup(local, columns, [file.open_remote for file in files if file.open_remote is not None])


def _column(column: pa.Field, file: WholeFile) -> FileColumn | None:
    """How DuckDB gets a column of the table from a file; None if it cannot."""
    kind, number = castable_type(column), field_id(column)
    stored = None if number is None else file.columns.get(number)
    if stored is not None:
        there = None if isinstance(stored.type, pa.BaseExtensionType) else plain_type(stored.type)
        is_widened = not is_nested(column.type) and there in _WIDENED.get(column.type, ())
        if there is None or not (is_widened or _is_alike(column.type, there)):
            return None
        return FileColumn(column.name, kind, stored_as=stored.name, is_widened=is_widened)
    value = None if number is None else file.constants.get(number)
    if value is None or not value.is_valid:
        return FileColumn(column.name, kind) if column.nullable else None
    if not any(is_kind(column.type) for is_kind in _AS_TEXT):
        return None
    return FileColumn(column.name, kind, value=str(value.cast(column.type).cast(pa.string()).as_py()))


def _is_unambiguous(stored: Mapping[int, pa.Field], columns: Sequence[FileColumn]) -> bool:
    """Whether each name is that of one column only, and some column is read: DuckDB does not distinguish the cases of names."""
    names = [field.name.casefold() for field in stored.values()]
    return len(set(names)) == len(names) and any(column.stored_as is not None for column in columns)


_BITS: Final = 63
_SHORTEST_TAG: Final = 12


@dataclass(frozen=True, slots=True)
class RowIds:
    """The ids of the rows of one snapshot."""

    tag: int
    file_bits: int
    position_bits: int

    @classmethod
    def of(cls, table_id: str, snapshot_id: int, files: pa.Table) -> RowIds:
        """The ids of a snapshot with these files, its whole file table."""
        ordinals = pc.max(files["ordinal"]).as_py() or 0
        positions = pc.max(files["row_count"]).as_py() or 0
        file_bits, position_bits = int(ordinals).bit_length(), int(positions).bit_length()
        left = _BITS - file_bits - position_bits
        if left < _SHORTEST_TAG:
            raise LimitExceeded(
                f"a snapshot of {files.num_rows} files with up to {positions} rows each is too large for row ids of 63 bits: "
                "rewrite it into fewer or smaller files",
                key="rowid.room",
            )
        digest = blake2b(f"{table_id}/{snapshot_id}".encode(), digest_size=8).digest()
        return cls(int.from_bytes(digest) >> (64 - left), file_bits, position_bits)

    def first(self, ordinal: int, position: int = 0) -> int:
        """The lowest id of a row at this position or later. Ids ascend with files, and within files with positions."""
        return (((self.tag << self.file_bits) | ordinal) << self.position_bits) + position

    def encode(self, ordinals: pa.Array, positions: pa.Array) -> pa.Array:
        """The ids of rows, given the ordinals of their files and their positions."""
        files = ordinals.to_numpy(zero_copy_only=False).astype(np.int64) << self.position_bits
        start = self.tag << (self.file_bits + self.position_bits)
        return pa.array(files + positions.to_numpy(zero_copy_only=False) + start)

    def decode(self, ids: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """The ordinals and positions of ids. Raise `Conflict` if an id does not belong to this snapshot."""
        numbers = ids.to_numpy(zero_copy_only=False)
        foreign = numbers >> (self.file_bits + self.position_bits) != self.tag
        if foreign.any():
            raise Conflict(
                f"row id {numbers[foreign][0]} does not belong to the snapshot that this statement changes: the table was "
                "changed in between, or the id is of another table; run the statement again",
                key="rowid.foreign",
            )
        ordinals = (numbers >> self.position_bits) & ((1 << self.file_bits) - 1)
        return ordinals, numbers & ((1 << self.position_bits) - 1)


class ScannedTable(Table):
    """A table whose rows a function returns."""

    def __init__(self, name: str, schema: pa.Schema, scan: Callable[[ScanOptions], ArrowData]) -> None:
        self.name, self.schema, self._scan = name, schema, scan

    def scan(self, options: ScanOptions) -> ArrowData:
        """The rows."""
        return self._scan(options)


def with_row_ids(name: str, schema: pa.Schema, scan: Callable[[ScanOptions], ArrowData]) -> ScannedTable:
    """A table with its row ids as a usual column, `MERGE_ROWID`: queries do not see row ids."""
    shown = pa.schema([*(field for field in schema if field.name != ROWID), pa.field(MERGE_ROWID, pa.int64())])

    def rows(options: ScanOptions) -> Iterator[pa.RecordBatch]:
        wanted = shown.names if options.columns is None else list(options.columns)
        read = [ROWID if column == MERGE_ROWID else column for column in wanted]
        columns = pa.schema([shown.field(column) for column in wanted])
        for batch in record_batches(scan(ScanOptions(columns=read)), project_schema(schema, read)):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=columns)

    return ScannedTable(name, shown, rows)


def numbered(rows: pa.RecordBatchReader, ids: RowIds) -> Iterator[pa.RecordBatch]:
    """The batches with row ids instead of file ordinals and positions."""
    for batch in rows:
        numbers = ids.encode(batch.column(FILE_ORDINAL), batch.column(ROW_POSITION))
        columns = [*batch.columns[:-2], numbers]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:-2], ROWID])
