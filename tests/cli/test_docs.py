"""The page about running a server lists exactly the settings, options and sweeps that exist, and all commands that are named exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import typer

from runtime.servers import skiway
from skiway.cli.app import app
from skiway.config import Settings, describe
from skiway.config.metastore import Gc
from skiway.runtime.gc.sweeps import KINDS

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serve.md").read_text()


def test_settings_on_the_page_exist():
    known = {setting.key for setting in describe()}
    sections = {key.rpartition(".")[0] for key in known} | {key.partition(".")[0] for key in known}
    named = set(re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)(?:=\w+)?`", PAGE)) | set(re.findall(r"--set ([a-z_.]+)=", PAGE))
    files = {"skiway.toml", "pointers.db", "tokens.toml", "ready.json"}
    assert named - files - known - sections == set()
    assert len(named & known) > 10


def test_every_option_of_serve_is_on_the_page():
    options = set(re.findall(r"--[a-z-]+", skiway("serve", "--help").stdout)) - {"--help"}
    assert len(options) == 6
    assert {option for option in options if f"`{option} " not in PAGE} == set()


def every(interval: timedelta) -> str:
    names = {timedelta(minutes=1): "every minute", timedelta(minutes=10): "every ten minutes"}
    return {**names, timedelta(hours=1): "every hour"}[interval]


def test_page_has_the_table_of_sweeps():
    rows = [
        f"| `{kind.name}` | `{kind.section}` | {every(kind.limits(Settings()).tick_every)} | {kind.deletes} |"
        for kind in KINDS
    ]
    assert re.findall(r"^\| `\w+` \| `gc\..*$", PAGE, re.MULTILINE) == rows


def test_page_of_operations_lists_all_sweeps():
    page = (DOCS / "operations.md").read_text()
    assert ", ".join(f"`{kind.name}`" for kind in KINDS) in " ".join(page.split())


def test_settings_name_the_sweeps_that_they_enable():
    settings = {setting.key: setting.description for setting in describe()}
    for section in (field.name for field in fields(Gc)):
        names = [f"`{kind.name}`" for kind in KINDS if kind.section == f"gc.{section}"]
        listed = f"sweep {names[0]}" if len(names) == 1 else f"sweeps {', '.join(names[:-1])} and {names[-1]}"
        where = "on servers and in `skiway gc`." if section == "warehouse" else "on servers; `skiway gc` always does."
        assert settings[f"gc.{section}.enabled"] == f"Run the {listed} {where}"


# --- commands ---------------------------------------------------------------------------------------------------------

PROJECT = DOCS.parent
CODE = re.compile(r"```(?:sh|console|text|toml|yaml|ini)?\n(.*?)```|`([^`\n]+)`", re.DOTALL)
NAMED = re.compile(r"(?<![\w/.:='\"\[-])(?:\.venv/bin/)?skiway((?: [^\n`|#;)&\\]+)+)")
WORD = re.compile(r"[a-z][a-z-]*")
ROOT: Any = typer.main.get_command(app)


def named_in(text: str) -> list[str]:
    """The words after each `skiway`."""
    return [part for found in NAMED.finditer(text) for part in found[1].split(" skiway")]


def named_in_pages() -> Iterator[tuple[str, str]]:
    """Commands in the code on pages, as the page and the words after `skiway`."""
    for page in [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]:
        for code in CODE.finditer(page.read_text()):
            yield from ((page.name, each) for each in named_in(code[1] or code[2] or ""))


def named_in_messages() -> Iterator[tuple[str, str]]:
    """Commands in strings and docstrings, which name them without quotes."""
    for path in sorted((PROJECT / "src" / "skiway").rglob("*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "skiway " in text else ():
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield from ((str(path.relative_to(PROJECT)), each) for each in named_in(node.value))
    messages = PROJECT / "src" / "skiway" / "metastore" / "records" / "messages" / "en.toml"
    yield from (("en.toml", each) for each in named_in(messages.read_text()))


def missing_part(text: str, *, in_code: bool) -> str | None:
    """The first command or option in a text that does not exist. In sentences, words may follow the command."""
    command: Any = ROOT
    words = re.split(r"[ \"\u2026]+", text.strip())
    for number, word in enumerate(words):
        plain = word.rstrip(".,:")
        if not hasattr(command, "get_command") or plain.startswith("-") or not WORD.fullmatch(plain):
            words = words[number:]
            break
        found = command.get_command(None, plain)
        if found is None:
            return plain if in_code or number else None
        command = found
    else:
        words = []
    if command is ROOT and not in_code:
        return None
    options = {option for each in command.params for option in (*each.opts, *each.secondary_opts)} | {
        "--help",
        "--version",
    }
    for word in words:
        option = re.match(r"--[a-z][a-z-]*", word)
        if option and option[0] not in options:
            return option[0]
    return None


def test_every_command_on_the_pages_exists():
    named = list(named_in_pages())
    assert len(named) > 200
    missing = [(page, text, part) for page, text in named if (part := missing_part(text, in_code=True))]
    assert missing == []


def test_every_command_in_messages_exists():
    named = list(named_in_messages())
    assert len(named) > 40
    missing = [(place, text, part) for place, text in named if (part := missing_part(text, in_code=False))]
    assert missing == []


def test_missing_commands_and_options_are_found():
    assert missing_part(" stats compute lake.s.t", in_code=True) == "compute"
    assert missing_part(" stats compute, or wait", in_code=False) == "compute"
    assert missing_part(" serve --hom x", in_code=True) == "--hom"
    assert missing_part(" serve --home x --set a=b", in_code=True) is None
    assert missing_part(" is a service", in_code=False) is None
