"""A session of the differential tests, with `skiway.duckdb` or with plain DuckDB, run by `live.clients.Session`.

Values are text, as DuckDB renders them. The variable `SKIWAY_LOCATION` is the server; without it, DuckDB is plain.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import duckdb

import skiway.duckdb
from skiway.duckdb.engine import quoted
from skiway.errors import SkiwayError

FATAL = (duckdb.FatalException, duckdb.InternalException)
"""DuckDB cannot be used after these errors."""


def outcome(connection: Any, sql: str) -> dict[str, Any]:
    """Run one statement; the result or the error as a dictionary."""
    try:
        return {"status": "ok", **result(connection, sql)}
    except (duckdb.Error, SkiwayError) as error:
        return {"status": "fatal" if isinstance(error, FATAL) else "error", "message": str(error)}
    except UnicodeDecodeError as error:  # a VARCHAR that is not UTF-8
        return {"status": "error", "message": f"invalid text: {error}"}


def result(connection: Any, sql: str) -> dict[str, Any]:
    rows = connection.sql(sql)
    if rows is None:
        return {}
    values = ", ".join(f"CAST({quoted(name)} AS VARCHAR)" for name in rows.columns)
    kinds = [each.type.name for each in duckdb.extract_statements(sql)]
    if kinds == ["SELECT"]:
        found = rows.project(values).fetchall()
        return {"names": rows.columns, "types": list(map(str, rows.types)), "rows": found}
    found = [[None if value is None else str(value) for value in row] for row in rows.fetchall()]
    return {"names": rows.columns, "types": list(map(str, rows.types)), "rows": found} if found else {}


def main() -> None:
    location = os.environ.get("SKIWAY_LOCATION")
    with skiway.duckdb.connect(location, "db") if location else duckdb.connect() as connection:
        for line in sys.stdin:
            print(json.dumps(outcome(connection, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
