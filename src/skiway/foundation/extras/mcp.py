"""Importing this module raises `MissingExtra` unless the extra `mcp` is installed."""

from __future__ import annotations

from typing import Final

from skiway.foundation.extras import require

LIBRARIES: Final = ("mcp",)

require(*LIBRARIES, extra="mcp", purpose="the MCP server")
