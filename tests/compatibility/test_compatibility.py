"""`make compatibility`: the page is generated, versions come before those of the environment, and failures are compared with known ones."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from compatibility import page
from compatibility.parts import HERE, PROJECT, Part, known_failures, outcomes, parts, problems

RESULT = {"date": "2026-11-01", "tests": 3, "passed": 2, "known": {"a::test_views": "views"}}


def test_page_is_the_one_that_the_results_give() -> None:
    assert page.PAGE.read_text() == page.rendered(parts(), page.read_results())


def test_recorded_results_are_those_of_listed_versions_without_unknown_failures() -> None:
    listed = {f"{part.name} {version}" for part in parts().values() for version in part.versions}
    for key, result in page.read_results().items():
        assert key in listed
        assert result["known"] == known_failures(*key.split())
        assert result["passed"] + len(result["known"]) == result["tests"]


def test_known_failures_are_of_listed_versions_and_existing_tests() -> None:
    for key, known in tomllib.loads((HERE / "known_failures.toml").read_text()).items():
        name, version = key.split()
        part = parts()[name]
        assert version in part.versions
        files = [each for place in part.tests for each in [PROJECT / place, *(PROJECT / place).rglob("test_*.py")]]
        text = "".join(each.read_text() for each in files if each.is_file())
        for test in known:
            assert f"def {test.partition('::')[2].partition('[')[0]}(" in text


def test_page_shows_what_a_version_lacks_and_which_was_not_run() -> None:
    part = Part("thing", "A thing", ["tests/x.py"], ["1", "2"], ["thing"])
    text = page.rendered({"thing": part}, {"thing 1": RESULT})
    assert "## A thing\n" in text
    assert "| 1 | 2 of 3 | views | 2026-11-01 |\n| 2 | not run yet | | |" in text


def test_result_replaces_that_of_the_last_run(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    page.record("thing 2", RESULT, file)
    page.record("thing 1", RESULT, file)
    page.record("thing 2", {**RESULT, "passed": 1}, file)
    assert [(key, result["passed"]) for key, result in page.read_results(file).items()] == [
        ("thing 1", 2),
        ("thing 2", 1),
    ]


def test_tests_run_with_the_installed_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "six-1"
    folder.mkdir()
    (folder / "some_package.py").write_text("VERSION = 1\n")
    test = tmp_path / "test_it.py"
    test.write_text(
        "import some_package, pytest\n"
        "def test_version(): assert some_package.VERSION == 1\n"
        "def test_other(): assert some_package.VERSION == 2\n"
        "def test_skipped(): pytest.skip('for a reason')\n"
    )
    monkeypatch.setattr("compatibility.parts.CACHE", tmp_path)
    found = Part("six", "Six", [str(test), "--rootdir", str(tmp_path), "-c", "/dev/null"], ["1"], ["six"]).run("1")
    assert list(found) == ["test_it::test_version", "test_it::test_other"]
    assert (found["test_it::test_version"], found["test_it::test_other"].split("\n")[0]) == ("", "assert 1 == 2")


def test_failures_are_compared_with_known_ones() -> None:
    found = {"a::one": "", "a::two": "assert 1 == 2", "a::three": "no such column"}
    assert problems(found, {"a::two": "old", "a::three": "old"}) == []
    assert problems(found, {"a::two": "old"}) == ["failed: a::three: no such column"]
    assert problems(found, {"a::one": "old", "a::two": "old", "a::three": "old"}) == [
        "a::one is listed in known_failures.toml, but passes: remove it"
    ]


def test_errors_of_fixtures_and_of_collection_are_failures(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testsuite><testcase classname="tests.a" name="one"><error message="no server"/></testcase>'
        '<testcase classname="tests.a" name="two"><skipped/></testcase></testsuite></testsuites>'
    )
    assert outcomes(report) == {"a::one": "no server"}
