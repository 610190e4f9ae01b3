"""What clients do with tables: scan their rows, and write them with INSERT, UPDATE and DELETE.

Rows arrive batch by batch in lock-step: with RETURNING, the client waits for the rows of one batch before it sends the
next. A `Writable` table therefore opens a statement, applies batches to it, and commits or aborts it as a whole. The
other capabilities are simpler interfaces for tables that do not need this.

UPDATE and DELETE identify rows by their row ids: a column called `rowid` or marked with the metadata `is_rowid`.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa

from skiway.airport import filters
from skiway.errors import InvalidArgument

ROWID: Final = "rowid"  # the default name of the row id column
IS_ROWID: Final = b"is_rowid"  # field metadata that marks a row id column of any other name

# Arrow data in any form: an object with __arrow_c_stream__ (a pyarrow Table, RecordBatchReader or Scanner, a Polars or
# pandas 3 data frame, a DuckDB relation), a single batch, or an iterable of batches.
ArrowData = Any

R = TypeVar("R", bound="FilterPushdown")


@dataclass(frozen=True, slots=True)
class TimePoint:
    """The point in time of a time travel query: `AT (VERSION => 3)`, `AT (TIMESTAMP => …)`, or a named snapshot."""

    unit: Literal["timestamp", "version", "snapshot"]
    value: str

    @classmethod
    def parse(cls, unit: str, value: str) -> TimePoint | None:
        """Parse the two strings of the wire format. Return None if both are empty."""
        if not unit and not value:
            return None
        lower = unit.lower()
        if lower not in ("timestamp", "version", "snapshot"):
            raise InvalidArgument(f"unknown time travel unit {unit!r}: use VERSION, TIMESTAMP or SNAPSHOT")
        return cls(lower, value)  # type: ignore[arg-type]

    def version(self) -> int:
        """The value as a version number."""
        try:
            return int(self.value)
        except ValueError:
            raise InvalidArgument(f"AT ({self.unit.upper()} => {self.value!r}): expected an integer") from None

    def timestamp(self) -> dt.datetime:
        """The value as a timestamp. A value without a time zone is UTC."""
        try:
            moment = dt.datetime.fromisoformat(self.value)
        except ValueError:
            raise InvalidArgument(
                f"AT ({self.unit.upper()} => {self.value!r}): expected an ISO timestamp such as '2025-01-31 10:00:00'"
            ) from None
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


class FilterPushdown:
    """Parses the pushed-down filter of a request at most once."""

    json_filters: str

    @cached_property
    def filter(self) -> filters.Filter:
        """The pushed-down filter, parsed on first access. It is falsy if there is none."""
        return filters.parse(self.json_filters)


def with_parsed_filter(request: R, parsed: filters.Filter) -> R:
    """Set the `filter` of a request whose `json_filters` are already parsed, and return the request."""
    request.__dict__["filter"] = parsed  # where cached_property stores it
    return request


@dataclass(frozen=True)
class ScanOptions(FilterPushdown):
    """What the client wants to read. All options are hints: a scan may always return more rows and more columns.

    `columns` has the names of the requested columns, without duplicates and in the client's order; None means all. A
    scan may leave out the other columns, and the server fills them with NULL. `limit` and `batch_size` are None unless
    the client sets them (DuckDB never does). `part` is one of the parts that a `Planned` table returned for this scan.
    """

    columns: list[str] | None = None
    json_filters: str = ""
    limit: int | None = None
    batch_size: int | None = None
    time_point: TimePoint | None = None
    part: bytes | None = None


def project_schema(schema: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    """Return `schema` with only `columns`, in their order. The metadata is preserved; None means all columns."""
    if columns is None:
        return schema
    names = list(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise InvalidArgument(f"unknown column {missing[0]!r}; the table has {', '.join(map(repr, schema.names))}")
    return pa.schema([schema.field(name) for name in names], metadata=schema.metadata)


def find_rowid_column(schema: pa.Schema) -> int | None:
    """The index of the row id column: the field with the metadata `is_rowid`, otherwise the field named `rowid`."""
    for index, field in enumerate(schema):
        if field.metadata and field.metadata.get(IS_ROWID):
            return index
    index = int(schema.get_field_index(ROWID))
    return index if index >= 0 else None


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
