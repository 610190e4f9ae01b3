"""MERGE: updates, deletes and inserts of one statement, in one commit, or in that of an explicit transaction.

Unlike UPDATE, it fails if others have changed the table meanwhile: rows that they inserted could match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport import DmlOptions, Write
from skiway.errors import ConstraintViolation
from skiway.formats import Snapshot
from skiway.formats.iceberg.commits import overwrite
from skiway.formats.iceberg.data_files import DataFileWriter
from skiway.formats.iceberg.table import IcebergTable
from skiway.lake.columns import ROWID, Columns
from skiway.lake.commits import Changes
from skiway.lake.inserting import BUFFER_BYTES, InsertRows, Target
from skiway.lake.rewriting import UpdateRows
from skiway.lake.transactions import is_explicit
from skiway.metastore.transactions.combined_writes import TransactionState
from skiway.sql.merge import MERGE_ACTION, MERGE_ROWID

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

__all__ = ["MergeIntoEmpty", "MergeRows"]

_DELETED = "$deleted"


class MergeRows(UpdateRows):
    """Changes and inserts rows. Batches are those of a `MergeQuery`; `counts` has the number of rows by action."""

    _kind = "merge"

    def __init__(
        self,
        changes: Changes,
        *,
        snapshot: Snapshot,
        handle: IcebergTable,
        known: Columns,
        staged: TransactionState | None = None,
    ) -> None:
        write = Write("update", known.announced, DmlOptions())
        super().__init__(changes, write, snapshot=snapshot, handle=handle, known=known, staged=staged)
        self._alone = True
        self._inserts = DataFileWriter(self._base.files, self._base.metadata, buffer_bytes=BUFFER_BYTES)
        self._writers.append(self._inserts)
        self._columns = [name for name in known.announced.names if name != ROWID]
        self.counts: Counter[str] = Counter()

    def apply(self, rows: pa.RecordBatch) -> None:
        """Take rows to insert, to update and to delete."""
        actions = rows.column(MERGE_ACTION)
        self.counts.update({each["values"]: each["counts"] for each in pc.value_counts(actions).to_pylist()})
        is_new = pc.equal(actions, "insert")
        self._inserts.write(self._stored(rows.filter(is_new)))
        changed = rows.filter(pc.invert(is_new))
        if changed.num_rows:
            values = self._stored(changed)
            deleted = pc.equal(changed.column(MERGE_ACTION), "delete")
            self._take(self._with_rowid(changed), values.append_column(_DELETED, deleted))

    def _stored(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        return self._incoming.stored(self._incoming.announced(self._with_rowid(rows)))

    def _with_rowid(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the table, and the row id last, as an UPDATE has them."""
        return rows.select([*self._columns, MERGE_ROWID])

    def _check_named(self, count: int) -> None:
        if count != self.counts["update"] + self.counts["delete"]:
            raise several_matches(self._changes.record.display_name)

    def _changed(
        self, rows: pa.RecordBatch, here: np.ndarray, positions: np.ndarray, new: pa.RecordBatch
    ) -> pa.RecordBatch:
        deleted = positions[new.column(_DELETED).to_numpy(zero_copy_only=False)]
        kept = pa.array(~np.isin(here, deleted, assume_unique=True))
        return super()._changed(rows, here, positions, new).filter(kept)


class MergeIntoEmpty:
    """The same for a table without a snapshot, in which nothing can match."""

    def __init__(self, changes: Changes, *, known: Columns) -> None:
        base = changes.load()
        given = pa.schema([field for field in known.announced if field.name != ROWID])

        def commit(files: Sequence[DataFile], rows: int) -> None:
            if is_explicit():
                changes.stage(base, files, rows=rows, expected_snapshot_id=0)
            else:
                changes.commit(overwrite([], files, based_on=None, alone=True, operation="append"))

        target = Target(changes.record.display_name, base.files, base.metadata, commit)
        self._insert = InsertRows(target, Write("insert", given, DmlOptions()), known=known)
        self._columns = given.names
        self.counts: Counter[str] = Counter()

    def apply(self, rows: pa.RecordBatch) -> None:
        """Take rows to insert."""
        self.counts["insert"] += rows.num_rows
        self._insert.apply(rows.select(self._columns))

    def commit(self) -> int:
        """Commit the rows, and return how many others were changed."""
        self._insert.commit()
        return 0

    def abort(self) -> None:
        """Delete the files that were written."""
        self._insert.abort()


def several_matches(table: str) -> ConstraintViolation:
    """The error of a MERGE with an ambiguous result."""
    return ConstraintViolation(
        f"a row of table {table!r} matches more than one row of the source, so its new values are ambiguous: make the "
        "source unique, for example with SELECT DISTINCT ON",
        key="merge.ambiguous",
        table=table,
    )
