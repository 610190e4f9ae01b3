"""Everything a catalog holds at one time, as immutable values."""

from __future__ import annotations

import datetime as dt
import itertools
import threading
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from skiway.airport.memory.definitions import TableDefinition, folded
from skiway.airport.memory.rows import Rows
from skiway.airport.scan import TimePoint
from skiway.airport.statistics import ColumnStatistics
from skiway.errors import InvalidArgument, NotFound

__all__ = ["Change", "Clock", "RowIds", "SchemaState", "Snapshot", "Store", "TableState", "change_numbers"]

# Numbers of changes: of row changes as stamps, of definitions as revisions. None is ever used twice.
change_numbers: Final = itertools.count(1)


class RowIds:
    """Gives out the row ids of one table, through all its versions; an id given is never given again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 0

    def take(self, count: int) -> int:
        """The first of `count` new ids."""
        with self._lock:
            first = self._next
            self._next += count
            return first


@dataclass(frozen=True, slots=True)
class TableState:
    """A table at one time. `revision` tells definitions apart, also those of a table that was made anew."""

    definition: TableDefinition
    rows: Rows
    row_ids: RowIds
    revision: int
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict, compare=False)  # as far as asked for

    @classmethod
    def empty(cls, definition: TableDefinition) -> TableState:
        """A new table."""
        return cls(definition, Rows(definition.schema), RowIds(), next(change_numbers))

    def numbered(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """New rows with ids of their own, as they are kept."""
        first = self.row_ids.take(rows.num_rows)
        ids = pa.arange(first, first + rows.num_rows)
        return pa.RecordBatch.from_arrays([*rows.columns, ids], schema=self.definition.schema)

    def with_rows(self, rows: Rows) -> TableState:
        """The same table with other rows."""
        return replace(self, rows=rows, statistics={})

    def defined(self, definition: TableDefinition, rows: Rows | None = None) -> TableState:
        """The table under another definition; rows of the same columns are kept as they are."""
        if rows is None:
            rows = self.rows.rewritten(definition.schema, lambda batch: batch.columns[:-1])
        return replace(self, definition=definition, rows=rows, statistics={})


@dataclass(frozen=True, slots=True)
class SchemaState:
    """A schema at one time; its tables by folded name."""

    name: str
    comment: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, TableState] = field(default_factory=dict)

    def table(self, name: str) -> TableState | None:
        """The table of that name, whatever the case of its letters."""
        return self.tables.get(folded(name))

    def with_table(self, table: TableState) -> SchemaState:
        """With this table, in place of one of the same name."""
        return replace(self, tables={**self.tables, folded(table.definition.name): table})

    def without_table(self, name: str) -> SchemaState:
        """Without the table of that name."""
        return replace(self, tables={key: table for key, table in self.tables.items() if key != folded(name)})


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of the catalog; `shape` is the number of the last change of any definition."""

    version: int
    committed_at: dt.datetime
    schemas: Mapping[str, SchemaState] = field(default_factory=dict)
    shape: int = 0

    def schema(self, name: str) -> SchemaState | None:
        """The schema of that name, whatever the case of its letters."""
        return self.schemas.get(folded(name))

    def open_schema(self, name: str) -> SchemaState:
        """The same, where it must be there."""
        schema = self.schema(name)
        if schema is None:
            raise NotFound(f"schema {name!r} not found", key="schema", schema=name)
        return schema

    def table(self, schema: str, name: str) -> TableState | None:
        """The table of that name."""
        found = self.schema(schema)
        return found.table(name) if found else None

    def open_table(self, schema: str, name: str) -> TableState:
        """The same, where it must be there."""
        table = self.open_schema(schema).table(name)
        if table is None:
            raise NotFound(f"table {schema}.{name} not found", key="table", table=f"{schema}.{name}")
        return table

    def with_schema(self, schema: SchemaState) -> Snapshot:
        """With this schema, in place of one of the same name."""
        return replace(self, schemas={**self.schemas, folded(schema.name): schema})

    def without_schema(self, name: str) -> Snapshot:
        """Without the schema of that name."""
        return replace(self, schemas={key: schema for key, schema in self.schemas.items() if key != folded(name)})

    def with_table(self, schema: str, table: TableState) -> Snapshot:
        """With this table, in place of one of the same name."""
        return self.with_schema(self.open_schema(schema).with_table(table))


# --------------------
# The versions of a catalog: one reference to the newest, and a bounded past.
#
# Readers take the reference and never wait. Writers hand in a change, a function from one snapshot to the next; changes
# happen one after the other, each on the newest snapshot.


Change = Callable[[Snapshot], Snapshot]
Clock = Callable[[], dt.datetime]


class Store:
    """Keeps the newest `keep` versions; version n is the state after the n-th change, version 0 is empty."""

    def __init__(self, *, clock: Clock, keep: int) -> None:
        if keep < 1:
            raise InvalidArgument(f"at least one version must be kept, not {keep}")
        self._clock = clock
        self._keep = keep
        self._lock = threading.Lock()
        self._history: tuple[Snapshot, ...] = (Snapshot(0, clock()),)

    @property
    def current(self) -> Snapshot:
        """The newest version."""
        return self._history[-1]

    def commit(self, change: Change) -> Snapshot:
        """Make a change on the newest version; if it raises, nothing happened. No change makes no new version."""
        with self._lock:
            before = self.current
            after = change(before)
            if after is before:
                return before
            # a clock that was set back must not put versions out of order
            moment = max(self._clock(), before.committed_at)
            committed = replace(after, version=before.version + 1, committed_at=moment)
            self._history = (*self._history[-self._keep + 1 :], committed) if self._keep > 1 else (committed,)
            return committed

    def at(self, point: TimePoint) -> Snapshot | None:
        """The version of a moment in the past; None for a time before everything."""
        history = self._history
        if point.unit == "timestamp":
            return _at_time(history, point.timestamp())
        return _numbered(history, point.version())


def _numbered(history: tuple[Snapshot, ...], version: int) -> Snapshot:
    oldest, newest = history[0].version, history[-1].version
    if not oldest <= version <= newest:
        raise NotFound(f"there is no version {version}: versions {oldest} to {newest} are kept")
    return history[version - oldest]


def _at_time(history: tuple[Snapshot, ...], moment: dt.datetime) -> Snapshot | None:
    later = bisect_right(history, moment, key=lambda snapshot: snapshot.committed_at)
    if later:
        return history[later - 1]
    if history[0].version:
        raise NotFound(
            f"what was there at {moment.isoformat()} is no longer kept: the past begins at "
            f"{history[0].committed_at.isoformat()} with version {history[0].version}"
        )
    return None
