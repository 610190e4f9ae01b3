"""`skiway sql`: DuckDB in this process, whose tables are scans of the lake; what changes tables goes through the server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from skiway.cli.command import Call, noun, verb

__all__ = ["app"]

app = noun("sql", None)


@verb(app, "sql")
def sql(
    call: Call,
    statement: Annotated[
        str | None, typer.Argument(metavar="SQL", help="One statement or more; from the standard input without.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--file", "-f", metavar="FILE", help="Run the statements in it.")] = None,
    catalog: Annotated[
        str, typer.Option(metavar="CATALOG", help="Where schema.table is looked for, if no catalog is named.")
    ] = "lake",
    max_rows: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many rows a table shows; 0 shows all. JSON has all of them.")
    ] = 1000,
) -> None:
    """Run SQL over the lake, by DuckDB. On a terminal, without SQL, it is a prompt.

    Tables are named catalog.schema.table. SELECT is whatever DuckDB understands, over local files too. INSERT, UPDATE,
    DELETE, CREATE, ALTER and DROP change managed tables, each by itself: there are no transactions over several.
    """
    from skiway.cli.sql.running import run

    run(call, statement, file, catalog=catalog, max_rows=max_rows)
