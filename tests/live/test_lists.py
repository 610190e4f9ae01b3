"""The committed lists of the live tests are complete and valid. These tests need no client."""

from __future__ import annotations

import re
from collections import Counter

from live.all_cases import CASES
from live.known import read_known
from live.printed import Excluded, Scene, printed_statements, read_excluded, read_scenes
from live.servers import TARGETS

STATEMENTS = list(printed_statements())


SCENES, EXCLUDED = read_scenes(), read_excluded()
HOMES: list[Scene | Excluded] = [*SCENES, *EXCLUDED]


def test_every_printed_statement_is_run_or_excluded() -> None:
    homeless = [str(each) for each in STATEMENTS if not any(home.contains(each) for home in HOMES)]
    assert homeless == [], "add a scene or an exclusion to printed.toml"


def test_no_statement_is_in_two_scenes() -> None:
    assert [str(each) for each in STATEMENTS if sum(scene.contains(each) for scene in SCENES) > 1] == []


def test_no_scene_or_exclusion_is_left_over() -> None:
    assert [each for each in HOMES if not any(map(each.contains, STATEMENTS))] == []


def test_every_statement_that_must_fail_is_printed() -> None:
    texts = {(each.page, each.sql) for each in STATEMENTS}
    assert [sql for scene in SCENES for sql in scene.fails if (scene.page, sql) not in texts] == []


def test_every_exclusion_has_a_reason() -> None:
    assert all(each.reason for each in EXCLUDED)


def test_statements_are_found_on_all_kinds_of_pages() -> None:
    pages = Counter(statement.page.partition("/")[0] for statement in STATEMENTS)
    assert set(pages) >= {"README.md", "docs", "examples", "skiway demo"}
    assert pages["skiway demo"] >= 6
    assert pages["examples"] >= 40
    assert pages["docs"] >= 30


def test_every_known_difference_is_valid() -> None:
    for known in read_known():
        assert known.reason
        assert set(known.targets) <= set(TARGETS)
        re.compile(known.found)
        for pattern in known.cases:
            regex = re.compile(re.escape(pattern).replace(r"\*", ".*").replace(r"\[\[\]", r"\["))
            assert any(regex.fullmatch(case.name) for case in CASES), f"{pattern} is the name of no case"


def test_names_of_cases_are_unique() -> None:
    assert [name for name, count in Counter(case.name for case in CASES).items() if count > 1] == []
