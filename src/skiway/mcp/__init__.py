"""The lake for assistants: an MCP server with tools that search, describe, sample and query tables.

It is a client of a Skiway server and calls it with the token of each caller. So assistants see nothing that their caller could
not read with DuckDB, and the server authorizes, limits and audits every call. Nothing can be changed.
"""

from skiway.foundation import extras

extras.check("lake")
extras.check("mcp")

from skiway.mcp.server import serve_http, serve_stdio

__all__ = ["serve_http", "serve_stdio"]
