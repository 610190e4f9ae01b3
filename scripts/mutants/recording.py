"""Record which tests run which lines, and select the tests of a mutant by that."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, Final

from sites import PACKAGES, Module

__all__ = ["TESTS", "Coverage", "environment", "record"]

_METASTORE: Final = (
    "connectors",
    "events",
    "gc",
    "managed",
    "planning",
    "queries",
    "reconcile",
    "statistics",
    "transactions",
)
TESTS: Final = (
    ("tests/lake", "tests/authorization/test_airport_matrix.py"),
    ("tests/formats", *(f"tests/metastore/{part}" for part in _METASTORE), "tests/rest"),
)
"""The tests that are selected from, in groups that take about the same time."""

SLOW: Final = (
    "tests/formats/test_damage.py",
    "tests/formats/test_memory_bound.py",
    "tests/lake/test_memory_bound.py",
    "tests/lake/test_vanishing_clients.py",
)
"""Tests that are not selected from: they try thousands of inputs, or run in processes of their own."""

SLOWEST_S: Final = 15.0
"""Tests that take longer are not run for a mutant, unless no other test runs its line."""


def environment(tree: Path, **more: str) -> dict[str, str]:
    """The tests import the copy, not the installed package, and Hypothesis tries the same examples for all mutants."""
    path = os.pathsep.join([str(tree / "src"), str(Path(__file__).parent)])
    return {**os.environ, "PYTHONPATH": path, "CI": "true", **more}


@dataclass(frozen=True)
class Coverage:
    """Which tests run which lines, and how long they take."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[str, Sequence[str]]]

    def tests_for(self, module: Module, line: int, *, limit_s: float) -> list[str]:
        """The tests that run a line, the fastest first, as many as fit into `limit_s`; at least one.

        If not all of them fit, half of the time is for the tests of the module: those that run little other code. A line
        that runs on import belongs to the tests that run the definition, or else any line of the module.
        """
        own, depending = module.statement(line)
        by_line = self.lines.get(module.path, {})
        for lines in (own, depending, range(len(module.lines) + 1)):
            found = {test for number in lines for test in by_line.get(str(number), ()) if test}
            if found:
                return self._fitting(found, module.path, limit_s)
        return []

    def _fitting(self, tests: Iterable[str], path: str, limit_s: float) -> list[str]:
        fastest = sorted(tests, key=lambda test: (self.seconds[test], test))
        quick = [test for test in fastest if self.seconds[test] <= SLOWEST_S] or fastest[:1]
        focused = sorted(quick, key=lambda test: -self._run_by[path][test] / self._run_by[""][test])
        chosen = set(self._first(focused, limit_s / 2))
        left_s = limit_s - sum(self.seconds[test] for test in chosen)
        chosen.update(self._first([test for test in quick if test not in chosen], left_s))
        return [test for test in quick if test in chosen] or quick[:1]

    def _first(self, tests: Iterable[str], limit_s: float) -> Iterator[str]:
        total = 0.0
        for test in tests:
            total += self.seconds[test]
            if total > limit_s:
                return
            yield test

    @cached_property
    def _run_by(self) -> Mapping[str, Counter[str]]:
        """How many lines each test runs, by file, and in all files as that of no name."""
        found = {path: Counter(chain.from_iterable(by_line.values())) for path, by_line in self.lines.items()}
        return {**found, "": sum(found.values(), Counter())}


def record(trees: Sequence[Path], groups: Sequence[Sequence[str]], cache: Path) -> Coverage:
    """Run the tests once without mutants, a group per tree, and record what they run.

    If only tests have changed since the last time, only the modules of these tests run.
    """
    stored = cache / f"coverage-{_digest(repr(groups).encode())}.json"
    code, tests = _digests(trees[0], groups)
    earlier = json.loads(stored.read_text()) if stored.exists() else {}
    if earlier.get("code") == code:
        changed = sorted(path for path in tests if earlier["tests"].get(path) != tests[path])
        known = tests.keys() - changed
        parts = [_only(earlier, known), *_ran(trees, [changed[n :: len(trees)] for n in range(len(trees))], cache)]
    else:
        print("recording which tests run which lines, which takes some minutes", flush=True)
        parts = _ran(trees, groups, cache)
    seconds: dict[str, float] = {}
    lines: dict[str, dict[str, list[str]]] = {}
    for each in parts:
        seconds |= each["seconds"]
        for file, by_line in each["lines"].items():
            for line, found in by_line.items():
                lines.setdefault(file, {}).setdefault(line, []).extend(found)
    stored.write_text(json.dumps({"code": code, "tests": tests, "seconds": seconds, "lines": lines}))
    return Coverage(seconds, lines)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def _digests(tree: Path, groups: Sequence[Sequence[str]]) -> tuple[str, dict[str, str]]:
    """A digest of the code, which includes what tests share, and of each module of tests in the groups."""
    tests: dict[str, str] = {}
    code = [_digest(Path(__file__).with_name("covering.py").read_bytes())]
    for file in sorted((*(tree / "src").rglob("*.py"), *(tree / "tests").rglob("*.py"))):
        path, found = file.relative_to(tree).as_posix(), _digest(file.read_bytes())
        if not file.name.startswith("test_"):
            code += [path, found]
        elif path not in SLOW and any(path == each or path.startswith(f"{each}/") for each in chain(*groups)):
            tests[path] = found
    return _digest("\n".join(code).encode()), tests


def _only(recorded: Mapping[str, Any], modules: Iterable[str]) -> Mapping[str, Any]:
    """What was recorded of these modules of tests, and what runs on import."""
    kept = {"", *modules}
    return {
        "seconds": {test: taken for test, taken in recorded["seconds"].items() if test.partition("::")[0] in kept},
        "lines": {
            file: {line: [test for test in found if test.partition("::")[0] in kept] for line, found in by_line.items()}
            for file, by_line in recorded["lines"].items()
        },
    }


def _ran(trees: Sequence[Path], groups: Sequence[Sequence[str]], cache: Path) -> list[Any]:
    def recorded(number: int) -> Any:
        return _recorded(trees[number % len(trees)], groups[number], cache / f"tests-{number}")

    with ThreadPoolExecutor(len(trees)) as threads:
        return list(threads.map(recorded, [number for number, group in enumerate(groups) if group]))


def _recorded(tree: Path, tests: Sequence[str], report: Path) -> Any:
    watched = [
        str(tree / "src/skiway" / place / "*") if "." not in place else str(tree / "src/skiway" / place)
        for places in PACKAGES.values()
        for place in places
    ]
    variables = environment(tree, COVERED_FILES=os.pathsep.join(watched), COVERED_REPORT=f"{report}.json")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "covering", "-p", "no:cacheprovider", "--timeout", "900"]
    result, log = Path(f"{report}.json"), Path(f"{report}.log")
    result.unlink(missing_ok=True)
    with log.open("wb") as output:
        ignored = [f"--ignore={each}" for each in SLOW]
        subprocess.run([*command, *ignored, *tests], cwd=tree, env=variables, stdout=output, stderr=output, check=False)
    if not result.exists():
        raise SystemExit(f"the tests cannot be recorded; see {log}")
    return json.loads(result.read_text())
