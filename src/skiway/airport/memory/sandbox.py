"""Evaluates the SQL in definitions of tables: CHECK constraints, defaults and type conversions.

They are untrusted SQL, so they run in the worker processes of `skiway.sandbox`. DuckDB also parses constraints there: it tells
which columns a CHECK uses, and whether a clause is a valid constraint. Our own SQL over rows runs in this process.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from skiway import extras, sandbox
from skiway.airport.conversion import to_column
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import InvalidArgument

if TYPE_CHECKING:
    import duckdb

__all__ = ["Constraint", "Sandbox"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint that DuckDB parsed. Only a CHECK has an `expression`."""

    kind: str
    columns: tuple[str, ...]
    expression: str = ""


class Sandbox:
    """Evaluates SQL expressions over Arrow data. It is thread-safe."""

    def __init__(self, *, memory_limit: str = "1GB", timeout_s: float = 60.0) -> None:
        extras.require("duckdb", extra="memory", purpose="the in-memory database")
        self._foreign = sandbox.Sandbox(memory_limit=memory_limit, timeout_s=timeout_s)

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
            return cursor.execute(sql).to_arrow_table()

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
        *_, counted, found = self._foreign.run(statements, expressions=defaults)
        if counted["columns"].to_pylist() != [len(parts)] or len(found) != len(clauses):
            raise InvalidArgument(
                f"{'; '.join(map(str.strip, clauses))}: each must be one constraint, such as CHECK (a < b) or UNIQUE (a, b)"
            )
        return [Constraint(row["kind"], tuple(row["names"]), row["expression"] or "") for row in found.to_pylist()]

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
