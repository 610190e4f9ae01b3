"""Every line of the threat model names tests that exist."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
PAGE = PROJECT / "docs" / "threat-model.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def threats() -> list[str]:
    """The lines of all tables with tests, without their headings."""
    lines = PAGE.read_text().splitlines()
    found, inside = [], False
    for line in lines:
        if line == "| threat | protection | tests |":
            inside = True
        elif not line.startswith("|"):
            inside = False
        elif inside and not line.startswith("|---"):
            found.append(line)
    return found


@functools.cache
def functions(file: str) -> set[str]:
    path = PROJECT / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def defect(line: str) -> str:
    """What is wrong with a line; empty if nothing is."""
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    if len(cells) != 3 or not all(cells):
        return "it has not three cells"
    named = TEST.findall(cells[2])
    if not named:
        return "it names no test"
    if ", ".join(f"`{file}::{test}`" for file, test in named) != cells[2]:
        return "the third cell has something else than tests"
    return ", ".join(f"{file} has no {test}" for file, test in named if test not in functions(file))


def test_every_line_names_existing_tests() -> None:
    assert {line: found for line in threats() if (found := defect(line))} == {}


def test_all_tables_are_read() -> None:
    sections = re.findall(r"^## (?!Who is trusted)(.+)$", PAGE.read_text(), re.MULTILINE)
    assert len(sections) == PAGE.read_text().count("| threat | protection | tests |") > 3
    assert len(threats()) == sum("::test_" in line for line in PAGE.read_text().splitlines()) > 30


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("| a | b | |", "three cells"),
        ("| a | b | it is safe |", "names no test"),
        ("| a | b | `tests/security/test_threat_model.py::test_nothing` |", "has no test_nothing"),
        ("| a | b | `tests/no_file.py::test_a` |", "has no test_a"),
        ("| a | b | `tests/no_file.py::test_a` and more |", "something else"),
    ],
)
def test_planted_defect_is_found(line: str, message: str) -> None:
    assert message in defect(line)
