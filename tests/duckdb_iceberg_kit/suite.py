"""The suite of DuckDB's iceberg extension for catalogs: its files, the skip lists of other catalogs, and our results."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from duckdb_iceberg_kit.running import Outcome

__all__ = ["COMMIT", "NEED_LARGE", "TESTS", "check_out", "groups", "known_failures", "problems", "report"]

COMMIT: Final = "45163a28e"
"""The commit of the extension for DuckDB 1.5.5, which `duckdb_extensions()` shows as its version."""

TESTS: Final = "test/sql/local/catalog_test_config_setup/catalog_agnostic"
_TABLE: Final = re.compile(r'my_datalake\.(?:"?default"?)\.("?\w+)', re.IGNORECASE)
_SCHEMA: Final = re.compile(r"drop schema (?:if exists )?(my_datalake\.\w+)", re.IGNORECASE)
_UNQUALIFIED: Final = re.compile(
    r"(?:table(?: if (?:not )?exists)?|into|from|update|join)\s+([a-z_]\w*)", re.IGNORECASE
)


NEED_LARGE: Final = (f"{TESTS}/irc_catalog_read_deletes.test", f"{TESTS}/test_tpch.test")
"""Files that read tables at scale factor 1."""


def check_out(repository: Path, commit: str, folder: Path) -> None:
    """Write the tests and the scripts of a commit into a folder. Files whose content the repository lacks are left out."""
    listed = _git(repository, "ls-tree", "-r", "-z", commit, "test", "scripts", "data").stdout
    files = {path: entry.split()[2] for entry, _, path in (line.partition("\t") for line in listed.split("\0")[:-1])}
    contents = ("--batch-check=%(objectname) %(objecttype)",)
    known = _git(repository, "cat-file", *contents, given="\n".join(files.values())).stdout.splitlines()
    missing = {line.split()[0] for line in known if line.endswith("missing")}
    for path, blob in files.items():
        target = folder / path
        if blob in missing or target.exists():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as file:
            subprocess.run(["git", "-C", str(repository), "cat-file", "blob", blob], stdout=file, check=True)


def _git(repository: Path, *arguments: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=True)


def groups(root: Path) -> list[list[str]]:
    """The test files. Those that name the same table, or drop the same schema, are in one group, because they must not run at once."""
    merged: list[tuple[set[str], list[str]]] = []
    for path in sorted((root / TESTS).rglob("*.test")):
        text = path.read_text().lower()
        names = {*_TABLE.findall(text), *_SCHEMA.findall(text)} | (
            set(_UNQUALIFIED.findall(text)) if "use my_datalake" in text else set()
        )
        sharing = [group for group in merged if group[0] & names]
        merged = [group for group in merged if not group[0] & names]
        files = [file for _, others in sharing for file in others]
        merged.append((names.union(*(others for others, _ in sharing)), [*files, str(path.relative_to(root))]))
    return sorted((sorted(files) for _, files in merged), key=len, reverse=True)


def known_failures() -> dict[str, str]:
    """The files that are not expected to pass, with the reasons."""
    document = tomllib.loads(Path(__file__).with_name("known_failures.toml").read_text())
    return {f"{TESTS}/{name}": reason for name, reason in document["failures"].items()}


def problems(outcomes: Sequence[Outcome], known: Mapping[str, str]) -> list[str]:
    """Why a complete run has failed; none if it has not."""
    failed = {outcome.file: outcome.reason for outcome in outcomes if outcome.result == "failed"}
    passed = {outcome.file for outcome in outcomes if outcome.result == "passed"}
    return [
        *(f"failed: {file}: {reason[:400]}" for file, reason in failed.items() if file not in known),
        *(f"{file} is listed in known_failures.toml, but passes: remove it" for file in known if file in passed),
    ]


def report(root: Path, outcomes: Sequence[Outcome], known: Mapping[str, str]) -> str:
    """The figures, the reasons of known failures, and how many files each other catalog skips."""
    of = {result: [each for each in outcomes if each.result == result] for result in ("passed", "failed", "not run")}
    lines = [f"{len(outcomes)} files: " + ", ".join(f"{len(files)} {result}" for result, files in of.items())]
    lines += [
        f"  failed as known: {outcome.file}: {known[outcome.file]}" for outcome in of["failed"] if outcome.file in known
    ]
    lines += [f"  not run: {outcome.file}: {outcome.reason}" for outcome in of["not run"]]
    passed = {outcome.file for outcome in of["passed"]}
    for config in sorted((root / "test" / "configs").glob("*.json")):
        lists = json.loads(config.read_text()).get("skip_tests", [])
        skipped = {
            path for each in lists for path in each["paths"] if path.startswith(TESTS) and (root / path).exists()
        }
        if skipped:
            lines.append(f"  {config.stem} skips {len(skipped)}, of which Skiway passes {len(skipped & passed)}")
    return "\n".join(lines)
