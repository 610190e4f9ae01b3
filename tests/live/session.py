"""A session of the real client, run by the client's own Python: it reads statements and writes what came out of them.

Each line on standard input is a JSON string with one statement; each line on standard output is its outcome, a JSON
object. A line can also have several scripts, which then run at the same time, in threads, or a statement to measure. Values
are text, as DuckDB itself renders them, so that nothing is lost in Python: no nanoseconds, no infinite dates, no years before
Christ. The program needs nothing but `duckdb`, and pyarrow to measure.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb

__all__ = ["outcome", "together"]

FATAL = (duckdb.FatalException, duckdb.InternalException)
"""DuckDB cannot be used after these errors."""


def outcome(session: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Run one statement; the result or the error as a dictionary."""
    try:
        return {"status": "ok", **result(session, sql)}
    except duckdb.Error as error:
        return {"status": "fatal" if isinstance(error, FATAL) else "error", "message": str(error)}
    except UnicodeDecodeError as error:  # a VARCHAR that is not UTF-8
        return {"status": "error", "message": f"invalid text: {error}"}


def result(session: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    if is_query(session, sql):
        return query_result(session, sql)
    session.execute(sql)
    columns = session.description or []
    rows = [[None if value is None else str(value) for value in row] for row in session.fetchall()] if columns else []
    return {"names": [column[0] for column in columns], "types": [str(column[1]) for column in columns], "rows": rows}


def query_result(session: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """The result of a query as text, with its types. Planning a query costs calls, so it is planned once if it has rows."""
    session.execute(f"SELECT CAST(COLUMNS(*) AS VARCHAR), typeof(COLUMNS(*)) FROM ({sql}\n)")
    width = len(session.description or []) // 2
    names = [column[0] for column in (session.description or [])[:width]]
    rows = session.fetchall()
    types = rows[0][width:] if rows else [row[1] for row in session.execute(f"DESCRIBE {sql}").fetchall()]
    return {"names": names, "types": types, "rows": [row[:width] for row in rows]}


def together(
    session: duckdb.DuckDBPyConnection, scripts: list[list[str]], separate: bool
) -> list[list[dict[str, Any]]]:
    """Run scripts at the same time: each in a cursor of the session, or in a DuckDB of its own in this process."""

    def run(script: list[str]) -> list[dict[str, Any]]:
        with connect() if separate else session.cursor() as own:
            return [outcome(own, sql) for sql in script]

    with ThreadPoolExecutor(len(scripts)) as pool:
        return list(pool.map(run, scripts))


def timed(session: duckdb.DuckDBPyConnection, sql: str) -> dict[str, Any]:
    """Run a statement, fetch its result as an Arrow table, and return how long that took."""
    started = time.perf_counter()
    try:
        session.execute(sql)
        if session.description:
            session.to_arrow_table()
    except duckdb.Error as error:
        return {"status": "error", "message": str(error)}
    return {"seconds": time.perf_counter() - started}


def is_query(session: duckdb.DuckDBPyConnection, sql: str) -> bool:
    statements = session.extract_statements(sql)
    return len(statements) == 1 and statements[0].type == duckdb.StatementType.SELECT


def connect() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"allow_unsigned_extensions": "true"})


def main() -> None:
    with connect() as session:
        for line in sys.stdin:
            asked = json.loads(line)
            if isinstance(asked, str):
                answer: Any = outcome(session, asked)
            else:
                answer = timed(session, asked["timed"]) if "timed" in asked else together(session, **asked)
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
