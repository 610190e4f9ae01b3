"""`skiway mcp`: the lake as tools of assistants."""

from __future__ import annotations

from typing import Annotated

import typer

from skiway.cli.command import Call, command, group
from skiway.errors import InvalidArgument

__all__ = ["app"]

app = group("mcp", None)


@command(app, "mcp")
def mcp(
    call: Call,
    http: Annotated[
        str | None,
        typer.Option(
            "--http", metavar="HOST:PORT", help="Serve over HTTP at a loopback address; each request has its own token."
        ),
    ] = None,
) -> None:
    """Serve the lake to assistants with the Model Context Protocol.

    By default, it serves one client on standard input and output, with your token.
    """
    if call.account not in (None, "", "default"):
        raise InvalidArgument("MCP uses the account of the token: give --token, and leave out --account")
    location = call.location  # prepares gRPC, before the import
    from skiway.mcp import serve_http, serve_stdio

    if http is None:
        serve_stdio(location, call.renewed_token)
        return
    if call.token is not None:
        raise InvalidArgument("with --http, clients send their own tokens: leave out --token and SKIWAY_TOKEN")
    serve_http(location, http, ready=lambda url: typer.echo(f"MCP server at {url}", err=True))
