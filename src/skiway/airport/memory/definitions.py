"""Definitions of tables: columns, keys and checks. DuckDB evaluates the SQL in them, in a sandbox.

The SQL is untrusted, so it runs in the worker processes of `skiway.sandbox`. DuckDB also parses constraints there: it tells
which columns a CHECK uses, and whether a clause is a valid constraint. Our own SQL over rows runs in this process.

NOT NULL and CHECK constrain single rows; UNIQUE and PRIMARY KEY constrain all rows together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway import sandbox as sandboxes
from skiway.airport.catalog import CreateTable
from skiway.airport.conversion import storable, to_column
from skiway.airport.memory.rows import Rows
from skiway.airport.tables import IS_ROWID, ROWID, find_rowid_column
from skiway.airport.wire.duckdb_sql import duckdb_type, identifier, text_literal
from skiway.airport.wire.protocol import CheckConstraints, encode
from skiway.errors import AlreadyExists, ConstraintViolation, InvalidArgument, NotFound
from skiway.foundation import extras

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class Constraint:
    """A PRIMARY KEY, UNIQUE or CHECK constraint, and the columns it uses.

    Only a CHECK has an `expression`, in SQL, which must not be false for any row.
    """

    kind: str
    columns: tuple[str, ...]
    expression: str = ""

    @property
    def label(self) -> str:
        """The constraint in messages."""
        return f"CHECK({self.expression})" if self.kind == "CHECK" else self.kind.lower()

    @property
    def clause(self) -> str:
        """The constraint in SQL."""
        inside = f"{self.expression}\n" if self.kind == "CHECK" else ", ".join(map(identifier, self.columns))
        return f"{self.kind} ({inside})"


class Sandbox:
    """Evaluates SQL expressions over Arrow data. It is thread-safe."""

    def __init__(self, *, memory_limit: str = "1GB", timeout_s: float = 60.0) -> None:
        extras.require("duckdb", extra="memory", purpose="the in-memory database")
        self._foreign = sandboxes.Sandbox(memory_limit=memory_limit, timeout_s=timeout_s)

    def evaluate(self, rows: pa.Table, expression: str, field: pa.Field) -> pa.Array:
        """Evaluate an expression for each row and convert the values to the type of `field`."""
        cast = f"CAST(({expression}\n) AS {self._types([field])[0]})"
        return to_column(self._foreign.select(rows, cast, of=[expression]).combine_chunks(), field)

    def is_violated(self, rows: pa.Table, check: str) -> bool:
        """Whether a row violates a CHECK. As in DuckDB, NULL passes, and numbers other than zero are true."""
        truth = self._foreign.select(rows, f"CAST(({check}\n) AS INTEGER)")
        return bool(pc.any(pc.equal(truth, 0), min_count=0).as_py())

    def query(self, sql: str, **tables: pa.Table) -> pa.Table:
        """Run trusted SQL over `tables`."""
        with self._use() as cursor:
            for name, rows in tables.items():
                cursor.register(name, rows)
            return cursor.sql(sql).to_arrow_table()

    def parse_constraints(
        self,
        columns: Sequence[pa.Field],
        clauses: Sequence[str],
        *,
        defaults: Sequence[str] = (),
        rename: tuple[str, str] | None = None,
    ) -> list[Constraint]:
        """Parse the constraint clauses of a table with DuckDB, optionally after renaming a column.

        `defaults` are expressions that must be valid as defaults of the table's columns.
        """
        if not clauses and not defaults:
            return []
        typed = zip(columns, self._types(columns), strict=True)
        parts = [f"{identifier(field.name)} {type_name}" for field, type_name in typed]
        parts += [f"{identifier(f' default {i}')} VARCHAR DEFAULT ({text}\n)" for i, text in enumerate(defaults)]
        statements = [f"CREATE TEMP TABLE probe ({', '.join([*parts, *clauses])})"]
        if rename:
            statements.append(f"ALTER TABLE probe RENAME COLUMN {identifier(rename[0])} TO {identifier(rename[1])}")
        statements.append("SELECT count(*) AS columns FROM duckdb_columns() WHERE table_name = 'probe'")
        statements.append(
            "SELECT constraint_type AS kind, constraint_column_names AS names, expression FROM duckdb_constraints()"
            " WHERE table_name = 'probe' AND constraint_type <> 'NOT NULL' ORDER BY constraint_index"
        )
        *_, counted, parsed = self._foreign.run(statements, expressions=defaults)
        if counted["columns"].to_pylist() != [len(parts)] or len(parsed) != len(clauses):
            raise InvalidArgument(
                f"{'; '.join(map(str.strip, clauses))}: each must be one constraint, such as CHECK (a < b) or UNIQUE (a, b)"
            )
        return [Constraint(row["kind"], tuple(row["names"]), row["expression"] or "") for row in parsed.to_pylist()]

    def _types(self, fields: Sequence[pa.Field]) -> list[str]:
        """DuckDB's names of the types."""
        schema = pa.schema([field.with_name(f"c{i}").with_nullable(True) for i, field in enumerate(fields)])
        with self._use() as cursor:
            cursor.register("typed", pa.table([pa.nulls(0, field.type) for field in schema], schema=schema))
            return [str(row[1]) for row in cursor.execute("DESCRIBE typed").fetchall()]

    @contextmanager
    def _use(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A new cursor for our own SQL. DuckDB's errors are converted to ours."""
        import duckdb

        with _lock:
            cursor = _database().cursor()
        try:
            yield cursor
        except duckdb.Error as error:
            raise InvalidArgument(str(error).splitlines()[0]) from error
        finally:
            cursor.close()


_lock = threading.Lock()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """The database for our own SQL, which is empty: cursors register the tables they need."""
    import duckdb

    from skiway.sandbox.worker import SETTINGS

    return duckdb.connect(":memory:", config={**SETTINGS})


ROWID_FIELD: Final = pa.field(ROWID, pa.int64(), metadata={IS_ROWID: b"1"})
_DEFAULT: Final = b"default"
_KEY_KINDS: Final = ("PRIMARY KEY", "UNIQUE")


def fold_case(name: str) -> str:
    """The key by which names are compared. As in DuckDB, ASCII letters are case-insensitive."""
    return name.encode().lower().decode()


def valid_name(name: str, what: str) -> str:
    """Return `name`; `InvalidArgument` if it is not a valid name."""
    if not name or "\0" in name:
        raise InvalidArgument(f"invalid name {name!r} for a {what}: it is empty or contains a NUL character")
    return name


@dataclass(frozen=True)
class TableDefinition:
    """The columns, keys and checks of a table.

    Comments and defaults are in the metadata of the columns; a column that is not nullable is NOT NULL.
    """

    name: str
    columns: tuple[pa.Field, ...]
    keys: tuple[Constraint, ...] = ()
    checks: tuple[Constraint, ...] = ()
    comment: str = ""

    @cached_property
    def schema(self) -> pa.Schema:
        """All columns and the row id. DuckDB also enforces the checks in the metadata of this schema."""
        checks = encode(CheckConstraints([check.expression for check in self.checks]))
        return pa.schema([*self.columns, ROWID_FIELD], {"check_constraints": checks} if self.checks else None)

    @cached_property
    def visible(self) -> pa.Schema:
        """The columns without the row id, as in `SELECT *`."""
        return pa.schema(self.columns)

    def position(self, name: str) -> int | None:
        """The index of the column called `name`, or None. Names are case-insensitive."""
        return self._positions.get(fold_case(name))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {fold_case(field.name): index for index, field in enumerate(self.columns)}

    def index(self, name: str) -> int:
        """The index of the column called `name`; `NotFound` if there is none."""
        position = self.position(name)
        if position is None:
            shown = ", ".join(repr(field.name) for field in self.columns)
            raise NotFound(f"table {self.name!r} has no column {name!r}; it has {shown}", key="column", column=name)
        return position

    def column(self, name: str) -> pa.Field:
        """The column called `name`; `NotFound` if there is none."""
        return self.columns[self.index(name)]

    def check_new_name(self, name: str, *, but: str = "") -> None:
        """Check that a column may be called `name`; `AlreadyExists` if another column than `but` is."""
        position = self.position(valid_name(name, "column"))
        if fold_case(name) == ROWID:
            raise InvalidArgument(f"a column cannot be called {name!r}, which is reserved for the row id")
        if position is not None and fold_case(self.columns[position].name) != fold_case(but):
            raise AlreadyExists(f"table {self.name!r} already has a column {self.columns[position].name!r}")

    def with_column(self, index: int, field: pa.Field) -> TableDefinition:
        """Replace the column at `index`."""
        return replace(self, columns=(*self.columns[:index], field, *self.columns[index + 1 :]))

    def keys_on(self, name: str) -> tuple[Constraint, ...]:
        """The keys that contain the column called `name`."""
        return tuple(key for key in self.keys if fold_case(name) in map(fold_case, key.columns))

    def checks_on(self, name: str) -> tuple[Constraint, ...]:
        """The checks that use the column called `name`."""
        return tuple(check for check in self.checks if fold_case(name) in map(fold_case, check.columns))

    def clauses(self) -> list[str]:
        """The constraints as SQL clauses."""
        return [constraint.clause for constraint in (*self.keys, *self.checks)]

    def with_constraints(self, constraints: Sequence[Constraint]) -> TableDefinition:
        """Replace the constraints by those that DuckDB parsed. Columns of the primary key become NOT NULL."""
        keys = tuple(constraint for constraint in constraints if constraint.kind in _KEY_KINDS)
        checks = tuple(constraint for constraint in constraints if constraint.kind == "CHECK")
        strict = {fold_case(name) for key in keys if key.kind == "PRIMARY KEY" for name in key.columns}
        columns = tuple(f.with_nullable(f.nullable and fold_case(f.name) not in strict) for f in self.columns)
        return replace(self, columns=columns, keys=keys, checks=checks)


def define(create: CreateTable, sandbox: Sandbox) -> TableDefinition:
    """The definition for a CREATE TABLE statement. DuckDB parses the constraints and defaults."""
    valid_name(create.name, "table")
    if not len(create.schema):
        raise InvalidArgument(f"table {create.name!r} needs at least one column")
    if find_rowid_column(create.schema) is not None:
        raise InvalidArgument(f"table {create.name!r} must not have a row id column: the catalog assigns row ids")
    definition = _of_columns(create)
    strict = {definition.index(name) for name in create.not_null}
    columns = (f.with_nullable(False) if i in strict else f for i, f in enumerate(definition.columns))
    definition = replace(definition, columns=tuple(columns))
    written = [Constraint("PRIMARY KEY", create.primary_key)] if create.primary_key else []
    written += [Constraint("UNIQUE", columns) for columns in create.unique]
    written += [Constraint("CHECK", (), check) for check in create.checks]
    clauses = [constraint.clause for constraint in written]
    defaults = [text for text in map(default_expression, definition.columns) if text is not None]
    constraints = sandbox.parse_constraints(definition.columns, clauses, defaults=defaults)
    return definition.with_constraints(constraints)


def _of_columns(create: CreateTable) -> TableDefinition:
    """The definition without constraints. Its time is linear in the number of columns."""
    columns: dict[str, pa.Field] = {}
    empty = TableDefinition(create.name, (), comment=create.comment)
    for field in create.schema:
        empty.check_new_name(field.name)
        other = columns.get(fold_case(field.name))
        if other is not None:
            raise AlreadyExists(f"table {create.name!r} already has a column {other.name!r}")
        columns[fold_case(field.name)] = new_column(field)
    return replace(empty, columns=tuple(columns.values()))


def new_column(field: pa.Field) -> pa.Field:
    """The column as it is stored; `InvalidArgument` if DuckDB does not support its type."""
    column = storable(field)
    duckdb_type(column)
    return column


def default_expression(field: pa.Field) -> str | None:
    """The SQL default of a column, or None."""
    text: Any = (field.metadata or {}).get(_DEFAULT)
    return text.decode() if text else None


# -- enforcing constraints --------------------------------------------------------------------------------------------


def check_rows(definition: TableDefinition, rows: pa.RecordBatch, sandbox: Sandbox) -> None:
    """Raise `ConstraintViolation` if a row violates NOT NULL or a CHECK. `rows` starts with all visible columns."""
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


def _check(definition: TableDefinition, check: Constraint, rows: pa.Table, sandbox: Sandbox) -> None:
    failed = f"CHECK constraint failed on table {definition.name} with expression {check.label}"
    try:
        violated = sandbox.is_violated(rows, check.expression)
    except InvalidArgument as error:
        raise ConstraintViolation(f"{failed} ({error.message})", key="check", table=definition.name) from error
    if violated:
        raise ConstraintViolation(failed, key="check", table=definition.name, expression=check.expression)


def check_keys(
    definition: TableDefinition, rows: Rows, sandbox: Sandbox, *, written: Iterable[pa.RecordBatch] | None = None
) -> None:
    """Raise `ConstraintViolation` if two rows have the same key. `written` has the new rows; None means all rows."""
    batches = None if written is None else list(written)
    for key in definition.keys:
        new = None if batches is None else pa.Table.from_batches(batches, rows.schema).select(list(key.columns))
        duplicate = _duplicate(key, rows.table(key.columns), new, sandbox)
        if duplicate is not None:
            raise ConstraintViolation(
                f'Duplicate key "{duplicate}" violates {key.label} constraint on table {definition.name} '
                f"({', '.join(key.columns)})",
                key=key.label.replace(" ", "_"),
                table=definition.name,
                columns=", ".join(key.columns),
            )


def _duplicate(key: Constraint, rows: pa.Table, new: pa.Table | None, sandbox: Sandbox) -> str | None:
    """A duplicate key as text, or None. DuckDB compares the values, so equality is the same as on the client."""
    names = ", ".join(map(identifier, key.columns))
    shown = " || ', ' || ".join(f"{text_literal(name + ': ')} || {identifier(name)}::VARCHAR" for name in key.columns)
    present = " AND ".join(f"{identifier(name)} IS NOT NULL" for name in key.columns)
    touched = "" if new is None else f"SEMI JOIN new USING ({names})"
    sql = (
        f"SELECT {shown} FROM (SELECT {names} FROM stored {touched} WHERE {present})"  # noqa: S608  (quoted above)
        f" GROUP BY {names} HAVING count(*) > 1 LIMIT 1"
    )
    duplicates = sandbox.query(sql, stored=rows, **({} if new is None else {"new": new}))
    return str(duplicates.column(0)[0].as_py()) if duplicates.num_rows else None
