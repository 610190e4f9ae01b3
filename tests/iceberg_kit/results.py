"""The results of Apache's suites, from Maven's reports, and the exclusions."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

__all__ = ["LEAST", "SUITES", "Results", "excluded", "failures", "read_results", "report"]

HERE: Final = Path(__file__).resolve().parent
LEAST: Final = 0.95
"""The share of each suite that must pass."""

SUITES: Final = {"TablesTest": "CatalogTests", "ViewsTest": "ViewCatalogTests"}
"""Our classes that run the suites, and the suites."""


@dataclass(slots=True)
class Results:
    """The names of the tests of a suite by result; failed and skipped tests have reasons."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return len(self.passed) + len(self.failed) + len(self.skipped)


def read_results(folder: Path, suite: str) -> Results:
    """Read the report of a suite; it is empty if the suite did not run."""
    found = Results()
    for file in sorted(folder.glob(f"TEST-*{suite}.xml")):
        for case in ElementTree.parse(file).getroot().iter("testcase"):
            name = str(case.get("name"))
            problem = next((each for each in case if each.tag in ("failure", "error")), None)
            skipped = case.find("skipped")
            if problem is not None:
                found.failed[name] = (problem.get("message") or problem.text or "").strip()
            elif skipped is not None:
                found.skipped[name] = (skipped.get("message") or "").strip()
            else:
                found.passed.append(name)
    return found


def excluded() -> Mapping[str, Mapping[str, str]]:
    """The reasons of the tests that are not expected to pass, by suite and name."""
    listed: dict[str, dict[str, str]] = tomllib.loads((HERE / "exclusions.toml").read_text())
    return listed


def failures(results: Mapping[str, Results], reasons: Mapping[str, Mapping[str, str]], *, complete: bool) -> list[str]:
    """Why the run as a whole has failed; none if it has not. Only a `complete` run is compared with the limits."""
    problems = []
    for ours, suite in SUITES.items():
        found, known = results[ours], reasons.get(suite, {})
        problems += [f"{suite}.{name} failed" for name in found.failed if name not in known]
        problems += [f"{suite}.{name} was skipped" for name in found.skipped if name not in known]
        problems += [f"{suite}.{name} is excluded, but passes: remove it" for name in found.passed if name in known]
        if complete and not found.total:
            problems.append(f"{suite} did not run")
        elif complete and len(found.passed) < LEAST * found.total:
            problems.append(f"{suite}: {len(found.passed)} of {found.total} passed, which is less than {LEAST:.0%}")
    return problems


def report(results: Mapping[str, Results], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """Passed, failed and excluded tests per suite, with reasons."""
    lines = []
    for ours, suite in SUITES.items():
        found, known = results[ours], reasons.get(suite, {})
        others = {**found.failed, **found.skipped}
        unexpected = {name: why for name, why in others.items() if name not in known}
        left_out = [name for name in others if name in known]
        lines.append(f"{suite}: {len(found.passed)} passed, {len(unexpected)} failed, {len(left_out)} excluded")
        lines += [f"  failed: {name}: {why.splitlines()[0][:300] if why else ''}" for name, why in unexpected.items()]
        lines += [f"  excluded: {name}: {known[name]}" for name in left_out]
    return "\n".join(lines)
