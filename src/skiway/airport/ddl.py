"""DDL: the capabilities of catalogs, schemas and tables that support CREATE, DROP and ALTER.

Every change must increase the version of the catalog (`Versioned`), so that clients rebind their prepared statements.
Methods raise `AlreadyExists`, `NotFound`, `SchemaNotEmpty`, `ConstraintViolation` (existing rows violate a new
constraint) or `InvalidArgument`. With a flag such as `if_exists`, they return without an error instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from skiway.airport.catalog import Schema, Table

__all__ = ["CreateTable", "DynamicCatalog", "DynamicSchema", "DynamicTable", "OnConflict"]

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
