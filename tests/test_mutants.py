"""The mutation tests of `make mutants`: the sample, the selection of tests, and a run on a small project."""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
MODULE = "src/skiway/metastore/gc/ages.py"
SCRIPT = ROOT / "scripts" / "mutants"

CODE = """
from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 1 + 1

__all__ = ["is_old", "swept"]


def is_old(age: int | None, least: int = 3) -> bool:
    return age is not None and age >= least


def swept(ages: list[int]) -> list[int]:
    kept = []
    for age in ages:
        if not is_old(age):
            kept.append(age)
    return kept
"""

TESTS = """
from skiway.metastore.gc.ages import is_old, swept

def test_age():
    assert is_old(4) and not is_old(2)

def test_swept():
    assert swept([1, 5]) == [1]
"""


@pytest.fixture
def sites(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _imported("sites", monkeypatch)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _imported("running", monkeypatch)


@pytest.fixture
def recording(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return _imported("recording", monkeypatch)


def _imported(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT))
    for each in ("sites", "recording", "running"):  # afterwards, modules of other tests may have these names
        monkeypatch.delitem(sys.modules, each, raising=False)
    return import_module(name)


def changes(sites: ModuleType, code: str, seed: str = "1") -> dict[str, str]:
    """The changed lines of all mutants of a module, by their rank."""
    found = sorted(sites.sites_of(sites.Module("a.py", code), seed=seed), key=lambda each: each.rank)
    made = [(each.rank, each.mutant()) for each in found]
    return {rank: f"{mutant.was} -> {mutant.now}" for rank, mutant in made if mutant is not None}


def test_mutants_are_plausible_mistakes(sites: ModuleType) -> None:
    assert sorted(changes(sites, CODE).values()) == [
        "def is_old(age: int | None, least: int = 3) -> bool: -> def is_old(age: int | None, least: int = 4) -> bool:",
        "for age in ages: -> for age in []:",
        "if not is_old(age): -> if  is_old(age):",
        "if not is_old(age): -> if not not is_old(age):",
        "kept.append(age) -> pass",
        "return age is not None and age >= least -> return age is None and age >= least",
        "return age is not None and age >= least -> return age is not None and age > least",
        "return age is not None and age >= least -> return age is not None or age >= least",
    ]


def test_sample_depends_on_the_seed_and_not_on_other_code(sites: ModuleType) -> None:
    first = changes(sites, CODE)
    assert changes(sites, CODE) == first
    assert list(changes(sites, CODE, seed="2")) != list(first)
    longer = changes(sites, CODE.replace("def is_old", "def other(x: int) -> bool:\n    return x < 5\n\n\ndef is_old"))
    assert [each for each in longer if each in first] == list(first)


def test_equivalent_mutants_are_still_in_the_code_and_have_reasons() -> None:
    listed = tomllib.loads((SCRIPT / "equivalent.toml").read_text())["mutant"]
    for each in listed:
        lines = {line.strip() for line in (ROOT / each["file"]).read_text().splitlines()}
        assert set(map(str.strip, each["was"].splitlines())) <= lines, each
        assert each["was"] != each["now"]
        assert each["reason"].endswith(".")


def test_fastest_tests_of_a_line_come_first(sites: ModuleType, recording: ModuleType) -> None:
    module = sites.Module("src/a.py", CODE)
    line = CODE.splitlines().index("    return age is not None and age >= least") + 1
    seconds = {"fast": 0.1, "slow": 2.0, "other": 0.2, "slower": 30.0}
    lines = {"src/a.py": {str(line): ["slow", "slower", "fast"], str(line - 1): ["", "other"]}}
    coverage = recording.Coverage(seconds, lines)
    assert coverage.tests_for(module, line, limit_s=60) == ["fast", "slow"]
    assert coverage.tests_for(module, line, limit_s=1) == ["fast"]
    assert coverage.tests_for(module, line + 5, limit_s=60) == ["fast", "other", "slow"], "no test runs the line itself"
    assert recording.Coverage(seconds, {}).tests_for(module, line, limit_s=60) == []


def test_tests_of_the_module_run_although_faster_ones_take_all_the_time(
    sites: ModuleType, recording: ModuleType
) -> None:
    module = sites.Module("src/a.py", CODE)
    line = CODE.splitlines().index("    return age is not None and age >= least") + 1
    broad = [f"broad {number:02}" for number in range(40)]
    seconds = {**dict.fromkeys(broad, 0.5), "own": 3.0, "slow own": 20.0}
    lines = {"src/a.py": {str(line): [*broad, "own", "slow own"]}, "src/b.py": {"1": broad, "2": broad}}
    chosen = recording.Coverage(seconds, lines).tests_for(module, line, limit_s=10)
    assert chosen == [*broad[:14], "own"], "the fastest come first"
    assert recording.Coverage(seconds, lines).tests_for(module, line, limit_s=60) == [*broad, "own"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one module and its tests."""
    project = tmp_path / "project"
    module = project / MODULE
    module.parent.mkdir(parents=True)
    module.write_text(CODE)
    for package in list(module.parents)[:3]:
        (package / "__init__.py").touch()
    (project / "tests").mkdir()
    (project / "tests" / "test_ages.py").write_text(TESTS)
    subprocess.run(["git", "init", "--quiet", project], check=True)
    # The package of the project hides ours, which plugins would import.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "pytest_timeout")
    return project


@pytest.mark.full
def test_mutants_run_in_copies_until_the_time_is_up(
    project: Path, tmp_path: Path, sites: ModuleType, running: ModuleType, recording: ModuleType
) -> None:
    tree = tmp_path / "tree"
    running.copied(project, tree)
    coverage = recording.record([tree], [("tests",)], tmp_path)
    assert sorted(coverage.seconds) == ["tests/test_ages.py::test_age", "tests/test_ages.py::test_swept"]
    all_mutants = [each.mutant() for each in sites.sites_of(sites.Module(MODULE, CODE), seed="1")]
    wanted = {"pass", "return age is not None and age > least"}
    chosen = [("gc", each) for each in all_mutants if each.now in wanted]
    options = {"limit_s": 60, "report": lambda _: None}
    ran, left = running.run_all(chosen, [tree], coverage, deadline=time.monotonic() + 600, **options)
    assert {(each.mutant.now, each.result) for each in ran} == {
        ("pass", "killed"),
        ("return age is not None and age > least", "survived"),
    }
    assert left == []
    assert (project / MODULE).read_text() == (tree / MODULE).read_text() == CODE
    ran, left = running.run_all(chosen, [tree], coverage, deadline=time.monotonic() - 1, **options)
    assert (ran, left) == ([], chosen)


@pytest.mark.full
def test_only_changed_tests_are_recorded_again(
    project: Path, tmp_path: Path, running: ModuleType, recording: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree, ran = tmp_path / "tree", []
    run = recording._recorded

    def noted(tree: Path, tests: Sequence[str], report: Path) -> object:
        ran.append(list(tests))
        return run(tree, tests, report)

    monkeypatch.setattr(recording, "_recorded", noted)

    def recorded() -> tuple[list[str], list[str]]:
        running.copied(project, tree)
        found = recording.record([tree], [("tests",)], tmp_path)
        line = CODE.splitlines().index("    return age is not None and age >= least") + 1
        return sorted(found.seconds), sorted(found.lines[MODULE][str(line)])

    old = [f"tests/test_ages.py::{name}" for name in ("test_age", "test_swept")]
    other = project / "tests" / "test_others.py"
    assert recorded() == (old, old)
    assert recorded() == (old, old)
    other.write_text(TESTS.replace("test_age", "test_other_age"))
    new = [f"tests/test_others.py::{name}" for name in ("test_other_age", "test_swept")]
    assert recorded() == ([*old, *new], [*old, *new])
    assert ran == [["tests"], ["tests/test_others.py"]]
    other.unlink()
    assert recorded() == (old, old), "tests that are gone are not selected"
    (project / MODULE).write_text(CODE + "\n")
    assert recorded() == (old, old)
    assert ran[2:] == [["tests"]], "lines may have moved"
