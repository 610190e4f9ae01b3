"""What clients do with tables: scan their rows, and write them with INSERT, UPDATE and DELETE.

A scan returns its rows in any form that can be read as Arrow. Arrow data streams through. Python values are converted to the
announced types: a dict has the columns, and a list, or any other iterable, of dicts has the rows.

Rows arrive batch by batch in lock-step: with RETURNING, the client waits for the rows of one batch before it sends the
next. A `Writable` table therefore opens a statement, applies batches to it, and commits or aborts it as a whole. The
other capabilities are simpler interfaces for tables that do not need this.

UPDATE and DELETE identify rows by their row ids: a column called `rowid` or marked with the metadata `is_rowid`.
"""

from __future__ import annotations

import datetime as dt
import inspect
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, TypeVar

import pyarrow as pa

from skiway.airport import filters
from skiway.airport.wire.duckdb_sql import storage_type
from skiway.errors import Internal, InvalidArgument

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


# -- the rows of a scan ------------------------------------------------------------------------------------------------


def instead_of(argument: object) -> str:
    """Describe a wrong argument in an error message: `the class People`, `the function people`, `a dict`, `None`."""
    if isinstance(argument, type):
        return f"the class {argument.__name__}"
    if inspect.isroutine(argument):
        return f"the function {argument.__name__}"
    name = type(argument).__name__
    return "None" if argument is None else f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


@dataclass(frozen=True, slots=True)
class CountedBatches:
    """Batches with the expected number of their rows, which a scan can return for the client's progress bar."""

    batches: Iterator[pa.RecordBatch]
    expected_rows: int

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self.batches)

    def close(self) -> None:
        """Close what produces the batches."""
        if hasattr(self.batches, "close"):
            self.batches.close()


_ROWS_PER_BATCH: Final = 4096  # of rows that a generator yields one by one


def record_batches(data: ArrowData, schema: pa.Schema | None = None, what: str = "a scan") -> Generator[pa.RecordBatch]:
    """The batches of `data`, which `what` returned. Closing the generator closes the source.

    `schema` has the types for Python values; other columns of these are left out.
    """
    if isinstance(data, pa.RecordBatch):
        yield data
        return
    if isinstance(data, pa.Table):
        yield from data.to_batches()
        return
    if isinstance(data, Mapping):
        yield _from_columns(data, schema, what)
        return
    source = _iterable(data, what)
    try:
        yield from _batches_of_items(source, schema, what)
    finally:
        if hasattr(source, "close"):
            source.close()


def _iterable(data: ArrowData, what: str) -> Iterable[Any]:
    """An iterable over the batches, or parts, of `data`."""
    if data is None:
        raise Internal(f"{what} returned None: return its rows as Arrow data, such as pa.table({{…}})")
    if hasattr(data, "scanner"):  # a pyarrow Dataset
        data = data.scanner()
    if hasattr(data, "to_reader"):  # a pyarrow Scanner
        return data.to_reader()  # type: ignore[no-any-return]
    if isinstance(data, pa.RecordBatchReader):
        return data  # type: ignore[no-any-return]
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(data)  # type: ignore[no-any-return]
        if hasattr(data, "__arrow_c_array__"):
            return (pa.record_batch(data),)
    except pa.ArrowInvalid as error:  # one column instead of a table
        raise _unreadable(data, what) from error
    if not hasattr(data, "__iter__") or isinstance(data, str | bytes):
        raise _unreadable(data, what)
    return data  # type: ignore[no-any-return]


def _batches_of_items(source: Iterable[Any], schema: pa.Schema | None, what: str) -> Generator[pa.RecordBatch]:
    rows: list[Mapping[str, Any]] = []
    names: dict[str, None] = {}  # a column that only some of the rows have is NULL in the others
    if isinstance(source, list | tuple):
        names |= _names([item for item in source if isinstance(item, Mapping)], schema)
    for item in source:
        if isinstance(item, Mapping):
            rows.append(item)
            if len(rows) < _ROWS_PER_BATCH:
                continue
        if rows:
            names |= _names(rows, schema)
            yield _from_rows(rows, names, schema, what)
            rows = []
        if isinstance(item, pa.RecordBatch):
            yield item
        elif isinstance(item, tuple):
            raise _unreadable(item, what)
        elif not isinstance(item, Mapping):
            yield from record_batches(item, schema, what)
    if rows:
        yield _from_rows(rows, names | _names(rows, schema), schema, what)


def _unreadable(data: object, what: str) -> Internal:
    return Internal(
        f"{what} returned {instead_of(data)}, which cannot be read as Arrow: return a pyarrow table or batches of it, "
        "a dict of columns, or a list of rows as dicts"
    )


# -- Python values ----------------------------------------------------------------------------------------------------


def _from_columns(columns: Mapping[Any, Any], schema: pa.Schema | None, what: str) -> pa.RecordBatch:
    known = {name: values for name, values in columns.items() if schema is None or name in schema.names}
    arrays = {name: _column(name, values, schema, what) for name, values in (known or columns).items()}
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name!r} has {length}" for name, length in lengths.items())
        raise Internal(f"{what} returned columns of different lengths: {shown}")
    return pa.record_batch(arrays)


def _names(rows: Iterable[Mapping[str, Any]], schema: pa.Schema | None) -> dict[str, None]:
    """The names of all columns in the rows, as far as they are in `schema`, in order."""
    known = None if schema is None else frozenset(schema.names)
    return dict.fromkeys(name for row in rows for name in row if known is None or name in known)


def _from_rows(
    rows: list[Mapping[str, Any]], names: Iterable[str], schema: pa.Schema | None, what: str
) -> pa.RecordBatch:
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))  # it has rows nevertheless
    return pa.record_batch({name: _column(name, [row.get(name) for row in rows], schema, what) for name in names})


def _column(name: Any, values: Any, schema: pa.Schema | None, what: str) -> pa.Array:
    if isinstance(values, pa.ChunkedArray):
        return values.combine_chunks()
    if isinstance(values, pa.Array):
        return values
    if not isinstance(name, str):
        raise Internal(f"{what} returned a dict with the key {name!r}: keys must be the names of columns")
    if not hasattr(values, "__iter__") or isinstance(values, str | bytes | Mapping):
        raise Internal(
            f"{what} returned {instead_of(values)} as column {name!r}: return a list or an array for each column, "
            "or a list of rows as dicts"
        )
    index = -1 if schema is None else schema.get_field_index(name)
    expected = schema.field(index).type if schema is not None and index >= 0 else None
    try:
        return _typed(values, expected)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise Internal(
            f"{what} returned values of another type than {expected} for column {name!r}: return values of that type"
            if expected is not None
            else f"{what} returned values of different types for column {name!r}: return values of one type",
            detail=str(error),
        ) from error


def _typed(values: Any, expected: pa.DataType | None) -> pa.Array:
    items = values if isinstance(values, list | tuple) or hasattr(values, "__array__") else list(values)
    try:
        return pa.array(items, expected)
    except pa.ArrowNotImplementedError:
        if expected is None or storage_type(expected) == expected:
            raise
        return pa.array(items, storage_type(expected))  # an extension type that only knows its storage


# -- writing ----------------------------------------------------------------------------------------------------------

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
