"""The interfaces that a server implements: a catalog contains schemas, and a schema contains tables and functions.

Catalogs, schemas and tables that support CREATE, DROP and ALTER also inherit from `DynamicCatalog`, `DynamicSchema` and
`DynamicTable`.

Subclass the small abstract classes below, or let `CatalogBuilder` create them from functions. Everything beyond reading
is a capability: another small abstract class to inherit from, which the server looks for with `isinstance`. The
capabilities to write rows are in `skiway.airport.tables`, those to change definitions at the end of this module.

Methods may be called from many threads at once. They may call `current_request()` to see who is calling. A lookup returns
None if the object does not exist; a listing is never None.

Every change must increase the version of the catalog (`Versioned`), so that clients rebind their prepared statements.
Methods raise `AlreadyExists`, `NotFound`, `SchemaNotEmpty`, `ConstraintViolation` (existing rows violate a new
constraint) or `InvalidArgument`. With a flag such as `if_exists`, they return without an error instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Literal

import pyarrow as pa

from skiway.airport.functions import ScalarFunction, TableFunction, TableInOutFunction
from skiway.airport.table_refs import FunctionCall, TableRef
from skiway.airport.tables import ArrowData, ScanOptions, TimePoint, project_schema

UNREACHABLE_SCHEMA: Final = "main"  # DuckDB lists an attached schema of this name but cannot query it


class Table(ABC):
    """A table that can be scanned.

    Set `name` and `schema` in the class or in `__init__`, or define them as properties. `schema` has all columns,
    including the row id if the table has one. Its fields may have the Arrow metadata `comment`, `default` (an SQL
    expression) and `is_rowid`. DuckDB sees a field that is not nullable as NOT NULL.
    """

    name: str
    schema: pa.Schema
    comment: str = ""

    @abstractmethod
    def scan(self, options: ScanOptions) -> ArrowData:
        """Return the rows. Columns are matched by name; those not in `options.columns` may be missing."""

    def projected_schema(self, columns: Sequence[str] | None) -> pa.Schema:
        """The schema with only `columns`, in their order."""
        return project_schema(self.schema, columns)

    def row_count(self) -> int | None:
        """The number of rows, if it is known and cheap to compute. It drives DuckDB's progress bar."""
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
        """The table called `name`, or None."""
        return next((table for table in self.tables() if table.name == name), None)

    def table_refs(self) -> Sequence[TableRef]:
        """All table references: tables that DuckDB reads itself, with a function call that the server returns."""
        return ()

    def table_ref(self, name: str) -> TableRef | None:
        """The table reference called `name`, or None."""
        return next((ref for ref in self.table_refs() if ref.name == name), None)

    def scalar_functions(self) -> Sequence[ScalarFunction]:
        """All scalar functions. Functions with the same name are overloads."""
        return ()

    def table_functions(self) -> Sequence[TableFunction | TableInOutFunction]:
        """All functions that return tables."""
        return ()


class Catalog(ABC):
    """The catalog that `ATTACH 'name'` attaches. A catalog named "" is the default for calls that name no catalog."""

    name: str = ""

    @abstractmethod
    def schemas(self) -> Sequence[Schema]:
        """All schemas that the caller may see."""

    def schema(self, name: str) -> Schema | None:
        """The schema called `name`, or None."""
        return next((schema for schema in self.schemas() if schema.name == name), None)


# -- capabilities of catalogs -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CatalogVersion:
    """A number that increases with every change of the catalog. `fixed` promises that it never changes while attached."""

    version: int
    fixed: bool = False


class Versioned(ABC):
    """A catalog with a version. The server caches its listing until the version changes."""

    @abstractmethod
    def version(self) -> CatalogVersion:
        """The current version."""


class Commands(ABC):
    """A catalog that answers commands: `airport_take_flight(location, 'any text')` reads the table that it returns.

    A command that DuckDB sends names no catalog, so this must be the catalog for calls that name none.
    """

    @abstractmethod
    def command(self, text: str) -> Table:
        """The table that the command stands for. It is called for each step of a scan."""


