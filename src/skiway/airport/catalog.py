"""What an Airport server serves: catalogs of schemas of tables.

A catalog is anything with these methods. Subclass the small ABCs below, or let `CatalogBuilder` make them from
functions. What an object can do beyond being read is an ability: one more small ABC to inherit from, which the server
asks for with `isinstance`.

Every method may be called from many threads at once, and may look at `current_request()` to answer by who asks.
Lookups of what does not exist return None; listings are never None.
"""

from __future__ import annotations

import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa

from skiway.airport import filters
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    from skiway.airport.functions import ScalarFunction, TableFunction, TableInOutFunction
    from skiway.airport.statistics import ColumnStatistics
    from skiway.airport.table_refs import TableRef

ROWID: Final = "rowid"
IS_ROWID: Final = b"is_rowid"

# Anything that gives Arrow data: an object with __arrow_c_stream__ (pyarrow Table, RecordBatchReader, Scanner; Polars;
# a DuckDB relation; pandas 3), one batch, or an iterable of batches.
ArrowData = Any


@dataclass(frozen=True, slots=True)
class TimePoint:
    """The moment a time-travel query asks for: `AT (VERSION => 3)`, `AT (TIMESTAMP => …)`, or a named snapshot."""

    unit: Literal["timestamp", "version", "snapshot"]
    value: str

    @classmethod
    def parse(cls, unit: str, value: str) -> TimePoint | None:
        """From the wire's two texts; both empty means no time point."""
        if not unit and not value:
            return None
        lower = unit.lower()
        if lower not in ("timestamp", "version", "snapshot"):
            raise InvalidArgument(f"unknown time travel unit {unit!r}: use VERSION, TIMESTAMP or SNAPSHOT")
        return cls(lower, value)  # type: ignore[arg-type]

    def version(self) -> int:
        """The version number asked for."""
        try:
            return int(self.value)
        except ValueError:
            raise InvalidArgument(
                f"AT ({self.unit.upper()} => {self.value!r}): a whole number is needed here"
            ) from None

    def timestamp(self) -> dt.datetime:
        """The instant asked for; a text without a time zone is UTC."""
        try:
            moment = dt.datetime.fromisoformat(self.value)
        except ValueError:
            raise InvalidArgument(
                f"AT ({self.unit.upper()} => {self.value!r}): an ISO timestamp such as '2025-01-31 10:00:00' is needed here"
            ) from None
        return moment if moment.tzinfo else moment.replace(tzinfo=dt.UTC)


@dataclass(frozen=True)
class ScanOptions:
    """What the client wants of a scan. All of it is a hint: more rows and more columns are always right.

    `columns`: the names asked for, in the client's order, each once; None means all. Others may be left out of the
    answer, the server fills them with NULLs. `limit` and `batch_size` are None where nobody set them (DuckDB never does).
    """

    columns: list[str] | None = None
    json_filters: str = ""
    limit: int | None = None
    batch_size: int | None = None
    time_point: TimePoint | None = None
    part: bytes | None = None  # of a `Planned` table: which of the parts that it made of this scan

    @cached_property
    def filter(self) -> filters.Filter:
        """The pushed-down predicate, parsed when first asked for; it is falsy when there is none."""
        return filters.parse(self.json_filters)


class Table(ABC):
    """A table that can be scanned.

    `schema` may hold, as Arrow field metadata, `comment`, `default` (SQL text) and `is_rowid`; a field that is not
    nullable is NOT NULL to DuckDB.
    """

    name: str
    comment: str = ""

    @property
    @abstractmethod
    def schema(self) -> pa.Schema:
        """All columns, the row id among them if there is one."""

    @abstractmethod
    def scan(self, options: ScanOptions) -> ArrowData:
        """The rows. Columns are matched by name; those not in `options.columns` may be missing."""

    def projected_schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema of just these columns, in their order."""
        return project_schema(self.schema, columns)

    def row_count(self) -> int | None:
        """How many rows a scan gives, where that is known and cheap; it drives DuckDB's progress bar."""
        return None


