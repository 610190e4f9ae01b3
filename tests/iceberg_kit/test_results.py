"""How `make iceberg-kit` judges a run of Apache's suites."""

from __future__ import annotations

from pathlib import Path

import pytest

from iceberg_kit import __main__ as command
from iceberg_kit.results import Results, failures, read_results, report

REPORT = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="skiway.ViewsTest" tests="4">
  <testcase name="passes" classname="skiway.ViewsTest"/>
  <testcase name="fails" classname="skiway.ViewsTest"><failure message="Expecting actual:&#10; 1">trace</failure></testcase>
  <testcase name="breaks" classname="skiway.ViewsTest"><error message="no server">trace</error></testcase>
  <testcase name="leaves" classname="skiway.ViewsTest"><skipped message="not here"/></testcase>
</testsuite>
"""


def run(passed: int, *, failed: tuple[str, ...] = (), skipped: tuple[str, ...] = ()) -> dict[str, Results]:
    views = Results([f"p{each}" for each in range(passed)], dict.fromkeys(failed, "why"), dict.fromkeys(skipped, ""))
    return {"TablesTest": Results(["p"]), "ViewsTest": views}


def test_reports_of_maven_are_read(tmp_path: Path) -> None:
    (tmp_path / "TEST-skiway.ViewsTest.xml").write_text(REPORT)
    found = read_results(tmp_path, "ViewsTest")
    assert (found.passed, found.failed, found.skipped, found.total) == (
        ["passes"],
        {"fails": "Expecting actual:\n 1", "breaks": "no server"},
        {"leaves": "not here"},
        4,
    )
    assert read_results(tmp_path, "TablesTest").total == 0


def test_run_without_failures_succeeds() -> None:
    assert failures(run(20), {}, complete=True) == []
    assert failures(run(19, failed=("x",)), {"ViewCatalogTests": {"x": "r"}}, complete=True) == []


@pytest.mark.parametrize(
    ("results", "excluded", "problem"),
    [
        (run(99, failed=("x",)), {}, "ViewCatalogTests.x failed"),
        (run(99, skipped=("x",)), {}, "ViewCatalogTests.x was skipped"),
        (run(99), {"p3": "r"}, "ViewCatalogTests.p3 is excluded, but passes: remove it"),
        (run(18, failed=("x",)), {"x": "r"}, "ViewCatalogTests: 18 of 19 passed, which is less than 95%"),
        (run(0), {}, "ViewCatalogTests did not run"),
    ],
)
def test_run_fails(results: dict[str, Results], excluded: dict[str, str], problem: str) -> None:
    assert failures(results, {"ViewCatalogTests": excluded}, complete=True) == [problem]


def test_report_has_counts_and_reasons() -> None:
    text = report(run(2, failed=("x", "y")), {"ViewCatalogTests": {"x": "not possible"}})
    assert "ViewCatalogTests: 2 passed, 1 failed, 1 excluded" in text
    assert "excluded: x: not possible" in text
    assert "failed: y: why" in text


def test_missing_tools_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["iceberg_kit"])
    monkeypatch.setattr("shutil.which", lambda tool: None if tool == "mvn" else "/usr/bin/java")
    assert command.main() == 1
    assert "needs Java 17 and Maven; not found: mvn" in capsys.readouterr().out