class SharedListing(ABC):
    """A versioned catalog whose cached listing is shared by all callers with the same visibility key.

    Without this capability, the server caches one listing per identity.
    """

    @abstractmethod
    def visibility_key(self) -> Hashable:
        """A key that is equal for all callers who may see the same objects."""


class LazyListing(ABC):
    """A schema that a listing of its catalog can leave out. Clients then request its objects when they first use it.

    DuckDB requests them up to three times, for tables and both kinds of functions, and receives a message per object.
    Objects in the listing arrive faster, so the listing leaves out only schemas that the server has not listed yet in the
    current version of the catalog.
    """

    @property
    @abstractmethod
    def is_lazy(self) -> bool:
        """Whether the listing leaves out the objects of this schema."""


class TransactionStatus(StrEnum):
    """The status of a transaction."""

    ACTIVE = "active"
    COMMITTED = "committed"
    ABORTED = "aborted"


class TransactionManager(ABC):
    """Begins and ends transactions. Code that runs in a transaction finds its id in `current_request().transaction_id`.

    DuckDB requests a transaction id before its first statement and sends the id with every statement, but it never
    reports COMMIT or ROLLBACK. The server therefore commits after each successful writing statement and rolls back
    after a failed one. Other clients may call the actions `commit_transaction` and `rollback_transaction`.
    """

    @abstractmethod
    def begin(self) -> str:
        """Begin a transaction and return its id, an opaque string."""

    @abstractmethod
    def commit(self, transaction_id: str) -> None:
        """Commit. Raise `NotFound` for an unknown id and `PreconditionFailed` for an aborted transaction."""

    @abstractmethod
    def rollback(self, transaction_id: str) -> None:
        """Undo all changes of the transaction."""

    @abstractmethod
    def status(self, transaction_id: str) -> TransactionStatus | None:
        """The status, or None if the id is unknown or expired long ago."""


class Transactional(ABC):
    """A catalog with transactions."""

    @property
    @abstractmethod
    def transactions(self) -> TransactionManager:
        """The transaction manager."""


# -- capabilities of tables -------------------------------------------------------------------------------------------


class TimeTravel(ABC):
    """A table with a history."""

    @abstractmethod
    def at(self, point: TimePoint) -> Table | None:
        """The table at `point`, with the schema it had then; None if it did not exist."""


class Planned(ABC):
    """A table that plans a scan before it runs and may split it into parts that clients read in parallel."""

    @abstractmethod
    def plan(self, options: ScanOptions) -> Sequence[bytes | FunctionCall]:
        """Split a scan into parts. The result of the scan is the union of the parts; no parts mean no rows.

        Each part is passed back as `options.part` to `scan`, possibly on another server. It must therefore contain
        everything the scan needs, such as the version and the files to read. Parts travel in signed tickets, so they can
        be trusted.

        A part can also be a call of a DuckDB function, such as `FunctionCall("read_parquet", paths)`. The client runs it
        itself. Its columns must have the names and types of the table's, and it must return no row ids.
        """


class Bindable(ABC):
    """A table that can still be read by clients that attached an earlier definition of it.

    A client does not notice that a table changes after ATTACH, and reads its columns by position. The server therefore
    makes a fingerprint of the schema part of the table's address, and rejects calls with another one: "the table changed:
    DETACH and ATTACH again". A `Bindable` table has a binding of its own instead of the fingerprint, a short string that
    comes back with every call of a client that attached this definition.
    """

    @abstractmethod
    def binding(self) -> str:
        """A string that identifies the current definition of the table, among all tables of its name."""

    @abstractmethod
    def bound(self, binding: str) -> Table:
        """The table with the schema that `binding` identifies; `PreconditionFailed` if it can no longer be read."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of one column. None means unknown.

    `min` and `max` are Python values or pyarrow scalars of the column's type. Bounds may be wider than the data, but
    bounds that are too narrow lead to wrong query results.
    """

    min: Any = None
    max: Any = None
    has_null: bool | None = None
    has_not_null: bool | None = None
    distinct_count: int | None = None
    max_string_length: int | None = None
    contains_unicode: bool | None = None


