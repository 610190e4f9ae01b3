"""The cases of statements of `tests/live` on a server through `skiway.duckdb`, and on plain DuckDB, with DuckDB 2.0.

`differences.toml` lists the known differences with reasons. Any other one fails, and so does an entry that no longer applies.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from any_duckdb.versions import VERSIONS, installed
from live.clients import Session, server_environment
from live.comparing import Difference, differences, run_cases
from live.statement_cases import statement_cases
from skiway.airport import Server
from skiway.airport.memory import MemoryCatalog

PROGRAM = Path(__file__).with_name("session.py")
KNOWN = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())["known"]
APPLICABLE = [case for case in statement_cases() if "memory" in case.targets]


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


@pytest.mark.timeout(1200)
def test_statements_do_what_they_do_in_plain_duckdb(tmp_path: Path) -> None:
    folder = installed(VERSIONS[-1], tmp_path)
    with Server(MemoryCatalog("db"), port=0) as server:
        found = run_cases(
            APPLICABLE, lambda settings: session(folder, server.location, (), settings), attach="SELECT 1"
        )
    attach = ("ATTACH ':memory:' AS db",)
    plain = run_cases(APPLICABLE, lambda settings: session(folder, "", attach, settings))
    every = [each for case in APPLICABLE for each in differences(case, "lake", plain[case.name], found[case.name])]
    seen = {explanation(each) for each in every}
    unexplained = [str(each) for each in every if explanation(each) is None]
    assert not unexplained, f"{len(unexplained)} of {sum(map(len, found.values()))}\n" + "\n".join(unexplained)
    unseen = [known["reason"] for number, known in enumerate(KNOWN) if number not in seen]
    assert not unseen, f"differences.toml has entries that explain nothing any more: {unseen}"
