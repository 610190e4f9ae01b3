"""Snapshots of the in-memory database as immutable values, and the store of all its versions.

Readers take the newest snapshot and never wait. Writers pass a change, a function from one snapshot to the next. Changes are
applied one after the other, each to the newest snapshot.
"""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from skiway.airport.catalog import ColumnStatistics
from skiway.airport.memory.definitions import TableDefinition, fold_case
from skiway.airport.memory.rows import Rows
from skiway.airport.scan import TimePoint
from skiway.errors import InvalidArgument, NotFound

__all__ = ["Change", "Clock", "RowIds", "SchemaState", "Snapshot", "Store", "TableState", "change_numbers"]

# Unique numbers of changes: the stamps of rows and the revisions of definitions.
change_numbers: Final = itertools.count(1)


class RowIds:
    """Allocates the row ids of a table. An id is never reused, in any version of the table."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def take(self, count: int) -> int:
        """Allocate `count` consecutive ids and return the first."""
        with self._lock:
            first = self._next
            self._next += count
            return first


@dataclass(frozen=True, slots=True)
class TableState:
    """A version of a table. Every definition has its own `revision`, even if a table is dropped and created again."""

    definition: TableDefinition
    rows: Rows
    row_ids: RowIds
    revision: int
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict, compare=False)  # computed on demand

    @classmethod
    def empty(cls, definition: TableDefinition) -> TableState:
        """A new table without rows."""
        return cls(definition, Rows(definition.schema), RowIds(), next(change_numbers))

    def with_row_ids(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Append a column with new row ids to `rows`."""
        first = self.row_ids.take(rows.num_rows)
        ids = pa.arange(first, first + rows.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, ids], schema=self.definition.schema)

    def with_rows(self, rows: Rows) -> TableState:
        """The table with other rows."""
        return replace(self, rows=rows, statistics={})

    def with_definition(self, definition: TableDefinition, rows: Rows | None = None) -> TableState:
        """The table with another definition. Pass `rows` if the columns change."""
        if rows is None:
            rows = self.rows.rewritten(definition.schema, lambda batch: batch.columns[:-1])
        return replace(self, definition=definition, rows=rows, statistics={})


@dataclass(frozen=True, slots=True)
class SchemaState:
    """A version of a schema. The keys of `tables` are case-folded names."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TableState] = field(default_factory=dict)

    def table(self, name: str) -> TableState | None:
        """The table called `name`, or None. Names are case-insensitive."""
        return self.tables.get(fold_case(name))

    def with_table(self, table: TableState) -> SchemaState:
        """Add a table, or replace the one with the same name."""
        return replace(self, tables={**self.tables, fold_case(table.definition.name): table})

    def without_table(self, name: str) -> SchemaState:
        """Remove the table called `name`."""
        return replace(self, tables={key: table for key, table in self.tables.items() if key != fold_case(name)})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of the catalog. `shape` is the number of the last change of a definition."""

    version: int
    committed_at: dt.datetime
    schemas: Mapping[str, SchemaState] = field(default_factory=dict)
    shape: int = 0

    def schema(self, name: str) -> SchemaState | None:
        """The schema called `name`, or None. Names are case-insensitive."""
        return self.schemas.get(fold_case(name))

    def open_schema(self, name: str) -> SchemaState:
        """The schema called `name`; `NotFound` if there is none."""
        schema = self.schema(name)
        if schema is None:
            raise NotFound(f"schema {name!r} not found", key="schema", schema=name)
        return schema

    def table(self, schema: str, name: str) -> TableState | None:
        """The table called `name`, or None."""
        found = self.schema(schema)
        return found.table(name) if found else None

    def open_table(self, schema: str, name: str) -> TableState:
        """The table called `name`; `NotFound` if there is none."""
        table = self.open_schema(schema).table(name)
        if table is None:
            raise NotFound(f"table {schema}.{name} not found", key="table", table=f"{schema}.{name}")
        return table

    def with_schema(self, schema: SchemaState) -> Snapshot:
        """Add a schema, or replace the one with the same name."""
        return replace(self, schemas={**self.schemas, fold_case(schema.name): schema})

    def without_schema(self, name: str) -> Snapshot:
        """Remove the schema called `name`."""
        return replace(self, schemas={key: schema for key, schema in self.schemas.items() if key != fold_case(name)})

    def with_table(self, schema: str, table: TableState) -> Snapshot:
        """Add a table, or replace the one with the same name."""
        return self.with_schema(self.open_schema(schema).with_table(table))


Change = Callable[[Snapshot], Snapshot]
Clock = Callable[[], dt.datetime]


class Store:
    """Stores the newest `keep` versions. Version n is the state after n changes; version 0 is empty."""

    def __init__(self, *, clock: Clock, keep: int) -> None:
        if keep < 1:
            raise InvalidArgument(f"history must be at least 1, not {keep}")
        self._clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._history: tuple[Snapshot, ...] = (Snapshot(0, clock()),)

    @property
    def current(self) -> Snapshot:
        """The newest version."""
        return self._history[-1]

    def commit(self, change: Change) -> Snapshot:
        """Apply a change to the newest version. If it raises, or returns the same snapshot, there is no new version."""
        with self._lock:
            before = self.current
            after = change(before)
            if after is before:
                return before
            # versions stay in order if the clock is set back
            moment = max(self._clock(), before.committed_at)
            committed = replace(after, version=before.version + 1, committed_at=moment)
            self._history = (*self._history[-self._keep + 1 :], committed) if self._keep > 1 else (committed,)
            return committed

    def at(self, point: TimePoint) -> Snapshot | None:
        """The version at a point in time; None if it is before the first version."""
        history = self._history
        if point.unit == "timestamp":
            return _at_time(history, point.timestamp())
        return _at_version(history, point.version())


def _at_version(history: tuple[Snapshot, ...], version: int) -> Snapshot:
    oldest, newest = history[0].version, history[-1].version
    if not oldest <= version <= newest:
        raise NotFound(f"version {version} does not exist: versions {oldest} to {newest} are available")
    return history[version - oldest]


def _at_time(history: tuple[Snapshot, ...], moment: dt.datetime) -> Snapshot | None:
    later = bisect_right(history, moment, key=lambda snapshot: snapshot.committed_at)
    if later:
        return history[later - 1]
    if history[0].version:
        raise NotFound(
            f"the state at {moment.isoformat()} is no longer available: the history starts at "
            f"{history[0].committed_at.isoformat()} with version {history[0].version}"
        )
    return None
