"""What a server implements to serve Flight SQL: an engine that runs queries with the rights of the caller."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pyarrow as pa

from skiway.airport import Schema, Table
from skiway.airport.table_refs import TableRef

__all__ = ["BoundSql", "SqlEngine", "SqlResult"]


@dataclass(frozen=True, slots=True)
class SqlResult:
    """The columns and the rows of a query that runs."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class BoundSql:
    """A query with constants instead of its parameters, and the names of these in their order."""

    sql: str
    parameters: Sequence[str]


class SqlEngine(ABC):
    """Runs queries. Methods are called from many threads, and may call `current_request()` to see who is calling.

    `catalog` is the name that the client sent in the header `airport-catalog`; it may be empty.
    """

    @abstractmethod
    def caller(self) -> str:
        """A text that identifies the caller: statements belong to the caller who prepared or planned them."""

    @abstractmethod
    def columns(self, sql: str, catalog: str) -> pa.Schema:
        """The columns of a query, without running it."""

    @abstractmethod
    def run(self, sql: str, catalog: str) -> AbstractContextManager[SqlResult]:
        """Run a query within the block. The query must end with the block."""

    @abstractmethod
    def bind(self, sql: str, values: pa.Table | None) -> BoundSql:
        """A query with the values of one row instead of its parameters; with NULL if there are no values."""

    def table_type(self, schema: Schema, table: Table | TableRef) -> str:  # noqa: ARG002 - for engines that distinguish
        """The type of a table in listings, one of `table_types`."""
        return "TABLE"

    @property
    def table_types(self) -> Sequence[str]:
        """All types of tables."""
        return ("TABLE",)
