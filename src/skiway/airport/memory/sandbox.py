"""SQL of callers, run by DuckDB where it can do no harm.

CHECK constraints, defaults and conversions are expressions that somebody else wrote. They run on a database in memory
of their own: no files, no network, no extensions, no Python variables, settings locked, memory and time limited.
DuckDB also is the judge of what a definition means: which columns a CHECK names, and whether it is one at all.
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

__all__ = ["Rule", "Sandbox"]

_LOCKED: Final = {
    "arrow_lossless_conversion": "true",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    # filters pushed into Arrow fail on extension types and lose NaN
    "disabled_optimizers": "filter_pushdown,join_filter_pushdown",
    "enable_external_access": "false",
    "lock_configuration": "true",
    "python_enable_replacements": "false",
    "temp_directory": "",
    "threads": "1",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A constraint as DuckDB understood it; `expression` is that of a CHECK."""

    kind: str
    columns: tuple[str, ...]
    expression: str = ""


class Sandbox:
    """Runs expressions over Arrow rows; may be used by many threads at once."""

    def __init__(self, *, memory_limit: str = "1GB", timeout_s: float = 60.0) -> None:
        extras.require("duckdb", extra="memory", purpose="the in-memory database")
        self._memory_limit = memory_limit
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._database: duckdb.DuckDBPyConnection | None = None

    def evaluate(self, rows: pa.Table, expression: str, field: pa.Field) -> pa.Array:
        """The expression's value for each row, in the type of `field`."""
        with self._use() as cursor:
            one = _single(expression)
            cast = f"CAST(({one}\n) AS {_types(cursor, [field])[0]})"
            values = _project(cursor, rows, cast)
        return to_column(values.combine_chunks(), field)

    def is_broken(self, rows: pa.Table, check: str) -> bool:
        """Whether some row breaks a CHECK; like DuckDB, NULL passes, and numbers are true unless zero."""
        with self._use() as cursor:
            truth = _project(cursor, rows, f"CAST(({check}\n) AS INTEGER)")
        return bool(pc.any(pc.equal(truth, 0), min_count=0).as_py())

    def query(self, sql: str, **tables: pa.Table) -> pa.Table:
        """The result of our own SQL over these tables."""
        with self._use() as cursor:
            for name, rows in tables.items():
                cursor.register(name, rows)
            return cursor.execute(sql).to_arrow_table()

    def rules(
        self,
        columns: Sequence[pa.Field],
        clauses: Sequence[str],
        *,
        defaults: Sequence[str] = (),
        rename: tuple[str, str] | None = None,
    ) -> list[Rule]:
        """What DuckDB makes of the constraints of a table, if wanted after renaming a column.

        `defaults` are expressions that must be good as defaults of such a table.
        """
        if not clauses and not defaults:
            return []
        with self._use() as cursor:
            typed = zip(columns, _types(cursor, columns), strict=True)
            parts = [f"{identifier(field.name)} {spelled}" for field, spelled in typed]
            parts += [
                f"{identifier(f' default {i}')} VARCHAR DEFAULT ({_single(text)}\n)" for i, text in enumerate(defaults)
            ]
            _execute_one(cursor, f"CREATE TEMP TABLE probe ({', '.join([*parts, *clauses])})")
            if rename:
                cursor.execute(f"ALTER TABLE probe RENAME COLUMN {identifier(rename[0])} TO {identifier(rename[1])}")
            made = cursor.execute("SELECT count(*) FROM duckdb_columns() WHERE table_name = 'probe'").fetchone()
            found = cursor.execute(
                "SELECT constraint_type, constraint_column_names, expression FROM duckdb_constraints()"
                " WHERE table_name = 'probe' AND constraint_type <> 'NOT NULL' ORDER BY constraint_index"
            ).fetchall()
        if made != (len(parts),) or len(found) != len(clauses):
            raise InvalidArgument(
                f"{'; '.join(map(str.strip, clauses))}: each must be one constraint, such as CHECK (a < b) or UNIQUE (a, b)"
            )
        return [Rule(kind, tuple(names), expression or "") for kind, names, expression in found]

    @contextmanager
    def _use(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor with nothing in it; what goes wrong on it becomes one of our errors."""
        import duckdb

        cursor = self._cursor()
        watch = threading.Timer(self._timeout_s, cursor.interrupt)
        watch.daemon = True
        watch.start()
        try:
            yield cursor
        except duckdb.InterruptException as error:
            raise TimedOut(f"the SQL expression took longer than {self._timeout_s:g} s and was stopped") from error
        except duckdb.OutOfMemoryException as error:
            raise LimitExceeded(f"the SQL expression needs more than {self._memory_limit} of memory") from error
        except duckdb.Error as error:
            raise InvalidArgument(str(error).splitlines()[0]) from error
        finally:
            watch.cancel()
            cursor.close()

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        with self._lock:
            if self._database is None:
                config: dict[str, Any] = {**_LOCKED, "memory_limit": self._memory_limit}
                self._database = duckdb.connect(":memory:", config=config)
            return self._database.cursor()


def _single(expression: str) -> str:
    """`expression`, having made sure that it is exactly one."""
    import duckdb

    duckdb.SQLExpression(expression)
    return expression


def _project(cursor: duckdb.DuckDBPyConnection, rows: pa.Table, expression: str) -> pa.ChunkedArray:
    import duckdb

    return cursor.from_arrow(rows).select(duckdb.SQLExpression(expression).alias("value")).to_arrow_table().column(0)


def _types(cursor: duckdb.DuckDBPyConnection, fields: Sequence[pa.Field]) -> list[str]:
    """DuckDB's own spelling of the types."""
    schema = pa.schema([field.with_name(f"c{i}").with_nullable(True) for i, field in enumerate(fields)])
    cursor.register("typed", pa.table([pa.nulls(0, field.type) for field in schema], schema=schema))
    return [str(row[1]) for row in cursor.execute("DESCRIBE typed").fetchall()]


def _execute_one(cursor: duckdb.DuckDBPyConnection, sql: str) -> None:
    statements = cursor.extract_statements(sql)
    if len(statements) != 1:
        raise InvalidArgument("a constraint must be one clause, such as CHECK (a < b) or UNIQUE (a, b)")
    cursor.execute(statements[0])
