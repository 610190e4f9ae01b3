"""The script that lists behaviors without a test."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("missing_behaviors", PROJECT / "scripts" / "missing_behaviors.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_script_reads_numbered_lines(script):
    page = "# Behaviors\n\nIntroduction\n\n## Stores\n\n1. one\n12. twelve\n\nno 3.\n"
    assert script.behaviors(page) == {1: "one", 12: "twelve"}


def test_script_finds_claims_in_decorators(script, tmp_path):
    (tmp_path / "test_it.py").write_text(
        "@behavior(3, 4)\n@other(5)\ndef test_a(): ...\n\n@pytest.mark.behavior(6)\ndef test_b(): ...\n"
    )
    assert sorted(script.claims(tmp_path)) == [3, 4, 6]


def test_tests_claim_only_listed_behaviors(script):
    known = script.behaviors(script.LIST.read_text())
    claimed = set(script.claims(PROJECT / "tests"))
    assert sorted(known) == list(range(1, 87))
    assert {24, 36, 64} <= claimed <= known.keys()
