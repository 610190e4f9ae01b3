"""Transactions.

DuckDB asks for a transaction id before its first statement and sends it along; it never tells whether the user
committed or rolled back. So the server commits each writing statement when it succeeded and rolls it back when it
failed, and other clients may use the actions `commit_transaction` and `rollback_transaction`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from skiway.airport.functions import ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.scan import ArrowData, ScanOptions, TimePoint, project_schema
from skiway.airport.statistics import ColumnStatistics
from skiway.airport.table_refs import TableRef

__all__ = [
    "Bindable",
    "Catalog",
    "CatalogVersion",
    "HasStatistics",
    "Planned",
    "Schema",
    "SharedListing",
    "Table",
    "TimeTravel",
    "TransactionManager",
    "TransactionStatus",
    "Transactional",
    "Versioned",
]


class TransactionStatus(StrEnum):
    """Where a transaction is."""

    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"


class TransactionManager(ABC):
    """Begins and ends transactions; ids are opaque text. Work finds its id in `current_request().transaction_id`."""

    @abstractmethod
    def begin(self) -> str:
        """A new transaction's id."""

    @abstractmethod
    def commit(self, transaction_id: str) -> None:
        """Make its work durable; `NotFound` for an unknown id, `PreconditionFailed` for one that was aborted."""

    @abstractmethod
    def rollback(self, transaction_id: str) -> None:
        """Undo its work."""

    @abstractmethod
    def status(self, transaction_id: str) -> TransactionStatus | None:
        """Where it is; None for an unknown id, also one that expired long ago."""


class Transactional(ABC):
    """A catalog with transactions of its own."""

    @property
    @abstractmethod
    def transactions(self) -> TransactionManager:
        """Its manager."""


# --------------------
# What an Airport server serves: catalogs of schemas of tables.
#
# A catalog is anything with these methods. Subclass the small ABCs below, or let `CatalogBuilder` make them from
# functions. What an object can do beyond being read is an ability: one more small ABC to inherit from, which the server
# asks for with `isinstance`.
#
# Every method may be called from many threads at once, and may look at `current_request()` to answer by who asks.
# Lookups of what does not exist return None; listings are never None.


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
