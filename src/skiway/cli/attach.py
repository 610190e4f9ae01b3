"""`skiway attach`: the statements that attach the catalogs of a server in DuckDB."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from skiway.cli.command import Call, command, group, suggestion
from skiway.errors import NotFound

__all__ = ["app"]

app = group("attach", None)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement in the output."""

    statement: str


@command(app, "attach")
def attach(
    call: Call,
    catalogs: Annotated[
        list[str] | None, typer.Argument(metavar="[CATALOG]...", help="Catalogs; by default all that you can see.")
    ] = None,
    show_token: Annotated[bool, typer.Option("--show-token", help="Print your token in the statements.")] = False,
) -> None:
    """Print the statements that attach catalogs in DuckDB.

    Without --show-token, insert your token yourself.
    """
    from skiway.airport.wire.duckdb_sql import attach_statement, secret_statement  # which imports pyarrow

    visible = [str(each) for each in call.lake.catalogs()]
    for name in catalogs or ():
        if name not in visible:
            hint = suggestion(name, visible)
            raise NotFound(f"there is no catalog {name}{f'; {hint}' if hint else ''}")
    location = call.location
    statements = ["INSTALL airport FROM community;", "LOAD airport;"]
    if (token := call.access_token) is not None:
        statements.append(secret_statement(location, token if show_token else None))
    statements += (attach_statement(name, location) for name in catalogs or visible)
    if call.is_for_people:
        typer.echo("\n".join(statements))
    else:
        call.print_rows(map(Statement, statements), ["statement"], empty="")
