"""Changes of definitions: what CREATE, DROP and ALTER do to a snapshot.

A change in a transaction is made twice: on what the transaction sees, and again on what is newest when it commits. The
second time it must find the table it found the first time, or somebody else was faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from skiway.airport.memory.definition import folded
from skiway.airport.memory.snapshot import Snapshot, TableState, change_numbers
from skiway.errors import AlreadyExists, Conflict

__all__ = ["TableChange", "altered", "dropped", "renamed"]

Make = Callable[[Snapshot, TableState, int], Snapshot]


class TableChange:
    """`make` gives the snapshot after the change, from the one before, the table and the number of this change."""

    def __init__(self, schema: str, name: str, make: Make, *, if_exists: bool = False) -> None:
        self._schema = schema
        self._name = name
        self._make = make
        self._if_exists = if_exists
        self._number = next(change_numbers)
        self._found: int | None = None

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot after the change."""
        if self._if_exists and snapshot.table(self._schema, self._name) is None:
            return snapshot
        table = snapshot.open_table(self._schema, self._name)
        if self._found not in (None, table.revision):
            raise Conflict(f"table {self._schema}.{self._name} was altered since this transaction began: run it again")
        self._found = table.revision
        after = self._make(snapshot, table, self._number)
        return after if after is snapshot else replace(after, shape=self._number)


def altered(schema: str, name: str, edit: Callable[[TableState], TableState]) -> TableChange:
    """ALTER TABLE."""

    def make(snapshot: Snapshot, table: TableState, number: int) -> Snapshot:
        after = edit(table)
        return snapshot if after is table else snapshot.with_table(schema, replace(after, revision=number))

    return TableChange(schema, name, make)


def dropped(schema: str, name: str, *, if_exists: bool) -> TableChange:
    """DROP TABLE."""

    def make(snapshot: Snapshot, _: TableState, __: int) -> Snapshot:
        return snapshot.with_schema(snapshot.open_schema(schema).without_table(name))

    return TableChange(schema, name, make, if_exists=if_exists)


def renamed(schema: str, name: str, new_name: str, *, if_exists: bool) -> TableChange:
    """ALTER TABLE … RENAME TO."""

    def make(snapshot: Snapshot, table: TableState, number: int) -> Snapshot:
        tables = snapshot.open_schema(schema)
        if tables.table(new_name) and folded(name) != folded(new_name):
            raise AlreadyExists(f"cannot rename table {name!r}: there is a table {new_name!r} already")
        moved = replace(table, definition=replace(table.definition, name=new_name), revision=number)
        return snapshot.with_schema(tables.without_table(name).with_table(moved))

    return TableChange(schema, name, make, if_exists=if_exists)
