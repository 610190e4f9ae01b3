"""Row ids: the location of a row as one number, so that the server does not have to remember ids.

    0 | tag of the snapshot | ordinal of the file | position in the file

The numbers of bits of the last two follow from the snapshot's files, and the tag takes the rest. So an id of another
snapshot or table is recognized and rejected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import ScanOptions, Table
from skiway.airport.results import record_batches
from skiway.airport.scan import ArrowData, project_schema
from skiway.errors import Conflict, LimitExceeded
from skiway.formats import FILE_ORDINAL, ROW_POSITION
from skiway.lake.columns import ROWID
from skiway.sql.merge import MERGE_ROWID

__all__ = ["RowIds", "WithRowIds", "numbered"]

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


class WithRowIds(Table):
    """A table with its row ids as a usual column, `MERGE_ROWID`: queries do not see row ids."""

    comment = ""

    def __init__(self, name: str, schema: pa.Schema, scan: Callable[[ScanOptions], ArrowData]) -> None:
        self.name, self._original, self._scan = name, schema, scan
        self._schema = pa.schema(
            [*(field for field in schema if field.name != ROWID), pa.field(MERGE_ROWID, pa.int64())]
        )

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table, and the row id."""
        return self._schema

    def scan(self, options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """The rows of the table."""
        wanted = self._schema.names if options.columns is None else list(options.columns)
        read = [ROWID if name == MERGE_ROWID else name for name in wanted]
        found = self._scan(ScanOptions(columns=read))
        shown = pa.schema([self._schema.field(name) for name in wanted])
        for batch in record_batches(found, project_schema(self._original, read)):
            yield pa.RecordBatch.from_arrays(batch.columns, schema=shown)


def numbered(rows: pa.RecordBatchReader, ids: RowIds) -> Iterator[pa.RecordBatch]:
    """The batches with row ids instead of file ordinals and positions."""
    for batch in rows:
        numbers = ids.encode(batch.column(FILE_ORDINAL), batch.column(ROW_POSITION))
        columns = [*batch.columns[:-2], numbers]
        yield pa.RecordBatch.from_arrays(columns, names=[*batch.schema.names[:-2], ROWID])
