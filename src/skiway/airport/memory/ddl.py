"""DROP and ALTER as changes of snapshots.

Paths lead to fields of nested structs. They consist of field names; the step into a list is `element`, the steps into a map
are `key` and `value`, as in DuckDB.

In a transaction, a change is applied twice: to the snapshot that the transaction sees, and again to the newest snapshot
when it commits. The second time it must find the same definition of the table, otherwise it raises `Conflict`.

The methods for ALTER TABLE take a table state and return the new one, or raise. With a flag such as `if_exists` they may
return the same state, and then no new version is created.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.catalog import DynamicTable
from skiway.airport.conversion import drop_nulls, list_offsets, scatter_valid
from skiway.airport.memory.definitions import (
    Sandbox,
    TableDefinition,
    check_keys,
    check_rows,
    default_expression,
    fold_case,
    new_column,
    valid_name,
)
from skiway.airport.memory.statements import fill_column
from skiway.airport.memory.transactions import Database, Snapshot, TableState, change_numbers
from skiway.airport.wire.duckdb_sql import identifier, type_metadata
from skiway.errors import AlreadyExists, Conflict, InvalidArgument, NotFound, PreconditionFailed

Edit = Callable[[pa.StructArray], pa.StructArray]


def edit_struct(array: pa.Array, path: Sequence[str], edit: Edit) -> pa.Array:
    """Apply `edit` to the struct at `path`. NULLs stay NULL."""
    if not path and not pa.types.is_struct(array.type):
        raise InvalidArgument(f"only structs have fields, not {array.type}")
    if array.null_count:
        return scatter_valid(edit_struct(drop_nulls(array), path, edit), array.is_valid())
    if not path:
        return edit(array)
    if pa.types.is_struct(array.type):
        return _in_struct(array, path, edit)
    if pa.types.is_map(array.type):
        return _in_map(array, path, edit)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _in_list(array, path, edit)
    raise InvalidArgument(f"{array.type} has no {path[0]!r}")


def adding_field(field: pa.Field, fill: Callable[[int], pa.Array]) -> Edit:
    """An edit that appends a field. `fill(n)` returns n values for it."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        valid_name(field.name, "struct field")
        if _position(array.type, field.name) is not None:
            raise AlreadyExists(f"the struct already has a field {field.name!r}")
        children = [*array.flatten(), fill(len(array))]
        return pa.StructArray.from_arrays(children, fields=[*array.type, field.with_nullable(True)])

    return edit


