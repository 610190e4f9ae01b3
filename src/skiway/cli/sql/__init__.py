"""`skiway sql`: SQL on the lake with an embedded DuckDB.

DuckDB runs queries in this process, over scans of the lake. Statements that change tables are sent to the server.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from skiway.cli.command import Call, command, group, run_command

__all__ = ["app", "run_statements"]

DEFAULT_CATALOG: Final = "lake"
DEFAULT_MAX_ROWS: Final = 1000

app = group("sql", None)


@command(app, "sql")
def sql(
    call: Call,
    statement: Annotated[
        str | None, typer.Argument(metavar="SQL", help="One or more statements; read from stdin by default.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Run the statements in a file.")
    ] = None,
    catalog: Annotated[
        str, typer.Option(metavar="CATALOG", help="Catalog of tables that are written as schema.table.")
    ] = DEFAULT_CATALOG,
    max_rows: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Maximum number of rows in a table; 0 shows all. Other formats have all rows."
        ),
    ] = DEFAULT_MAX_ROWS,
) -> None:
    """Run SQL on the lake with DuckDB.

    On a terminal, without SQL, it opens a prompt. Tables are named catalog.schema.table. Queries can use all of DuckDB's
    SQL, and local files too. INSERT, UPDATE, DELETE, CREATE, ALTER and DROP change managed tables; each statement commits
    on its own.
    """
    from skiway.cli.sql.shell import run

    run(call, statement, file, catalog=catalog, max_rows=max_rows)


def run_statements(text: str) -> None:
    """Run `skiway sql TEXT` without typer's parser, which imports pydantic: that takes longer than a short query."""
    try:
        run_command(sql, Call.from_environment(), statement=text, catalog=DEFAULT_CATALOG, max_rows=DEFAULT_MAX_ROWS)
    except typer.Exit as end:
        raise SystemExit(end.exit_code) from None