class Schema(ABC):
    """A named group of tables and functions."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = {}

    @abstractmethod
    def tables(self) -> Sequence[Table]:
        """All tables that the caller may see."""

    def table(self, name: str) -> Table | None:
        """One table, or None."""
        return next((table for table in self.tables() if table.name == name), None)

    def table_refs(self) -> Sequence[TableRef]:
        """Tables that DuckDB reads by itself, by a function call that we hand it."""
        return ()

    def table_ref(self, name: str) -> TableRef | None:
        """One table reference, or None."""
        return next((ref for ref in self.table_refs() if ref.name == name), None)

    def scalar_functions(self) -> Sequence[ScalarFunction]:
        """All scalar functions; several of one name are overloads."""
        return ()

    def table_functions(self) -> Sequence[TableFunction | TableInOutFunction]:
        """All functions that return tables."""
        return ()


class Catalog(ABC):
    """What `ATTACH 'name'` finds. The name "" is the default catalog, used by calls that name none."""

    name: str = ""

    @abstractmethod
    def schemas(self) -> Sequence[Schema]:
        """All schemas that the caller may see."""

    def schema(self, name: str) -> Schema | None:
        """One schema, or None."""
        return next((schema for schema in self.schemas() if schema.name == name), None)


# -- abilities --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """A number that grows with each change of the catalog; `fixed` promises that it never will while attached."""

    version: int
    fixed: bool = False


class Versioned(ABC):
    """A catalog that knows its version: its listing is kept until the version changes."""

    @abstractmethod
    def version(self) -> CatalogVersion:
        """The version now."""


class SharedListing(ABC):
    """A versioned catalog that tells who sees the same: callers with equal keys share one kept listing.

    Without it each identity has a listing of its own.
    """

    @abstractmethod
    def visibility_key(self) -> Hashable:
        """Equal for all callers who may see the same objects."""


class TimeTravel(ABC):
    """A table with a past."""

    @abstractmethod
    def at(self, point: TimePoint) -> Table | None:
        """The table as it was then, with the schema of that time; None if it did not exist."""


class Planned(ABC):
    """A table that decides what to read when a scan is planned, and may have it read in several parts at once."""

    @abstractmethod
    def plan(self, options: ScanOptions) -> Sequence[bytes]:
        """The parts of a scan, whose rows add up; none for no rows.

        Each part comes back as `options.part` of a `scan`, perhaps on another server, so it says all that the scan must
        know: which version of the rows, which files. It travels in a signed ticket, so it can be believed.
        """


class Bindable(ABC):
    """A table that is told what each client knows of it.

    A client never learns by itself that a table was changed since it attached. So the short text that a table gives as
    its binding is part of its address, and comes back with every call of a client that knows the table like that.
    """

    @abstractmethod
    def binding(self) -> str:
        """What tells the table, as it looks now, from others of that name and from how it looked before."""

    @abstractmethod
    def bound(self, binding: str) -> Table:
        """The table as the client knows it, with that schema; `PreconditionFailed` if it cannot be read so any more."""


class HasStatistics(ABC):
    """A table that can tell DuckDB's optimizer about its columns."""

    @abstractmethod
    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """What is known about a column; unknown members stay None, never guessed."""


# -- schemas of columns -----------------------------------------------------------------------------------------------


def project_schema(schema: pa.Schema, columns: Iterable[str] | None) -> pa.Schema:
    """`schema` with just `columns`, in their order, its metadata kept; None means all."""
    if columns is None:
        return schema
    names = list(columns)
    missing = [name for name in names if name not in schema.names]
    if missing:
        raise InvalidArgument(f"unknown column {missing[0]!r}; the table has {', '.join(map(repr, schema.names))}")
    return pa.schema([schema.field(name) for name in names], metadata=schema.metadata)


def find_rowid_column(schema: pa.Schema) -> int | None:
    """Index of the row id: the field with metadata `is_rowid`, or else the one named `rowid`."""
    for index, field in enumerate(schema):
        if field.metadata and field.metadata.get(IS_ROWID):
            return index
    index = int(schema.get_field_index(ROWID))
    return index if index >= 0 else None
