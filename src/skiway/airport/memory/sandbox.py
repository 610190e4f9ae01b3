"""Runs SQL expressions from clients in a sandboxed DuckDB.

CHECK constraints, defaults and type conversions are untrusted SQL. They run in a separate in-memory database without access
to files, the network, extensions and Python variables, with locked settings and with limited memory and time. DuckDB also
parses constraints: it tells which columns a CHECK uses, and whether a clause is a valid constraint.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from skiway import extras
from skiway.airport.conversion import to_column
from skiway.airport.wire.duckdb_sql import identifier
from skiway.errors import InvalidArgument, LimitExceeded, TimedOut

if TYPE_CHECKING:
    import duckdb

__all__ = ["Constraint", "Sandbox"]

_LOCKED: Final = {
    "arrow_lossless_conversion": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # filters that DuckDB pushes into Arrow fail for extension types and drop NaN
    "disabled_optimizers": "filter_pushdown,join_filter_pushdown",
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "1",
}


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
        self._memory_limit = memory_limit
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    def evaluate(self, rows: pa.Table, expression: str, field: pa.Field) -> pa.Array:
        """Evaluate an expression for each row and convert the values to the type of `field`."""
        with self._use() as cursor:
            cast = f"CAST(({_single(expression)}\n) AS {_types(cursor, [field])[0]})"
            values = _project(cursor, rows, cast)
        return to_column(values.combine_chunks(), field)

    def is_violated(self, rows: pa.Table, check: str) -> bool:
        """Whether a row violates a CHECK. As in DuckDB, NULL passes, and numbers other than zero are true."""
        with self._use() as cursor:
            truth = _project(cursor, rows, f"CAST(({check}\n) AS INTEGER)")
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
        with self._use() as cursor:
            typed = zip(columns, _types(cursor, columns), strict=True)
            parts = [f"{identifier(field.name)} {type_name}" for field, type_name in typed]
            parts += [
                f"{identifier(f' default {i}')} VARCHAR DEFAULT ({_single(text)}\n)" for i, text in enumerate(defaults)
            ]
            _execute_one(cursor, f"CREATE TEMP TABLE probe ({', '.join([*parts, *clauses])})")
            if rename:
                cursor.execute(f"ALTER TABLE probe RENAME COLUMN {identifier(rename[0])} TO {identifier(rename[1])}")
            column_count = cursor.execute("SELECT count(*) FROM duckdb_columns() WHERE table_name = 'probe'").fetchone()
            found = cursor.execute(
                "SELECT constraint_type, constraint_column_names, expression FROM duckdb_constraints()"
                " WHERE table_name = 'probe' AND constraint_type <> 'NOT NULL' ORDER BY constraint_index"
            ).fetchall()
        if column_count != (len(parts),) or len(found) != len(clauses):
            raise InvalidArgument(
                f"{'; '.join(map(str.strip, clauses))}: each must be one constraint, such as CHECK (a < b) or UNIQUE (a, b)"
            )
        return [Constraint(kind, tuple(names), expression or "") for kind, names, expression in found]

    @contextmanager
    def _use(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A new cursor with a timeout. DuckDB's errors are converted to ours."""
        import duckdb

        cursor = self._cursor()
        timer = threading.Timer(self._timeout_s, cursor.interrupt)
        timer.daemon = True
        timer.start()
        try:
            yield cursor
        except duckdb.InterruptException as error:
            raise TimedOut(f"the SQL expression took longer than {self._timeout_s:g} s and was cancelled") from error
        except duckdb.OutOfMemoryException as error:
            raise LimitExceeded(f"the SQL expression uses more than {self._memory_limit} of memory") from error
        except duckdb.Error as error:
            raise InvalidArgument(str(error).splitlines()[0]) from error
        finally:
            timer.cancel()
            cursor.close()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        with self._lock:
            if self._database is None:
                config: dict[str, Any] = {**_LOCKED, "memory_limit": self._memory_limit}
                self._database = duckdb.connect(":memory:", config=config)
            return self._database.cursor()


def _single(expression: str) -> str:
    """Return `expression`; an error if it is not exactly one expression."""
    import duckdb

    duckdb.SQLExpression(expression)
    return expression


def _project(cursor: duckdb.DuckDBPyConnection, rows: pa.Table, expression: str) -> pa.ChunkedArray:
    import duckdb

    return cursor.from_arrow(rows).select(duckdb.SQLExpression(expression).alias("value")).to_arrow_table().column(0)


def _types(cursor: duckdb.DuckDBPyConnection, fields: Sequence[pa.Field]) -> list[str]:
    """DuckDB's names of the types."""
    schema = pa.schema([field.with_name(f"c{i}").with_nullable(True) for i, field in enumerate(fields)])
    cursor.register("typed", pa.table([pa.nulls(0, field.type) for field in schema], schema=schema))
    return [str(row[1]) for row in cursor.execute("DESCRIBE typed").fetchall()]


def _execute_one(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = cursor.extract_statements(sql)
    if len(statements) != 1:
        raise InvalidArgument("a constraint must be one clause, such as CHECK (a < b) or UNIQUE (a, b)")
    cursor.execute(statements[0])
