"""What a table is: its columns and the rules its rows keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway.airport.conversion import storable
from skiway.airport.ddl import CreateTable
from skiway.airport.memory.rows import Rows
from skiway.airport.memory.sandbox import Rule, Sandbox
from skiway.airport.scan import IS_ROWID, ROWID, find_rowid_column
from skiway.airport.wire.duckdb_sql import duckdb_type, identifier, text_literal
from skiway.airport.wire.payloads import CheckConstraints, encode
from skiway.errors import AlreadyExists, ConstraintViolation, InvalidArgument, NotFound

__all__ = [
    "ROWID_FIELD",
    "Check",
    "Key",
    "TableDefinition",
    "check_keys",
    "check_rows",
    "default_of",
    "define",
    "folded",
    "new_column",
    "valid_name",
]

ROWID_FIELD: Final = pa.field(ROWID, pa.int64(), metadata={IS_ROWID: b"1"})
_DEFAULT: Final = b"default"


def folded(name: str) -> str:
    """What names are compared by: like DuckDB, letters of ASCII without their case."""
    return name.encode().lower().decode()


def valid_name(name: str, what: str) -> str:
    """`name`, unless it cannot be one."""
    if not name or "\0" in name:
        raise InvalidArgument(f"{name!r} cannot be the name of a {what}: it is empty or holds a NUL")
    return name


@dataclass(frozen=True, slots=True)
class Key:
    """Columns of which no two rows may have the same values, NULLs aside."""

    columns: tuple[str, ...]
    primary: bool = False

    @property
    def kind(self) -> str:
        """How the constraint is called."""
        return "primary key" if self.primary else "unique"


@dataclass(frozen=True, slots=True)
class Check:
    """An SQL expression that is not false for any row, and the columns it names."""

    expression: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class TableDefinition:
    """Columns (with comment and default in their metadata; not nullable is NOT NULL), keys and checks."""

    name: str
    columns: tuple[pa.Field, ...]
    keys: tuple[Key, ...] = ()
    checks: tuple[Check, ...] = ()
    comment: str = ""

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns and the row id, as announced; DuckDB enforces the checks it finds there on its side as well."""
        checks = encode(CheckConstraints([check.expression for check in self.checks]))
        return pa.schema([*self.columns, ROWID_FIELD], {"check_constraints": checks} if self.checks else None)

    @cached_property
    def visible(self) -> pa.Schema:
        """The columns that `SELECT *` shows."""
        return pa.schema(self.columns)

    def position(self, name: str) -> int | None:
        """Where the column of that name is, whatever the case of its letters."""
        wanted = folded(name)
        return next((i for i, field in enumerate(self.columns) if folded(field.name) == wanted), None)

    def index(self, name: str) -> int:
        """The same, where the column must be there."""
        found = self.position(name)
        if found is None:
            shown = ", ".join(repr(field.name) for field in self.columns)
            raise NotFound(f"table {self.name!r} has no column {name!r}; it has {shown}", key="column", column=name)
        return found

    def column(self, name: str) -> pa.Field:
        """The column of that name."""
        return self.columns[self.index(name)]

    def refuse_taken(self, name: str, *, but: str = "") -> None:
        """`AlreadyExists` if there is a column of that name, other than `but`."""
        found = self.position(valid_name(name, "column"))
        if folded(name) == ROWID:
            raise InvalidArgument(f"a column cannot be called {name!r}: that is the name of the row id")
        if found is not None and folded(self.columns[found].name) != folded(but):
            raise AlreadyExists(f"table {self.name!r} already has a column {self.columns[found].name!r}")

    def with_column(self, index: int, field: pa.Field) -> TableDefinition:
        """The same with another column at that place."""
        return replace(self, columns=(*self.columns[:index], field, *self.columns[index + 1 :]))

    def keys_of(self, name: str) -> tuple[Key, ...]:
        """The keys that name the column."""
        return tuple(key for key in self.keys if folded(name) in map(folded, key.columns))

    def checks_of(self, name: str) -> tuple[Check, ...]:
        """The checks that name the column."""
        return tuple(check for check in self.checks if folded(name) in map(folded, check.columns))

    def clauses(self) -> list[str]:
        """The constraints as SQL."""
        keys = [_key_clause(key.columns, primary=key.primary) for key in self.keys]
        return [*keys, *(f"CHECK ({check.expression}\n)" for check in self.checks)]

    def with_rules(self, rules: Iterable[Rule]) -> TableDefinition:
        """The same with the constraints that DuckDB read; columns of the primary key are NOT NULL."""
        rules = list(rules)
        keys = tuple(Key(rule.columns, rule.kind == "PRIMARY KEY") for rule in rules if rule.kind in _KEYS)
        checks = tuple(Check(rule.expression, rule.columns) for rule in rules if rule.kind == "CHECK")
        strict = {folded(name) for key in keys if key.primary for name in key.columns}
        columns = tuple(f.with_nullable(f.nullable and folded(f.name) not in strict) for f in self.columns)
        return replace(self, columns=columns, keys=keys, checks=checks)