def renaming_field(name: str, new_name: str) -> Edit:
    """An edit that renames a field."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        index = _index(array.type, name)
        existing = _position(array.type, valid_name(new_name, "struct field"))
        if existing not in (None, index):
            raise AlreadyExists(f"the struct already has a field {new_name!r}")
        fields = [field.with_name(new_name) if i == index else field for i, field in enumerate(array.type)]
        return pa.StructArray.from_arrays(array.flatten(), fields=fields)

    return edit


def removing_field(name: str) -> Edit:
    """An edit that removes a field."""

    def edit(array: pa.StructArray) -> pa.StructArray:
        index = _index(array.type, name)
        kept = [i for i in range(array.type.num_fields) if i != index]
        if not kept:
            raise PreconditionFailed(f"{name!r} is the only field of its struct: drop the column instead")
        children = array.flatten()
        return pa.StructArray.from_arrays([children[i] for i in kept], fields=[array.type.field(i) for i in kept])

    return edit


def has_nested_field(data_type: pa.DataType, path: Sequence[str]) -> bool:
    """Whether `path` leads to a field of a struct."""
    exists = False

    def look(array: pa.StructArray) -> pa.StructArray:
        nonlocal exists
        exists = _position(array.type, path[-1]) is not None
        return array

    edit_struct(pa.nulls(0, data_type), path[:-1], look)
    return exists


def _position(struct: pa.StructType, name: str) -> int | None:
    return next((i for i, field in enumerate(struct) if fold_case(field.name) == fold_case(name)), None)


def _index(struct: pa.StructType, name: str) -> int:
    index = _position(struct, name)
    if index is None:
        raise NotFound(f"the struct has no field {name!r}; it has {', '.join(repr(field.name) for field in struct)}")
    return index


def _in_struct(array: pa.StructArray, path: Sequence[str], edit: Edit) -> pa.StructArray:
    index = _index(array.type, path[0])
    children, fields = array.flatten(), list(array.type)
    children[index] = edit_struct(children[index], path[1:], edit)
    fields[index] = fields[index].with_type(children[index].type)
    return pa.StructArray.from_arrays(children, fields=fields)


def _in_list(array: pa.Array, path: Sequence[str], edit: Edit) -> pa.Array:
    _expect(array.type, path[0], "element")
    values = edit_struct(array.flatten(), path[1:], edit)
    field = array.type.value_field.with_type(values.type)
    if pa.types.is_large_list(array.type):
        return pa.LargeListArray.from_arrays(
            list_offsets(pc.list_value_length(array)), values, type=pa.large_list(field)
        )
    return pa.ListArray.from_arrays(list_offsets(pc.list_value_length(array)), values, type=pa.list_(field))


def _in_map(array: pa.MapArray, path: Sequence[str], edit: Edit) -> pa.MapArray:
    _expect(array.type, path[0], "key", "value")
    offsets = array.offsets
    first, count = offsets[0].as_py(), offsets[-1].as_py() - offsets[0].as_py()
    keys, items = array.keys.slice(first, count), array.items.slice(first, count)
    if fold_case(path[0]) == "key":
        keys = edit_struct(keys, path[1:], edit)
    else:
        items = edit_struct(items, path[1:], edit)
    map_type = pa.map_(array.type.key_field.with_type(keys.type), array.type.item_field.with_type(items.type))
    return pa.MapArray.from_arrays(pc.subtract(offsets, offsets[0]), keys, items, type=map_type)


def _expect(data_type: pa.DataType, step: str, *steps: str) -> None:
    if fold_case(step) not in steps:
        raise NotFound(f"{data_type} has {' or '.join(map(repr, steps))}, not {step!r}")


Make = Callable[[Snapshot, TableState, int], Snapshot]


class TableChange:
    """A change of one table. `make` returns the new snapshot for the old one, the table and the number of this change."""

    def __init__(self, schema: str, name: str, make: Make, *, if_exists: bool = False) -> None:
        self._schema = schema
        self._name = name
        self._make = make
        self._if_exists = if_exists
        self._number = next(change_numbers)
        self._found: int | None = None

    def __call__(self, snapshot: Snapshot) -> Snapshot:
        """Apply the change to `snapshot`."""
        if self._if_exists and snapshot.table(self._schema, self._name) is None:
            return snapshot
        table = snapshot.open_table(self._schema, self._name)
        if self._found not in (None, table.revision):
            raise Conflict(
                f"table {self._schema}.{self._name} was altered since this transaction began: retry the transaction"
            )
        self._found = table.revision
        after = self._make(snapshot, table, self._number)
        return after if after is snapshot else replace(after, shape=self._number)


def drop_table(schema: str, name: str, *, if_exists: bool) -> TableChange:
    """The change for DROP TABLE."""

    def make(snapshot: Snapshot, _: TableState, __: int) -> Snapshot:
        return snapshot.with_schema(snapshot.open_schema(schema).without_table(name))

    return TableChange(schema, name, make, if_exists=if_exists)


def rename_table(schema: str, name: str, new_name: str, *, if_exists: bool) -> TableChange:
    """The change for ALTER TABLE … RENAME TO."""

    def make(snapshot: Snapshot, table: TableState, number: int) -> Snapshot:
        tables = snapshot.open_schema(schema)
        if tables.table(new_name) and fold_case(name) != fold_case(new_name):
            raise AlreadyExists(f"cannot rename table {name!r}: table {new_name!r} already exists")
        moved = replace(table, definition=replace(table.definition, name=new_name), revision=number)
        return snapshot.with_schema(tables.without_table(name).with_table(moved))

    return TableChange(schema, name, make, if_exists=if_exists)


A = TypeVar("A", bound="AlterableTable")
P = ParamSpec("P")


def _altering(edit: Callable[Concatenate[A, TableState, P], TableState]) -> Callable[Concatenate[A, P], None]:
    """A method for ALTER TABLE, made from one that takes the state of the table and returns the new one, or raises."""

    def alter(self: A, /, *args: P.args, **kwargs: P.kwargs) -> None:
        schema = self._schema_name

        def make(snapshot: Snapshot, table: TableState, number: int) -> Snapshot:
            after = edit(self, table, *args, **kwargs)
            return snapshot if after is table else snapshot.with_table(schema, replace(after, revision=number))

        self._database.session().apply(TableChange(schema, self.name, make))

    alter.__doc__ = edit.__doc__
    return alter


class AlterableTable(DynamicTable):
    """A table that supports ALTER TABLE."""

    name: str
    _database: Database
    _schema_name: str

    @property
    def _sandbox(self) -> Sandbox:
        return self._database.sandbox

    @_altering
    def add_column(self, table: TableState, field: pa.Field, *, if_not_exists: bool = False) -> TableState:
        """Append a column. Existing rows get the default, or NULL."""
        definition = table.definition
        if if_not_exists and definition.position(field.name) is not None:
            return table
        definition.check_new_name(field.name)
        column = new_column(field)
        _check_default(definition, column, self._sandbox)
        after = replace(definition, columns=(*definition.columns, column))

        def fill(batch: pa.RecordBatch) -> list[pa.Array]:
            return [*batch.columns[:-1], fill_column(column, batch.num_rows, self._sandbox)]

        return _validated(table.with_definition(after, table.rows.rewritten(after.schema, fill)), self._sandbox)

    @_altering
    def remove_column(
        self, table: TableState, name: str, *, if_exists: bool = False, cascade: bool = False
    ) -> TableState:
        """Drop a column. With `cascade`, drop the keys and checks that refer to it too."""
        definition = table.definition
        if if_exists and definition.position(name) is None:
            return table
        index = definition.index(name)
        keys, checks = definition.keys_on(name), definition.checks_on(name)
        if not cascade:
            _reject_constrained(definition, name, "drop")
        if len(definition.columns) == 1:
            raise PreconditionFailed(
                f"{name!r} is the only column of table {definition.name!r}: drop the table instead"
            )
        after = replace(
            definition,
            columns=tuple(field for i, field in enumerate(definition.columns) if i != index),
            keys=tuple(key for key in definition.keys if key not in keys),
            checks=tuple(check for check in definition.checks if check not in checks),
        )
        kept = [i for i in range(len(definition.columns)) if i != index]
        return table.with_definition(
            after, table.rows.rewritten(after.schema, lambda batch: [batch.column(i) for i in kept])
        )

    @_altering
    def rename_column(self, table: TableState, name: str, new_name: str) -> TableState:
        """Rename a column, also in keys and checks."""
        definition = table.definition
        index = definition.index(name)
        old = definition.columns[index].name
        definition.check_new_name(new_name, but=old)
        after = definition.with_column(index, definition.columns[index].with_name(new_name))
        if definition.keys or definition.checks:
            constraints = self._sandbox.parse_constraints(
                definition.columns, definition.clauses(), rename=(old, new_name)
            )
            after = after.with_constraints(constraints)
        return table.with_definition(after)

    @_altering
    def change_column_type(self, table: TableState, field: pa.Field, expression: str) -> TableState:
        """Change the type of a column. The expression computes the new value for each row."""
        definition = table.definition
        index = definition.index(field.name)
        _reject_constrained(definition, field.name, "change the type of")
        old = definition.columns[index]
        column = new_column(old.with_type(field.type).with_metadata(_merged_metadata(old, field)))
        after = definition.with_column(index, column)
        _check_default(after, column, self._sandbox)
        sql = expression or identifier(old.name)

        def convert(batch: pa.RecordBatch) -> list[pa.Array]:
            rows = pa.Table.from_batches([batch]).select(definition.visible.names)
            values = self._sandbox.evaluate(rows, sql, column)
            return [*batch.columns[:index], values, *batch.columns[index + 1 : -1]]

        if not len(table.rows):  # check the expression although there is nothing to convert
            self._sandbox.evaluate(table.rows.table(definition.visible.names), sql, column)
        return _validated(table.with_definition(after, table.rows.rewritten(after.schema, convert)), self._sandbox)

    @_altering
    def set_not_null(self, table: TableState, name: str) -> TableState:
        """Add a NOT NULL constraint. The column must not contain NULLs."""
        return _validated(_with_nullable(table, name, nullable=False), self._sandbox)

    @_altering
    def drop_not_null(self, table: TableState, name: str) -> TableState:
        """Drop a NOT NULL constraint. Columns of the primary key keep it."""
        definition = table.definition
        if any(key.kind == "PRIMARY KEY" for key in definition.keys_on(name)):
            raise PreconditionFailed(
                f"column {name!r} is part of the primary key of {definition.name!r} and cannot be nullable"
            )
        return _with_nullable(table, name, nullable=True)

    @_altering
    def set_default(self, table: TableState, name: str, expression: str) -> TableState:
        """Set the SQL default of a column; "" removes it."""
        definition = table.definition
        column = definition.column(name)
        metadata = {key: value for key, value in (column.metadata or {}).items() if key != b"default"}
        if expression:
            metadata[b"default"] = expression.encode()
        changed = column.with_metadata(metadata)
        _check_default(definition, changed, self._sandbox)
        return table.with_definition(definition.with_column(definition.index(name), changed))

    @_altering
    def add_constraint(self, table: TableState, constraint: str) -> TableState:
        """Add a constraint. Existing rows must satisfy it."""
        definition = table.definition
        constraints = self._sandbox.parse_constraints(definition.columns, [*definition.clauses(), constraint])
        if constraints[-1].kind not in ("CHECK", "UNIQUE", "PRIMARY KEY"):
            raise InvalidArgument(
                f"{constraints[-1].kind} constraints are not supported: use CHECK, UNIQUE or PRIMARY KEY"
            )
        return _validated(table.with_definition(definition.with_constraints(constraints)), self._sandbox)

    @_altering
    def add_field(
        self, table: TableState, path: Sequence[str], field: pa.Field, *, if_not_exists: bool = False
    ) -> TableState:
        """Append a field to the struct at `path`. Existing values get the default, or NULL."""
        if if_not_exists and has_nested_field(table.definition.column(_first(path)).type, [*path[1:], field.name]):
            return table
        column = new_column(field)
        _check_default(table.definition, column, self._sandbox)
        fill_column(column, 1, self._sandbox)  # DuckDB checks the type of this default, unlike that of a column
        return _edit_column(table, path, adding_field(column, lambda count: fill_column(column, count, self._sandbox)))

    @_altering
    def rename_field(self, table: TableState, path: Sequence[str], new_name: str) -> TableState:
        """Rename the struct field at `path`."""
        _reject_in_checks(table.definition, path, "rename")
        return _edit_column(table, path[:-1], renaming_field(path[-1], new_name))

    @_altering
    def remove_field(
        self, table: TableState, path: Sequence[str], *, if_exists: bool = False, cascade: bool = False
    ) -> TableState:
        """Drop the struct field at `path`. With `cascade`, drop the checks that refer to its column too."""
        definition = table.definition
        if if_exists and not _has_field(definition, path):
            return table
        column = definition.column(_first(path)).name
        if not cascade:
            _reject_in_checks(definition, path, "drop")
        dropped = definition.checks_on(column)
        kept = replace(definition, checks=tuple(check for check in definition.checks if check not in dropped))
        return _edit_column(replace(table, definition=kept), path[:-1], removing_field(path[-1]))


def _merged_metadata(old: pa.Field, new: pa.Field) -> dict[bytes, bytes]:
    """The metadata of the old column, with the type metadata of the new one."""
    replaced = type_metadata(old)
    return {key: value for key, value in (old.metadata or {}).items() if key not in replaced} | type_metadata(new)


def _with_nullable(table: TableState, name: str, *, nullable: bool) -> TableState:
    definition = table.definition
    column = definition.column(name)
    if column.nullable == nullable:
        return table
    return table.with_definition(definition.with_column(definition.index(name), column.with_nullable(nullable)))


def _has_field(definition: TableDefinition, path: Sequence[str]) -> bool:
    """Whether `path` leads to a field; False if any part of it is missing."""
    try:
        return has_nested_field(definition.column(_first(path)).type, path[1:])
    except NotFound:
        return False


def _edit_column(table: TableState, path: Sequence[str], edit: Edit) -> TableState:
    index = table.definition.index(_first(path))
    column = table.definition.columns[index]
    new_type = edit_struct(pa.nulls(0, column.type), path[1:], edit).type
    after = table.definition.with_column(index, column.with_type(new_type))

    def convert(batch: pa.RecordBatch) -> list[pa.Array]:
        columns: list[pa.Array] = batch.columns[:-1]
        columns[index] = edit_struct(columns[index], path[1:], edit)
        return columns

    return table.with_definition(after, table.rows.rewritten(after.schema, convert))


def _first(path: Sequence[str]) -> str:
    if not path:
        raise InvalidArgument("the path to a struct field is empty: it must start with the name of a column")
    return path[0]


def _check_default(definition: TableDefinition, column: pa.Field, sandbox: Sandbox) -> None:
    """Check that the default is an expression without columns. As in DuckDB, it is evaluated only when it is used."""
    default = default_expression(column)
    if default is not None:
        sandbox.parse_constraints(definition.columns, [], defaults=[default])


def _reject_constrained(definition: TableDefinition, name: str, what: str) -> None:
    """Raise `PreconditionFailed` if a key or a check refers to the column."""
    constraints = [f"a {key.label} constraint" for key in definition.keys_on(name)]
    constraints += [f"the constraint {check.label}" for check in definition.checks_on(name)]
    if constraints:
        raise PreconditionFailed(
            f"cannot {what} column {name!r} of table {definition.name!r}: {constraints[0]} depends on it",
            key="column.bound",
        )


def _reject_in_checks(definition: TableDefinition, path: Sequence[str], what: str) -> None:
    for check in definition.checks_on(_first(path)):
        raise PreconditionFailed(
            f"cannot {what} {'.'.join(path)} of table {definition.name!r}: "
            f"the constraint {check.label} depends on its column",
            key="column.bound",
        )


def _validated(table: TableState, sandbox: Sandbox) -> TableState:
    """Check that all rows satisfy all constraints, and return `table`."""
    for batch in table.rows.batches():
        check_rows(table.definition, batch, sandbox)
    check_keys(table.definition, table.rows, sandbox)
    return table
