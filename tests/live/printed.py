"""Every SQL statement printed in the README, the documentation, the examples and the demo; and how each one is run.

`printed.toml` assigns the statements to scenes. A scene is a server with everything that its statements need.
"""

from __future__ import annotations

import io
import os
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
from rich.console import Console

from examples.pages import PROJECT
from skiway.demo.output import Poster

__all__ = ["FILE", "PORT", "Excluded", "Printed", "Scene", "printed_statements", "read_excluded", "read_scenes"]

FILE = Path(__file__).with_name("printed.toml")
PORT = "50051"
"""The port in all statements."""

DEMO = "skiway demo"
"""Stands for a page: what the demo prints."""

_HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
_FENCE = re.compile(r"^```(\w*).*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`]+)`")
_PREPARES = re.compile(r"INSTALL|LOAD|ATTACH")
_COMMAND = re.compile(r'^\$ skiway sql .*?"(.*)"$', re.MULTILINE)
_VERB = re.compile(
    r"(SELECT|FROM|WITH|INSERT|UPDATE|DELETE|TRUNCATE|MERGE|CREATE|ALTER|DROP|ATTACH|DETACH|USE|SET|INSTALL|LOAD|CALL|EXPLAIN"
    r"|DESCRIBE|SHOW|SUMMARIZE|PIVOT|COPY|BEGIN|COMMIT|ROLLBACK|PREPARE|EXECUTE)\b"
)


@dataclass(frozen=True, slots=True)
class Printed:
    """A statement on a page, below a heading."""

    page: str
    heading: str
    sql: str

    def __str__(self) -> str:
        return f"{self.page}, {self.heading or 'top'}: {' '.join(self.sql.split())}"


@dataclass(frozen=True, slots=True)
class Scene:
    """A server, and the statements that run against it in one session, in the order in which they are printed.

    It has the statements of a page, of one `heading`, or of the page `without` a heading. `program` is Python that continues
    the programs of the page, so that `catalog` is the catalog to serve. `setup` is SQL that runs first. `values` replaces text
    in statements, such as a version that nobody can know before, by the result of a query. `fails` are statements that must
    fail, with a part of the error. With `separate`, each statement has a session of its own, as commands have.
    """

    page: str
    server: str
    heading: str = ""
    without: str = ""
    program: str = ""
    setup: tuple[str, ...] = ()
    values: dict[str, str] = field(default_factory=dict)
    fails: dict[str, str] = field(default_factory=dict)
    separate: bool = False

    @property
    def name(self) -> str:
        return f"{self.page}, {self.heading}" if self.heading else self.page

    def contains(self, statement: Printed) -> bool:
        in_scene = self.heading in ("", statement.heading) and statement.heading != (self.without or None)
        return statement.page == self.page and in_scene


@dataclass(frozen=True, slots=True)
class Excluded:
    """A statement that is not run, and why; with `built`, only an extension that was built from source does not run it."""

    statement: str
    reason: str
    page: str = ""
    built: bool = False

    def contains(self, statement: Printed) -> bool:
        return self.page in ("", statement.page) and statement.sql == self.statement

    @property
    def applies(self) -> bool:
        return not self.built or "AIRPORT_EXTENSION" in os.environ


def read_scenes() -> list[Scene]:
    return [Scene(**{**entry, "setup": tuple(entry.get("setup", ()))}) for entry in _entries("scene")]


def read_excluded() -> list[Excluded]:
    return [Excluded(**entry) for entry in _entries("excluded")]


def _entries(kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tomllib.loads(FILE.read_text())[kind]
    return found


def printed_statements() -> Iterator[Printed]:
    """All statements, page by page."""
    pages = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    for page in pages:
        yield from _in_page(str(page.relative_to(PROJECT)), page.read_text())
    for example in sorted((PROJECT / "examples").glob("*.py")):
        docstring = example.read_text().split('"""')[1]
        indented = "\n".join(re.findall(r"^    (.*)$", docstring, re.MULTILINE))
        yield from _in_text(f"examples/{example.name}", "", indented)
    # The demo prints last how to attach it, so that it is above the prompt. People begin with it.
    yield from sorted(_in_text(DEMO, "", _demo_output()), key=lambda each: not _PREPARES.match(each.sql))


def _in_page(page: str, text: str) -> Iterator[Printed]:
    """The statements of a page: in blocks of SQL, in commands, and in code within sentences."""
    sections = _HEADING.split(
        _FENCE.sub(lambda found: found[0].replace("\n#", "\n\0#"), text)
    )  # comments are no headings
    for heading, section in zip(["", *sections[1::2]], sections[::2], strict=True):
        for found in _FENCE.finditer(section):
            if found[1] == "sql":
                yield from (Printed(page, heading, sql) for sql in parsed(found[2]) or [])
            for command in _COMMAND.findall(found[2]):
                if not command.startswith("."):  # a command of our own shell
                    yield Printed(page, heading, command)
            if found[1] == "text":
                yield from _in_text(page, heading, found[2])
        for code in _CODE.findall(_FENCE.sub("", section)):
            if _VERB.match(code) and len(parsed(code) or []) == 1:
                yield Printed(page, heading, " ".join(code.split()))


def _in_text(page: str, heading: str, text: str) -> Iterator[Printed]:
    """The statements within other text: they begin with a verb and end with a semicolon at the end of a line."""
    for found in re.finditer(rf"^ *(?:\S[^\n]*?  +)?{_VERB.pattern}.*?;$", text, re.MULTILINE | re.DOTALL):
        begin = found.start(1)
        for sql in parsed(text[begin : found.end()]) or []:
            yield Printed(page, heading, sql)


def parsed(sql: str) -> list[str] | None:
    """The single statements in a text; None if DuckDB cannot parse it."""
    try:
        return [each.query.strip().rstrip(";") for each in duckdb.extract_statements(sql)]
    except duckdb.ParserException:
        return None


def _demo_output() -> str:
    output = io.StringIO()
    poster = Poster(Console(file=output, width=200, highlight=False, emoji=False))
    poster.invitation(
        {"airport": f"grpc://127.0.0.1:{PORT}", "http": "http://127.0.0.1:8181", "rpc": f"127.0.0.1:{PORT}"},
        Path("home"),
    )
    return "\n".join(line.strip() for line in output.getvalue().splitlines())
