"""Changes of definitions: what CREATE, DROP and ALTER do to a snapshot.

A change in a transaction is made twice: on what the transaction sees, and again on what is newest when it commits. The
second time it must find the table it found the first time, or somebody else was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from skiway.airport.memory import nested
from skiway.airport.memory.definitions import TableDefinition, check_keys, check_rows, default_of, folded, new_column
from skiway.airport.memory.sandbox import Sandbox
from skiway.airport.memory.snapshots import Snapshot, TableState, change_numbers
from skiway.airport.memory.statements import filled
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, PreconditionFailed

__all__ = [
    "TableChange",
    "add_column",
    "add_constraint",
    "add_field",
    "altered",
    "change_column_type",
    "drop_not_null",
    "dropped",
    "remove_column",
    "remove_field",
    "rename_column",
    "rename_field",
    "renamed",
    "set_default",
    "set_not_null",
]

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


# --------------------
# ALTER TABLE: from a table to the table after it. Each function leaves the old one alone, or raises.
#
# Where a flag forgives, the very same table is returned, and no new version comes of it.


_OF_THE_TYPE: Final = b"ARROW:extension:"


# -- columns ----------------------------------------------------------------------------------------------------------


def add_column(table: TableState, field: pa.Field, sandbox: Sandbox, *, if_not_exists: bool = False) -> TableState:
    """A new last column; rows there are get the default, or NULL."""
    definition = table.definition
    if if_not_exists and definition.position(field.name) is not None:
        return table
    definition.refuse_taken(field.name)
    column = new_column(field)
    _judge_default(definition, column, sandbox)
    after = replace(definition, columns=(*definition.columns, column))

    def fill(batch: pa.RecordBatch) -> list[pa.Array]:
        return [*batch.columns[:-1], filled(column, batch.num_rows, sandbox)]

    return _checked(table.defined(after, table.rows.rewritten(after.schema, fill)), sandbox)


def remove_column(table: TableState, name: str, *, if_exists: bool = False, cascade: bool = False) -> TableState:
    """Without a column; `cascade` takes along the keys and checks that name it."""
    definition = table.definition
    if if_exists and definition.position(name) is None:
        return table
    index = definition.index(name)
    keys, checks = definition.keys_of(name), definition.checks_of(name)
    if not cascade:
        _refuse_bound(definition, name, "drop")
    if len(definition.columns) == 1:
        raise PreconditionFailed(f"{name!r} is the only column of table {definition.name!r}: drop the table instead")
    after = replace(
        definition,
        columns=tuple(field for i, field in enumerate(definition.columns) if i != index),
        keys=tuple(key for key in definition.keys if key not in keys),
        checks=tuple(check for check in definition.checks if check not in checks),
    )
    kept = [i for i in range(len(definition.columns)) if i != index]
    return table.defined(after, table.rows.rewritten(after.schema, lambda batch: [batch.column(i) for i in kept]))


def rename_column(table: TableState, name: str, new_name: str, sandbox: Sandbox) -> TableState:
    """A column under another name, in keys and checks as well."""
    definition = table.definition
    index = definition.index(name)
    old = definition.columns[index].name
    definition.refuse_taken(new_name, but=old)
    after = definition.with_column(index, definition.columns[index].with_name(new_name))
    if definition.keys or definition.checks:
        rules = sandbox.rules(definition.columns, definition.clauses(), rename=(old, new_name))
        after = after.with_rules(rules)
    return table.defined(after)


def change_column_type(table: TableState, field: pa.Field, expression: str, sandbox: Sandbox) -> TableState:
    """A column of another type; its values are what the expression makes of each row."""
    definition = table.definition
    index = definition.index(field.name)
    _refuse_bound(definition, field.name, "change the type of")
    old = definition.columns[index]
    column = new_column(old.with_type(field.type).with_metadata(_carried_over(old, field)))
    after = definition.with_column(index, column)
    _judge_default(after, column, sandbox)
    sql = expression or identifier(old.name)

    def convert(batch: pa.RecordBatch) -> list[pa.Array]:
        rows = pa.Table.from_batches([batch]).select(definition.visible.names)
        values = sandbox.evaluate(rows, sql, column)
        return [*batch.columns[:index], values, *batch.columns[index + 1 : -1]]

    if not len(table.rows):  # nothing to convert, but the expression must be one all the same
        sandbox.evaluate(table.rows.table(definition.visible.names), sql, column)
    return _checked(table.defined(after, table.rows.rewritten(after.schema, convert)), sandbox)


def _carried_over(old: pa.Field, new: pa.Field) -> dict[bytes, bytes]:
    """What the metadata says of the column stays, what it says of the type is the new type's."""
    kept = {key: value for key, value in (old.metadata or {}).items() if not key.startswith(_OF_THE_TYPE)}
    return kept | {key: value for key, value in (new.metadata or {}).items() if key.startswith(_OF_THE_TYPE)}


# -- rules ------------------------------------------------------------------------------------------------------------


def set_not_null(table: TableState, name: str, sandbox: Sandbox) -> TableState:
    """NULLs are refused from now on, and there must be none."""
    return _checked(_with_nullable(table, name, nullable=False), sandbox)


