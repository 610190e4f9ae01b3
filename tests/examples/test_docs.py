"""The README and the guide: their programs run and print the output shown, and no public name is missing."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import skiway.airport
from examples.pages import CONTRIBUTING, GUIDE, INDEX, PAGES, PROJECT, README, SERVER, WRITING, programs
from examples.scripts import FOLDER, SCRIPTS
from skiway import errors
from skiway.airport import AirportService, ScanOptions, Server, serve

LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")


@pytest.mark.parametrize("page", [README, GUIDE, SERVER, WRITING], ids=lambda page: page.name)
def test_programs_run_in_order_and_print_the_output_shown(
    page: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FOLDER)  # a page may continue from an example
    names: dict[str, Any] = {"__name__": "guide"}
    outputs = 0
    for line, program, output in programs(page):
        exec(compile("\n" * line + program, str(page), "exec"), names)
        printed = capsys.readouterr().out
        if output is not None:
            assert printed == output, f"line {line + 1} of {page.name}"
            outputs += 1
    assert outputs, "the page must show some output"


@pytest.mark.parametrize("page", [README, GUIDE, SERVER, WRITING], ids=lambda page: page.name)
def test_every_program_is_tested(page: Path) -> None:
    elsewhere = page.read_text().count("```python metastore")  # needs a server: tests/client/metastore/test_docs.py
    assert page.read_text().count("```python") == len(list(programs(page))) + elsewhere


def test_every_public_name_is_in_the_guide() -> None:
    code = re.findall(r"```.*?```|`[^`]+`", GUIDE.read_text() + SERVER.read_text() + WRITING.read_text(), re.DOTALL)
    named = set(re.findall(r"\w+", " ".join(code)))
    assert [name for name in skiway.airport.__all__ if name not in named] == []


def test_every_option_is_documented() -> None:
    about = inspect.getdoc(Server) or ""
    assert [name for name in inspect.signature(Server).parameters if not re.search(rf"`{name}\b", about)] == []
    rows = "\n".join(re.findall(r"^\| `.*", GUIDE.read_text() + SERVER.read_text(), re.MULTILINE))
    options = [
        *(name for name in ScanOptions.__dataclass_fields__),
        *(name for name, _ in inspect.getmembers(ScanOptions) if not name.startswith("_")),
    ]
    assert [name for name in options if f"`{name}`" not in rows] == []
    assert "processes" in inspect.signature(serve).parameters
    beside_server = set(inspect.signature(AirportService).parameters) - set(inspect.signature(Server).parameters)
    assert beside_server == {
        "tickets",
        "endpoint_location",
        "disclosure",
        "log_failures",
        "protocols",
        "lane_headers",
    }  # set by `Server`, or not needed there


def test_every_class_of_errors_is_in_the_reference() -> None:
    reference = (PROJECT / "docs" / "reference" / "errors.md").read_text()
    assert [name for name in errors.__all__ if f"`{name}`" not in reference] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_are_valid(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        linked = (page.parent / target).resolve() if target else page
        assert linked.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_all_pages_and_all_examples_are_linked() -> None:
    index = INDEX.read_text()
    pages = {str(page.relative_to(INDEX.parent)) for page in PAGES if page.is_relative_to(INDEX.parent)} - {INDEX.name}
    assert [page for page in sorted(pages) if f"({page})" not in index] == []
    readme = README.read_text()
    assert [script.name for script in SCRIPTS if f"(examples/{script.name})" not in readme] == []


def test_files_named_in_the_contributor_guide_exist() -> None:
    named = re.findall(r"`((?:src|tests|docs|proto)/[^` ]*|\w+\.(?:yml|toml|md))`", CONTRIBUTING.read_text())
    assert len(named) > 20
    assert [path for path in named if not (PROJECT / path).exists()] == []


def test_commands_of_the_published_package_are_only_under_once_released() -> None:
    """Remove this test, and that heading, when the package is published."""
    sections = re.split(r"^## ", README.read_text(), flags=re.MULTILINE)
    published = re.compile(r"(?:pip install|uvx)\b.*\bskiway")
    assert [each.splitlines()[0] for each in sections if published.search(each)] == ["Once released"]
