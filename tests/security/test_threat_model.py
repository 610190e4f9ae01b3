"""Every threat names tests that exist."""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
SECTIONS = tomllib.loads(Path(__file__).with_name("threats.toml").read_text())["section"]
THREATS = [threat for section in SECTIONS for threat in section["threat"]]


@functools.cache
def functions(file: str) -> set[str]:
    path = TESTS / file
    tree = ast.parse(path.read_text()) if path.is_file() else ast.Module([], [])
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def defect(threat: Mapping[str, Any]) -> str:
    """What is wrong with a threat; empty if nothing is."""
    if not threat["threat"] or not threat["protection"]:
        return "it is incomplete"
    if not threat["tests"]:
        return "it names no test"
    named = (test.partition("::") for test in threat["tests"])
    return ", ".join(f"{file} has no {test}" for file, _, test in named if test not in functions(file))


def test_every_threat_names_existing_tests() -> None:
    assert {each["threat"]: found for each in THREATS if (found := defect(each))} == {}
    assert len({each["threat"] for each in THREATS}) == len(THREATS) > 70


@pytest.mark.parametrize(
    ("protection", "tests", "message"),
    [
        ("", ["security/test_threat_model.py::test_planted_defect_is_found"], "incomplete"),
        ("b", [], "names no test"),
        ("b", ["security/test_threat_model.py::test_nothing"], "has no test_nothing"),
        ("b", ["no_file.py::test_a"], "has no test_a"),
    ],
)
def test_planted_defect_is_found(protection: str, tests: list[str], message: str) -> None:
    assert message in defect({"threat": "a", "protection": protection, "tests": tests})
