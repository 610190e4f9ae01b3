"""Functions of the schema `skiway` that change something.

They express what DuckDB's client has no statement for, such as `CALL lake.skiway.create_view('s.v', 'SELECT …')`. A function acts
when it is executed, not when a statement that names it is planned.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pyarrow as pa
from sqlglot import exp
from sqlglot.errors import SqlglotError

from skiway.airport import ScanOptions, TableFunction
from skiway.errors import InvalidArgument, NotFound
from skiway.foundation.resources import namespace_path
from skiway.lake.context import Context
from skiway.lake.writing.commits import Changes, check_auto_commit, check_managed
from skiway.metastore import namespaces, tables
from skiway.metastore.records.damage import damaged_error
from skiway.model import v1
from skiway.sql import Find


class Place(NamedTuple):
    """Where a table or view is, or will be."""

    namespace: v1.Namespace
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


class ActingFunction(TableFunction):
    """A function that acts when it is executed, and returns one row about it."""

    result: pa.Schema

    def schema_for(self, arguments: Mapping[str, pa.Scalar]) -> pa.Schema:  # noqa: ARG002
        """The columns of the result. Nothing changes yet."""
        return self.result

    def execute(self, arguments: Mapping[str, pa.Scalar], options: ScanOptions) -> Iterator[pa.RecordBatch]:
        """Act, and return one row about it."""
        values = self.act({name: value.as_py() for name, value in arguments.items()})
        row = pa.RecordBatch.from_pydict({key: [value] for key, value in values.items()}, self.result)
        yield row.select(self.result.names if options.columns is None else options.columns)

    @abstractmethod
    def act(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Act on the arguments; return the values of the result."""


class EffectFunction(ActingFunction):
    """A function that changes a table or view, which its first argument names."""

    permission: str
    can_be_staged = False
    """Whether the change can wait for the commit of an explicit transaction."""

    def __init__(self, context: Context, catalog: v1.Catalog, find: Find) -> None:
        self._context, self._catalog, self._find = context, catalog, find

    def act(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make the change, if the caller may."""
        place = self._place(given["name"] or "")
        self.check(place)
        if not self.can_be_staged:
            check_auto_commit()
        values = self.change(place, given)
        self._context.versions.changed(self._context.callers.realm())
        return values

    def check(self, place: Place) -> None:
        """Raise unless the caller may make the change."""
        self._context.callers.require(self.permission, place.namespace)
        check_managed(self._catalog)

    @abstractmethod
    def change(self, place: Place, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make the change; return the values of the result."""

    def full_name(self, place: Place) -> str:
        """The name for messages and results."""
        return f"{self._catalog.display_name}.{place}"

    def _place(self, name: str) -> Place:
        table = table_name(name, self._catalog.display_name, self.name)
        found = namespaces.find_any_case(self._context.callers.realm(), self._catalog, namespace_path(table.db))
        if found is None:
            raise NotFound(f"schema {table.db!r} does not exist: create it first", key="schema", schema=table.db)
        return Place(found, table.db, table.name)


class ChangeTable(EffectFunction):
    """A function that changes an existing table."""

    permission = "table.write"

    def check(self, place: Place) -> None:
        """Nothing here: whether the caller may change the table is decided when it is found."""

    def found(self, place: Place) -> v1.Table:
        """The table, which the caller may change."""
        callers, name = self._context.callers, self.full_name(place)
        record = tables.find_any_case(callers.realm(), self._catalog, place.namespace.resource_id.id, place.name)
        callers.require(self.permission, place.namespace if record is None else record)
        if record is None:
            raise NotFound(f"table {name} does not exist", key="table", table=name)
        if record.damage:
            raise damaged_error("table", name, record.damage)
        return record

    def changes(self, place: Place) -> Changes:
        """The changes of a managed table."""
        found = Changes(self._context, self.found(place))
        found.check_allowed()
        return found


def table_name(name: str, catalog: str, function: str) -> exp.Table:
    """The schema and name of a table, which an argument of a function in this catalog names."""
    try:
        table = exp.to_table(name, dialect="duckdb")
    except (SqlglotError, ValueError) as error:
        raise _bad_name(name) from error
    if not (table.name and table.db):
        raise _bad_name(name)
    if table.catalog and table.catalog.casefold() != catalog.casefold():
        raise InvalidArgument(
            f"{name} is not in catalog {catalog}: call {table.catalog}.skiway.{function}", key="name.catalog"
        )
    return table


def _bad_name(name: str) -> InvalidArgument:
    return InvalidArgument(f"{name!r} is not the name of a table or view: write schema.name, such as 'sales.people'")
