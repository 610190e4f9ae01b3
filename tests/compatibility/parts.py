"""The parts of `parts.toml`, and how the tests of a part run with one of its versions."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from any_duckdb.versions import DUCKDB, INSTALL

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parents[1]
CACHE: Final = PROJECT / ".cache" / "compatibility"
UV: Final = (sys.executable, "-m", "uv")

_WITH_FIRST: Final = "import sys, pytest; sys.path.insert(0, sys.argv[1]); sys.exit(pytest.main(sys.argv[2:]))"
"""Other packages come first in the process of the tests, and not in servers that it starts."""


@dataclass(frozen=True, slots=True)
class Part:
    """A program or library that Skiway works with, and tests that show it. Without packages, it is Python itself.

    With `everywhere`, the processes that the tests start have the packages, too.
    """

    name: str
    title: str
    tests: Sequence[str]
    versions: Sequence[str]
    packages: Sequence[str] = ()
    select: str = ""
    releases: Mapping[str, str] = field(default_factory=dict)
    everywhere: bool = False

    def run(self, version: str) -> dict[str, str]:
        """Run the tests with this version: the reason of each failure, which is empty if the test passed."""
        folder = CACHE / f"{self.name}-{version}"
        report = folder.with_suffix(f"{folder.suffix}.xml")
        report.unlink(missing_ok=True)
        options = [*self.tests, "-q", "-p", "no:cacheprovider", "--junitxml", str(report), "-W", "default"]
        options += ["-k", self.select] if self.select else []
        if self.packages:
            self._install(version, folder)
            command = [sys.executable, "-c", _WITH_FIRST, str(folder), *options]
            if self.everywhere:
                command = [str(_with_first(folder)), "-m", "pytest", *options]
        else:
            command = [str(self._environment(version, folder)), "-m", "pytest", *options]
        env = {**os.environ, "SKIWAY_TESTS": "" if self.packages else "quick"}
        if self.everywhere:
            env["CI"] = ""  # tests that need extensions of another version are skipped
        if self.name == "duckdb":
            env[DUCKDB] = str(folder)
        ended = subprocess.run(command, check=False, cwd=PROJECT, env=env)
        if not report.exists():
            raise SystemExit(f"the tests of {self.name} {version} ended with {ended.returncode} and without a report")
        return outcomes(report)

    def _install(self, version: str, folder: Path) -> None:
        if folder.is_dir():
            return
        release = self.releases.get(version, version)
        target = folder.with_name(f"{folder.name}.new")
        subprocess.run(
            [*INSTALL, "--target", str(target), *(f"{each}=={release}" for each in self.packages)], check=True
        )
        target.rename(folder)

    def _environment(self, version: str, folder: Path) -> Path:
        """The interpreter of an environment of this Python with the project and what its tests need."""
        python = folder / "bin" / "python"
        if not (folder / "ready").exists():
            made = subprocess.run([*UV, "venv", "--quiet", "--clear", "--python", version, str(folder)], check=False)
            if made.returncode:
                raise SystemExit(f"there is no Python {version}: install it, and put python{version} on PATH")
            subprocess.run(
                [*UV, "pip", "install", "--quiet", "--python", str(python), "-e", f"{PROJECT}[test]"], check=True
            )
            (folder / "ready").touch()
        return python


def _with_first(folder: Path) -> Path:
    """The interpreter of an environment in which the packages of a folder come first, and then those of this one."""
    environment = folder.with_name(f"{folder.name}-environment")
    python = environment / "bin" / "python"
    if not python.exists():
        subprocess.run([*UV, "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)], check=True)
        [packages] = environment.glob("lib/python*/site-packages")
        places = (folder, PROJECT / "src", sysconfig.get_path("purelib"))
        (packages / "packages.pth").write_text("".join(f"{place}\n" for place in places))
    return python


def parts() -> dict[str, Part]:
    """All parts, by name."""
    found = tomllib.loads((HERE / "parts.toml").read_text())
    return {name: Part(name, **values) for name, values in found.items()}


def known_failures(part: str, version: str) -> dict[str, str]:
    """The reasons of the failures that are known of a version, by test."""
    found: dict[str, dict[str, str]] = tomllib.loads((HERE / "known_failures.toml").read_text())
    return found.get(f"{part} {version}", {})


def outcomes(report: Path) -> dict[str, str]:
    """The tests of a JUnit report, each with the reason of its failure, which is empty if it passed. Skipped tests are left out."""
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if case.find("skipped") is None:
            reason = "" if problem is None else (problem.get("message") or "failed")
            found[f"{str(case.get('classname')).rpartition('.')[2]}::{case.get('name')}"] = reason
    return found


def problems(found: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """Why a run has failed: failures that are not known, and known ones that are none. Empty if it has not."""
    unknown = [f"failed: {test}: {reason[:300]}" for test, reason in found.items() if reason and test not in known]
    passing = [
        f"{test} is listed in known_failures.toml, but passes: remove it" for test in known if found.get(test) == ""
    ]
    return [*unknown, *passing]
