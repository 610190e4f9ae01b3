"""Writing: the capabilities of tables that support INSERT, UPDATE and DELETE.

Rows arrive batch by batch in lock-step: with RETURNING, the client waits for the rows of one batch before it sends the
next. A `Writable` table therefore opens a statement, applies batches to it, and commits or aborts it as a whole. The
other capabilities are simpler interfaces for tables that do not need this.

UPDATE and DELETE identify rows by their row ids: a column called `rowid` or marked with the metadata `is_rowid`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa

from skiway.airport.scan import ArrowData, find_rowid_column
from skiway.errors import InvalidArgument

__all__ = [
    "ROWID_TYPES",
    "Deletable",
    "DeletableBatch",
    "DmlOptions",
    "DmlResult",
    "Insertable",
    "Operation",
    "Statement",
    "Updatable",
    "UpdatableBatch",
    "Writable",
    "Write",
    "rowid_index",
]

Operation = Literal["insert", "update", "delete"]

ROWID_TYPES: Final = (pa.int64(), pa.int32(), pa.uint64())


@dataclass(frozen=True, slots=True)
class DmlOptions:
    """Whether a statement has a RETURNING clause.

    DuckDB does not send the columns of the clause. `returning_columns` therefore has all columns except the row id, and
    the client selects what it needs.
    """

    returning: bool = False
    returning_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DmlResult:
    """The result of a write. `returning_data` has one row for each input row, in the same order."""

    affected_rows: int
    returning_data: ArrowData | None = None


def rowid_index(operation: Operation, schema: pa.Schema) -> int:
    """The index of the row id column in the batches of an UPDATE or DELETE; `InvalidArgument` if there is none."""
    index = find_rowid_column(schema)
    if index is None:
        raise InvalidArgument(f"{operation.upper()} requires rowid column")
    if schema.field(index).type not in ROWID_TYPES:
        raise InvalidArgument(f"rowid must be integer type (int64, int32 or uint64), not {schema.field(index).type}")
    return index


# -- whole statements -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """A statement that is about to begin: its operation and the schema of its batches.

    The batches of an INSERT have all columns except the row id. Those of an UPDATE have the row id, the changed columns
    and possibly others, in any order. Those of a DELETE have only the row id. The types depend on the client's session
    and may differ from the types of the table, so cast them.
    """

    operation: Operation
    schema: pa.Schema
    options: DmlOptions


class Statement(ABC):
    """An INSERT, UPDATE or DELETE. Its changes must not be visible to others before `commit`."""

    @abstractmethod
    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Apply a batch. With RETURNING, return the written rows, one for each input row in the same order.

        An UPDATE returns the columns of its input in their order, an INSERT or DELETE all visible columns.
        """

    @abstractmethod
    def commit(self) -> int:
        """Make the changes durable and return the number of affected rows."""

    @abstractmethod
    def abort(self) -> None:
        """Undo all changes, after an error or a disconnect. Called at most once, and never after `commit`."""


class Writable(ABC):
    """A table that implements whole statements. `operations` lists the ones it supports."""

    operations: frozenset[Operation] = frozenset({"insert", "update", "delete"})

    @abstractmethod
    def write(self, write: Write) -> Statement:
        """Begin a statement. The client may scan the table while the statement is open: hold no lock that a scan needs."""


# -- simpler interfaces -----------------------------------------------------------------------------------------------


class Insertable(ABC):
    """A table that supports INSERT. One call gets all rows of the statement; with RETURNING there is one call per batch."""

    @abstractmethod
    def insert(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Insert the rows. If reading `rows` raises, the client has disconnected: undo the insert and let the error pass."""


class Updatable(ABC):
    """A table that supports UPDATE, with row ids and values as separate arguments and one call per batch."""

    @abstractmethod
    def update(self, row_ids: pa.Int64Array, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Replace the values of each row in `row_ids` by the row at the same position in `rows`."""


class Deletable(ABC):
    """A table that supports DELETE, with one call per batch."""

    @abstractmethod
    def delete(self, row_ids: pa.Int64Array, options: DmlOptions) -> DmlResult:
        """Delete the rows in `row_ids`."""


class UpdatableBatch(ABC):
    """A table that supports UPDATE, with the row id as one of the columns. Preferred over `Updatable`.

    One call gets all rows of the statement; with RETURNING there is one call per batch.
    """

    @abstractmethod
    def update_batch(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Update the rows in the row id column, which `find_rowid_column(rows.schema)` finds."""


class DeletableBatch(ABC):
    """A table that supports DELETE, with the row id as a column. Preferred over `Deletable`.

    One call gets all rows of the statement; with RETURNING there is one call per batch.
    """

    @abstractmethod
    def delete_batch(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Delete the rows in the row id column."""