_KEYS: Final = ("PRIMARY KEY", "UNIQUE")


def define(create: CreateTable, sandbox: Sandbox) -> TableDefinition:
    """The definition that CREATE TABLE asks for, judged by DuckDB."""
    valid_name(create.name, "table")
    if not len(create.schema):
        raise InvalidArgument(f"table {create.name!r} needs at least one column")
    if find_rowid_column(create.schema) is not None:
        raise InvalidArgument(f"table {create.name!r} may not bring a row id: the catalog gives one to every row")
    definition = TableDefinition(create.name, (), comment=create.comment)
    for field in create.schema:
        definition.refuse_taken(field.name)
        definition = replace(definition, columns=(*definition.columns, new_column(field)))
    for name in create.not_null:
        definition = definition.with_column(definition.index(name), definition.column(name).with_nullable(False))
    clauses = [_key_clause(create.primary_key, primary=True)] if create.primary_key else []
    clauses += [_key_clause(columns) for columns in create.unique]
    clauses += [f"CHECK ({check}\n)" for check in create.checks]
    rules = sandbox.rules(definition.columns, clauses, defaults=_defaults(definition.columns))
    return definition.with_rules(rules)


def new_column(field: pa.Field) -> pa.Field:
    """A column as it is kept; `InvalidArgument` if DuckDB could not take it."""
    kept = storable(field)
    duckdb_type(kept)
    return kept


def default_of(field: pa.Field) -> str | None:
    """The SQL of a column's default."""
    text: Any = (field.metadata or {}).get(_DEFAULT)
    return text.decode() if text else None


def _defaults(columns: Iterable[pa.Field]) -> list[str]:
    return [text for text in map(default_of, columns) if text is not None]


def _key_clause(columns: Iterable[str], *, primary: bool = False) -> str:
    return f"{'PRIMARY KEY' if primary else 'UNIQUE'} ({', '.join(map(identifier, columns))})"


# --------------------
# Rules that rows keep: NOT NULL and CHECK for each row, UNIQUE and PRIMARY KEY for all of them together.


def check_rows(definition: TableDefinition, rows: pa.RecordBatch, sandbox: Sandbox) -> None:
    """Refuse rows that break NOT NULL or a CHECK; `rows` has all visible columns, and may have more."""
    for index, field in enumerate(definition.columns):
        if not field.nullable and pc.any(rows.column(index).is_null(), min_count=0).as_py():
            raise ConstraintViolation(
                f"NOT NULL constraint failed: {definition.name}.{field.name}",
                key="not_null",
                table=definition.name,
                column=field.name,
            )
    if definition.checks and rows.num_rows:
        visible = pa.Table.from_batches([rows]).select(definition.visible.names)
        for check in definition.checks:
            _check(definition, check, visible, sandbox)


def _check(definition: TableDefinition, check: Check, rows: pa.Table, sandbox: Sandbox) -> None:
    failed = f"CHECK constraint failed on table {definition.name} with expression CHECK({check.expression})"
    try:
        broken = sandbox.is_broken(rows, check.expression)
    except InvalidArgument as error:
        raise ConstraintViolation(f"{failed} ({error.message})", key="check", table=definition.name) from error
    if broken:
        raise ConstraintViolation(failed, key="check", table=definition.name, expression=check.expression)


def check_keys(
    definition: TableDefinition, rows: Rows, sandbox: Sandbox, *, written: Iterable[pa.RecordBatch] | None = None
) -> None:
    """Refuse rows of which two have the same key; `written` are those of them that are new, None for all."""
    batches = None if written is None else list(written)
    for key in definition.keys:
        new = None if batches is None else pa.Table.from_batches(batches, rows.schema).select(list(key.columns))
        duplicate = _duplicate(key, rows.table(key.columns), new, sandbox)
        if duplicate is not None:
            raise ConstraintViolation(
                f'Duplicate key "{duplicate}" violates {key.kind} constraint on table {definition.name} '
                f"({', '.join(key.columns)})",
                key=key.kind.replace(" ", "_"),
                table=definition.name,
                columns=", ".join(key.columns),
            )


def _duplicate(key: Key, rows: pa.Table, new: pa.Table | None, sandbox: Sandbox) -> str | None:
    """A key that occurs twice, as text. DuckDB compares, so that equal means here what it means to the client."""
    names = ", ".join(map(identifier, key.columns))
    shown = " || ', ' || ".join(f"{text_literal(name + ': ')} || {identifier(name)}::VARCHAR" for name in key.columns)
    present = " AND ".join(f"{identifier(name)} IS NOT NULL" for name in key.columns)
    touched = "" if new is None else f"SEMI JOIN new USING ({names})"
    sql = (
        f"SELECT {shown} FROM (SELECT {names} FROM kept {touched} WHERE {present})"  # noqa: S608  (quoted above)
        f" GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
    )
    found = sandbox.query(sql, kept=rows, **({} if new is None else {"new": new}))
    return str(found.column(0)[0].as_py()) if found.num_rows else None
