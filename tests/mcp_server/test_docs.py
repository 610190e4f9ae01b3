"""The page about assistants matches the code."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import typer

from skiway.cli.server import app
from skiway.mcp.server import MAX_ROWS, MAX_TEXT, mcp_server

PAGE = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text()


def test_every_tool_is_on_the_page_with_its_arguments() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (`.*?`) \|", PAGE, re.MULTILINE)
    shown = {name: re.findall(r"\w+", arguments) for name, arguments in rows}
    server = mcp_server("grpc://127.0.0.1:1", lambda _: "")
    tools: Any = asyncio.run(server.list_tools())
    assert shown == {each.name: list(each.input_schema["properties"]) for each in tools}
    templates: Any = asyncio.run(server.list_resource_templates())
    assert {each.uri_template for each in templates} == set(re.findall(r"`(skiway://.*?)`", PAGE))
    assert f"{MAX_ROWS} rows" in PAGE
    assert f"{MAX_TEXT} characters" in PAGE


def test_configuration_is_json() -> None:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (given,) = json.loads(text)["mcpServers"].values()
    assert given["command"] == "skiway"


def test_commands_have_these_options() -> None:
    commands_of_the_server: Any = typer.main.get_command(app)
    known = {option for each in commands_of_the_server.commands["mcp"].params for option in each.opts}
    commands = [line for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]
    used = {
        word for line in commands if line.startswith("skiway mcp") for word in line.split() if word.startswith("--")
    }
    assert used == {"--http", "--server", "--token"}
    assert used <= known