def drop_not_null(table: TableState, name: str) -> TableState:
    """NULLs are welcome, except in a primary key."""
    definition = table.definition
    if any(key.primary for key in definition.keys_of(name)):
        raise PreconditionFailed(
            f"column {name!r} is part of the primary key of {definition.name!r}, which has no NULLs"
        )
    return _with_nullable(table, name, nullable=True)


def _with_nullable(table: TableState, name: str, *, nullable: bool) -> TableState:
    definition = table.definition
    column = definition.column(name)
    if column.nullable == nullable:
        return table
    return table.defined(definition.with_column(definition.index(name), column.with_nullable(nullable)))


def set_default(table: TableState, name: str, expression: str, sandbox: Sandbox) -> TableState:
    """The SQL for values that INSERT leaves out; "" for none."""
    definition = table.definition
    column = definition.column(name)
    metadata = {key: value for key, value in (column.metadata or {}).items() if key != b"default"}
    if expression:
        metadata[b"default"] = expression.encode()
    changed = column.with_metadata(metadata)
    _judge_default(definition, changed, sandbox)
    return table.defined(definition.with_column(definition.index(name), changed))


def add_constraint(table: TableState, constraint: str, sandbox: Sandbox) -> TableState:
    """One more rule, which the rows there are must keep already."""
    definition = table.definition
    rules = sandbox.rules(definition.columns, [*definition.clauses(), constraint])
    if rules[-1].kind not in ("CHECK", "UNIQUE", "PRIMARY KEY"):
        raise InvalidArgument(f"a {rules[-1].kind} constraint is not kept here: use CHECK, UNIQUE or PRIMARY KEY")
    return _checked(table.defined(definition.with_rules(rules)), sandbox)


# -- members of structs -----------------------------------------------------------------------------------------------


def add_field(
    table: TableState, path: Sequence[str], field: pa.Field, sandbox: Sandbox, *, if_not_exists: bool = False
) -> TableState:
    """A new last member of the struct at `path`, with its default or NULL in the values there are."""
    if if_not_exists and nested.has_member(table.definition.column(_first(path)).type, [*path[1:], field.name]):
        return table
    member = new_column(field)
    _judge_default(table.definition, member, sandbox)
    return _edited(table, path, nested.added(member, lambda count: filled(member, count, sandbox)))


def rename_field(table: TableState, path: Sequence[str], new_name: str) -> TableState:
    """The struct member at `path` under another name."""
    _refuse_checked(table.definition, path, "rename")
    return _edited(table, path[:-1], nested.renamed(path[-1], new_name))


def remove_field(
    table: TableState, path: Sequence[str], *, if_exists: bool = False, cascade: bool = False
) -> TableState:
    """Without the struct member at `path`; `cascade` takes along the checks that name its column."""
    definition = table.definition
    column = definition.column(_first(path)).name
    if if_exists and not nested.has_member(definition.column(column).type, path[1:]):
        return table
    if not cascade:
        _refuse_checked(definition, path, "drop")
    dropped = definition.checks_of(column)
    kept = replace(definition, checks=tuple(check for check in definition.checks if check not in dropped))
    return _edited(replace(table, definition=kept), path[:-1], nested.removed(path[-1]))


def _edited(table: TableState, path: Sequence[str], edit: nested.Edit) -> TableState:
    index = table.definition.index(_first(path))
    column = table.definition.columns[index]
    new_type = nested.edited(pa.nulls(0, column.type), path[1:], edit).type
    after = table.definition.with_column(index, column.with_type(new_type))

    def convert(batch: pa.RecordBatch) -> list[pa.Array]:
        columns: list[pa.Array] = batch.columns[:-1]
        columns[index] = nested.edited(columns[index], path[1:], edit)
        return columns

    return table.defined(after, table.rows.rewritten(after.schema, convert))


def _first(path: Sequence[str]) -> str:
    if not path:
        raise InvalidArgument("the path to a struct member is empty: it begins with the name of a column")
    return path[0]


# -- judging ----------------------------------------------------------------------------------------------------------


def _judge_default(definition: TableDefinition, column: pa.Field, sandbox: Sandbox) -> None:
    """A default must be an expression without columns, and have the column's type."""
    default = default_of(column)
    if default is not None:
        sandbox.rules(definition.columns, [], defaults=[default])
        filled(column, 1, sandbox)


def _refuse_bound(definition: TableDefinition, name: str, what: str) -> None:
    """`PreconditionFailed` where a key or a check names the column."""
    rules = [f"a {key.kind} constraint" for key in definition.keys_of(name)]
    rules += [f"the constraint CHECK({check.expression})" for check in definition.checks_of(name)]
    if rules:
        raise PreconditionFailed(
            f"cannot {what} column {name!r} of table {definition.name!r}: {rules[0]} depends on it", key="column.bound"
        )


def _refuse_checked(definition: TableDefinition, path: Sequence[str], what: str) -> None:
    for check in definition.checks_of(_first(path)):
        raise PreconditionFailed(
            f"cannot {what} {'.'.join(path)} of table {definition.name!r}: "
            f"the constraint CHECK({check.expression}) depends on its column",
            key="column.bound",
        )


def _checked(table: TableState, sandbox: Sandbox) -> TableState:
    """`table`, all rows of which keep all rules."""
    for batch in table.rows.batches():
        check_rows(table.definition, batch, sandbox)
    check_keys(table.definition, table.rows, sandbox)
    return table