class HasStatistics(ABC):
    """A table with column statistics for DuckDB's optimizer."""

    @property
    def offers_statistics(self) -> bool:
        """Whether listings tell clients to ask for them. DuckDB asks twice for each column of a query, one call after another."""
        return True

    @abstractmethod
    def column_statistics(self, column: str, duckdb_type: str) -> ColumnStatistics:
        """The statistics of a column. Leave unknown values as None, never guess."""


OnConflict = Literal["error", "ignore", "replace"]


@dataclass(frozen=True, slots=True)
class CreateTable:
    """A CREATE TABLE statement.

    `unique` has one tuple of column names per UNIQUE constraint. Columns of the primary key are in `not_null` too.
    Defaults and comments of columns are in the field metadata of the schema; DuckDB does not send them, other clients
    may. `checks` are SQL expressions. `rows_follow` is set by clients that insert the first rows right after: see
    `DynamicSchema.pending_table`.
    """

    name: str
    schema: pa.Schema
    on_conflict: OnConflict = "error"
    comment: str = ""
    not_null: tuple[str, ...] = ()
    primary_key: tuple[str, ...] = ()
    unique: tuple[tuple[str, ...], ...] = ()
    checks: tuple[str, ...] = ()
    rows_follow: bool = False


class DynamicCatalog(ABC):
    """A catalog that supports CREATE SCHEMA and DROP SCHEMA."""

    @abstractmethod
    def create_schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> Schema:
        """Create a schema; `AlreadyExists` if there is one with this name."""

    @abstractmethod
    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Drop an empty schema; `SchemaNotEmpty` if it contains tables."""


class DynamicSchema(ABC):
    """A schema that supports CREATE TABLE, DROP TABLE and renaming tables."""

    @abstractmethod
    def create_table(self, create: CreateTable) -> Table:
        """Create a table. If it exists, fail, return the existing one or replace it, as `create.on_conflict` says."""

    def pending_table(self, name: str, binding: str) -> Table | None:  # noqa: ARG002
        """The `Bindable` table that `create_table` returned for `rows_follow`, if it is not created yet; otherwise None.

        The INSERT creates the table together with its rows. Other clients never see the table without its rows, nor a
        gap between an old table and its replacement.
        """
        return None

    @abstractmethod
    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Drop a table."""

    @abstractmethod
    def rename_table(self, name: str, new_name: str, *, if_exists: bool = False) -> None:
        """Rename a table; `AlreadyExists` if the new name is in use."""


class DynamicTable(ABC):
    """A table that supports ALTER TABLE. A path such as `("address", "city")` identifies a field of a struct column."""

    @abstractmethod
    def add_column(self, field: pa.Field, *, if_not_exists: bool = False) -> None:
        """Append a column. It is NULL, or the default of the field, in existing rows."""

    @abstractmethod
    def remove_column(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:
        """Drop a column. With `cascade`, drop the constraints that refer to it too."""

    @abstractmethod
    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column."""

    @abstractmethod
    def change_column_type(self, field: pa.Field, expression: str) -> None:
        """Change the type of the column called `field.name`. The SQL `expression` computes the values of existing rows."""

    @abstractmethod
    def set_not_null(self, name: str) -> None:
        """Add a NOT NULL constraint; `ConstraintViolation` if the column contains NULLs."""

    @abstractmethod
    def drop_not_null(self, name: str) -> None:
        """Drop the NOT NULL constraint."""

    @abstractmethod
    def set_default(self, name: str, expression: str) -> None:
        """Set the SQL expression for values that an INSERT leaves out."""

    @abstractmethod
    def add_constraint(self, constraint: str) -> None:
        """Add a constraint in SQL: `CHECK (a < b)` or `UNIQUE (a, b)`."""

    @abstractmethod
    def add_field(self, path: Sequence[str], field: pa.Field, *, if_not_exists: bool = False) -> None:
        """Append a field to the struct at `path`."""

    @abstractmethod
    def rename_field(self, path: Sequence[str], new_name: str) -> None:
        """Rename the struct field at `path`."""

    @abstractmethod
    def remove_field(self, path: Sequence[str], *, if_exists: bool = False, cascade: bool = False) -> None:
        """Drop the struct field at `path`."""
