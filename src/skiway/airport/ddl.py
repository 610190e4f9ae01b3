"""Changing what there is: abilities of catalogs, schemas and tables that take CREATE, DROP and ALTER.

Each change must raise the catalog's version (`Versioned`), so that clients bind their prepared statements anew. Errors:
`AlreadyExists`, `NotFound`, `SchemaNotEmpty`, `ConstraintViolation` (existing rows break a new rule), `InvalidArgument`.
Where a flag forgives (`if_exists` and the like), the method returns quietly instead.
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
    """All that CREATE TABLE says.

    `unique` has one tuple of column names per UNIQUE constraint. A column of the primary key is in `not_null` too.
    Defaults and comments of columns are in the metadata of the schema's fields, where the caller can give them (DuckDB
    cannot). `checks` are SQL expressions. `rows_follow` is said by clients that insert the first rows right after: see
    `DynamicSchema.awaited`.
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
    """A catalog whose schemas can be created and dropped."""

    @abstractmethod
    def create_schema(self, name: str, *, comment: str = "", tags: Mapping[str, str] | None = None) -> Schema:
        """A new schema; `AlreadyExists` if there is one of that name."""

    @abstractmethod
    def drop_schema(self, name: str, *, if_exists: bool = False) -> None:
        """Remove an empty schema; `SchemaNotEmpty` if it is not."""


class DynamicSchema(ABC):
    """A schema whose tables can be created, dropped and renamed."""

    @abstractmethod
    def create_table(self, create: CreateTable) -> Table:
        """A new table; on conflict fail, give the one there is, or put the new one in its place."""

    def awaited(self, name: str, binding: str) -> Table | None:  # noqa: ARG002
        """The `Bindable` table that `create_table` gave to a client whose rows follow, to be made with them.

        So that nobody sees it without its rows, or sees neither it nor the one that it replaces. None for any other table.
        """
        return None

    @abstractmethod
    def drop_table(self, name: str, *, if_exists: bool = False) -> None:
        """Remove a table."""

    @abstractmethod
    def rename_table(self, name: str, new_name: str, *, if_exists: bool = False) -> None:
        """Give a table another name; `AlreadyExists` if it is taken."""


class DynamicTable(ABC):
    """A table whose columns and rules can be changed. A column path leads into structs: `("address", "city")`."""

    @abstractmethod
    def add_column(self, field: pa.Field, *, if_not_exists: bool = False) -> None:
        """A new last column, NULL (or the field's default) in the rows there are."""

    @abstractmethod
    def remove_column(self, name: str, *, if_exists: bool = False, cascade: bool = False) -> None:
        """Remove a column; `cascade` takes the constraints along that name it."""

    @abstractmethod
    def rename_column(self, name: str, new_name: str) -> None:
        """Give a column another name."""

    @abstractmethod
    def change_column_type(self, field: pa.Field, expression: str) -> None:
        """Give the column of that name the field's type; the SQL expression makes new values of the old rows."""

    @abstractmethod
    def set_not_null(self, name: str) -> None:
        """Refuse NULLs from now on; `ConstraintViolation` if there are some."""

    @abstractmethod
    def drop_not_null(self, name: str) -> None:
        """Allow NULLs."""

    @abstractmethod
    def set_default(self, name: str, expression: str) -> None:
        """The SQL expression for values that INSERT leaves out."""

    @abstractmethod
    def add_constraint(self, constraint: str) -> None:
        """One more rule, as SQL: `CHECK (a < b)` or `UNIQUE (a, b)`."""

    @abstractmethod
    def add_field(self, path: Sequence[str], field: pa.Field, *, if_not_exists: bool = False) -> None:
        """A new last member of the struct at `path`."""

    @abstractmethod
    def rename_field(self, path: Sequence[str], new_name: str) -> None:
        """Give the struct member at `path` another name."""

    @abstractmethod
    def remove_field(self, path: Sequence[str], *, if_exists: bool = False, cascade: bool = False) -> None:
        """Remove the struct member at `path`."""
