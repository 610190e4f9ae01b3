"""The cases of `tests/live` on a server through `skiway.duckdb`, and on plain DuckDB, with DuckDB 2.0.

`differences.toml` lists the known differences with reasons. Any other one fails, and so does an entry that no longer applies.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from any_duckdb.versions import VERSIONS, installed
from live.all_cases import CASES
from live.cases import ATTACH_AGAIN, Case
from live.clients import Session, server_environment
from live.comparing import Difference, differences, run_cases
from skiway.airport import Server
from skiway.airport.memory import MemoryCatalog

PROGRAM = Path(__file__).with_name("session.py")
KNOWN = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())["known"]
GROUPS = ("types/default", "types/lossless", "types/nested", "sizes", "names")
"""The cases of these groups, and all others, are tests of their own."""


def session(folder: Path, location: str, first: Sequence[str], settings: Sequence[str]) -> Session:
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    environment = {**server_environment(), "PYTHONPATH": path, "TZ": "UTC", "SKIWAY_LOCATION": location}
    return Session(sys.executable, environment, (*first, "SET TimeZone = 'UTC'", *settings), program=PROGRAM)


def explanation(difference: Difference) -> int | None:
    """The number of the known difference that explains this one."""
    for number, known in enumerate(KNOWN):
        texts = {
            "cases": difference.case,
            "sql": difference.sql,
            "found": difference.found,
            "expected": difference.expected,
        }
        if all(any(fnmatchcase(text, each) for each in known[key]) for key, text in texts.items() if key in known):
            return number
    return None


def cases_of(group: str) -> list[Case]:
    """The cases of a group, or those of no group, without the steps that attach the catalog again."""
    cases = [case for case in CASES if "memory" in case.targets]
    if group:
        cases = [case for case in cases if case.name.startswith(f"{group}/")]
    else:
        cases = [case for case in cases if not case.name.startswith(tuple(f"{group}/" for group in GROUPS))]
    return [replace(case, steps=tuple(step for step in case.steps if step not in ATTACH_AGAIN)) for case in cases]


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", [*GROUPS, ""], ids=[*GROUPS, "others"])
def test_statements_do_what_they_do_in_plain_duckdb(group: str, tmp_path: Path) -> None:
    folder, cases = installed(VERSIONS[-1], tmp_path), cases_of(group)
    with Server(MemoryCatalog("db"), port=0) as server:
        found = run_cases(cases, lambda settings: session(folder, server.location, (), settings), attach="SELECT 1")
    attach = ("ATTACH ':memory:' AS db",)
    plain = run_cases(cases, lambda settings: session(folder, "", attach, settings))
    every = [each for case in cases for each in differences(case, "skiway", plain[case.name], found[case.name])]
    seen = {explanation(each) for each in every}
    unexplained = [str(each) for each in every if explanation(each) is None]
    assert not unexplained, f"{len(unexplained)} of {sum(map(len, found.values()))}\n" + "\n".join(unexplained)
    names = [case.name for case in cases]
    unseen = [
        known["reason"]
        for number, known in enumerate(KNOWN)
        if number not in seen and any(fnmatchcase(name, each) for name in names for each in known["cases"])
    ]
    assert not unseen, f"differences.toml has entries that explain nothing any more: {unseen}"
