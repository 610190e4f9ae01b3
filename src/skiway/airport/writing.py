"""Writing: abilities of tables that take INSERT, UPDATE and DELETE.

The wire works in lock-step: rows arrive batch by batch, and with RETURNING each batch is answered before the next one
comes. So the core speaks of a statement: opened, given batches, then committed or aborted. A table that is `Writable`
does the same and gets whole statements, all or nothing. The other abilities are simpler forms of it.

Rows to update or delete are named by row ids, a column called `rowid` or marked `is_rowid`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from skiway.airport.scan import ArrowData

__all__ = [
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
]

Operation = Literal["insert", "update", "delete"]


@dataclass(frozen=True, slots=True)
class DmlOptions:
    """What a statement wants back.

    The client does not tell which columns RETURNING names, so `returning_columns` are all but the row id; it picks
    what it needs.
    """

    returning: bool = False
    returning_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DmlResult:
    """What a write did. `returning_data` holds the rows written, one for each row given and in their order."""

    affected_rows: int
    returning_data: ArrowData | None = None


# -- whole statements -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """A statement about to begin: what it does, and the schema its batches will have.

    INSERT brings all columns but the row id; UPDATE the changed columns and more, in any order, with the row id; DELETE
    the row id alone. Types are those of the client's session and may differ from the table's: cast.
    """

    operation: Operation
    schema: pa.Schema
    options: DmlOptions


class Statement(ABC):
    """One INSERT, UPDATE or DELETE. Nothing of it may be seen by others before `commit`."""

    @abstractmethod
    def apply(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        """Take a batch; with RETURNING, give the rows as written, one for each in the same order.

        UPDATE gives the columns of its input, in their order; INSERT and DELETE all visible columns.
        """

    @abstractmethod
    def commit(self) -> int:
        """Make it all durable and tell how many rows were affected."""

    @abstractmethod
    def abort(self) -> None:
        """Undo it all: something failed, or the client went away. Called at most once, never after `commit`."""


class Writable(ABC):
    """A table that takes whole statements; `operations` says which."""

    operations: frozenset[Operation] = frozenset({"insert", "update", "delete"})

    @abstractmethod
    def write(self, write: Write) -> Statement:
        """Begin a statement. The client may scan the same table while it is open: hold no lock that a scan needs."""


# -- simpler forms ----------------------------------------------------------------------------------------------------


class Insertable(ABC):
    """A table that takes rows. Without RETURNING one call gets all rows of the statement, else one call per batch."""

    @abstractmethod
    def insert(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Add the rows. If reading `rows` raises, the client is gone: undo, and let the error pass."""


class Updatable(ABC):
    """A table whose rows can be changed, ids and values apart; one call per batch."""

    @abstractmethod
    def update(self, row_ids: pa.Int64Array, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Give each row the values at its place in `rows`."""


class Deletable(ABC):
    """A table whose rows can be removed by id; one call per batch."""

    @abstractmethod
    def delete(self, row_ids: pa.Int64Array, options: DmlOptions) -> DmlResult:
        """Remove the rows."""


class UpdatableBatch(ABC):
    """The same with the row id as a column among the values; preferred where a table has both forms.

    Without RETURNING one call gets all rows of the statement, else one call per batch.
    """

    @abstractmethod
    def update_batch(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Change the rows that the id column names; `find_rowid_column(rows.schema)` tells where it is."""


class DeletableBatch(ABC):
    """The same for DELETE; preferred where a table has both forms."""

    @abstractmethod
    def delete_batch(self, rows: pa.RecordBatchReader, options: DmlOptions) -> DmlResult:
        """Remove the rows that the id column names."""
