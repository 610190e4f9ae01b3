"""The kit's own parts: it parses and runs test files, groups them, and says which results are news."""

from __future__ import annotations

from pathlib import Path

import pytest

from duckdb_iceberg_kit.comparison import is_message, mismatch
from duckdb_iceberg_kit.records import Directive, Loop, Query, Statement, parse
from duckdb_iceberg_kit.running import Outcome, Settings, run_file
from duckdb_iceberg_kit.suite import TESTS, groups, problems, report

SETTINGS = Settings(environment={"CATALOG": "skiway"}, replaced={"http://suite": "http://ours"})


def outcome_of(folder: Path, text: str) -> Outcome:
    (folder / "a.test").write_text(text)
    return run_file(str(folder / "a.test"), SETTINGS)


def test_records_have_their_lines_sql_and_results() -> None:
    text = "# a comment\nrequire parquet\n\nstatement error con1\nSELECT\n1\n----\n<REGEX>:.*a.*\n\n"
    text += "query II rowsort label\nFROM t\n----\n1\t2\n"
    require, statement, query = parse(text)
    assert require == Directive(2, ["require", "parquet"])
    assert statement == Statement(4, "error", "con1", "SELECT\n1", "<REGEX>:.*a.*")
    assert query == Query(10, "II", "rowsort", "", "label", "FROM t", ["1\t2"])


def test_loops_hold_their_bodies() -> None:
    (outer,) = parse("loop i 0 2\nforeach x a b\nstatement ok\nSELECT 1\n\nendloop\nendloop\n")
    assert isinstance(outer, Loop)
    assert (outer.variable, outer.values) == ("i", ["0", "1"])
    (inner,) = outer.body
    assert isinstance(inner, Loop)
    assert inner.values == ["a", "b"]
    assert inner.body == [Statement(3, "ok", "", "SELECT 1", "")]


@pytest.mark.parametrize("text", ["endloop\n", "loop i 0 1\n"])
def test_unbalanced_loops_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="loop"):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "statement ok\nCREATE TABLE t AS FROM range(3) r(i)\n\nquery I\nFROM t\n----\n0\n1\n2\n",
        "query II\nVALUES (1, true), (2, NULL)\n----\n1\t1\n2\tNULL\n",
        "query II\nVALUES (1, 'a b'), (2, '')\n----\n1\na b\n2\n(empty)\n",
        "query R\nSELECT 2.001::DOUBLE\n----\n2.0\n",
        "query I valuesort\nFROM range(3) t(i) ORDER BY i DESC\n----\n0\n1\n2\n",
        "query I nosort same\nSELECT 1\n----\n\nquery I nosort same\nSELECT 1\n----\n",
        "statement ok\nCREATE TABLE t (i INT)\n\nquery I\nINSERT INTO t VALUES (1), (2)\n----\n2\n",
        "statement error\nFROM nothing\n----\n<REGEX>:.*nothing does not exist.*\n",
        "statement ok\nCREATE TABLE t (i INT)\n\nloop i 0 3\n\nstatement ok\nINSERT INTO t VALUES (${i})\n\nendloop\n\n"
        "query I\nSELECT sum(i) FROM t\n----\n3\n",
        "statement ok\nCREATE TABLE t (i INT)\n\nconcurrentloop i 0 3\n\nstatement ok\nINSERT INTO t VALUES (${i})\n\nendloop\n\n"
        "query I\nSELECT sum(i) FROM t\n----\n3\n",
        "statement ok con1\nBEGIN\n\nstatement ok con1\nCREATE TABLE t (i INT)\n\nstatement error con2\nFROM t\n\n",
        "query I\nSELECT 'http://suite/v1'\n----\nhttp://ours/v1\n",
        "mode skip\n\nstatement ok\nwrong\n\nmode unskip\n\nskipif duckdb\nstatement ok\nwrong\n",
        "require-env CATALOG skiway\n",
        "query I\nSELECT 170141183460469231731687303715884105727::HUGEINT\n----\n170141183460469231731687303715884105727\n",
    ],
)
def test_correct_files_pass(tmp_path: Path, text: str) -> None:
    assert outcome_of(tmp_path, text).result == "passed"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("query I\nSELECT 1\n----\n2\n", "line 1: row 1: the file expects '2', the result has '1'"),
        ("query I\nFROM range(2)\n----\n0\n", "expects 1 rows, the result has 2"),
        ("query I\nSELECT 1\n----\n", "expects 0 rows"),
        ("query R\nSELECT 2.1::DOUBLE\n----\n2.0\n", "'2.1'"),
        (
            "query I nosort same\nSELECT 1\n----\n\nquery I nosort same\nSELECT 2\n----\n",
            "differs from the earlier one",
        ),
        ("statement ok\nFROM nothing\n", "nothing does not exist"),
        ("statement error\nSELECT 1\n", "the statement succeeded"),
        ("statement error\nFROM nothing\n----\nsyntax error\n", "expects 'syntax error'"),
        ("concurrentloop i 0 3\n\nstatement ok\nFROM nothing\n\nendloop\n", "nothing does not exist"),
    ],
)
def test_wrong_results_fail_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    outcome = outcome_of(tmp_path, text)
    assert outcome.result == "failed"
    assert reason in outcome.reason


@pytest.mark.parametrize(
    "line", ["require-env OTHER", "require-env CATALOG polaris", "require no_such_extension", "restart"]
)
def test_files_that_need_what_is_missing_do_not_run(tmp_path: Path, line: str) -> None:
    assert outcome_of(tmp_path, f"{line}\n\nstatement ok\nwrong\n").result == "not run"


def test_patterns_match_the_whole_message() -> None:
    assert is_message("Error: gone\n", "<REGEX>:.*gone.")
    assert not is_message("Error: gone\n", "<REGEX>:.*gone")
    assert is_message("Error", "<!REGEX>:.*gone.*")
    assert mismatch([["abc"]], ["VARCHAR"], ["<REGEX>:a.*"], "") == ""


def test_files_with_a_common_table_are_in_one_group(tmp_path: Path) -> None:
    tests = tmp_path / TESTS
    tests.mkdir(parents=True)
    texts = {
        "a": "my_datalake.default.t1",
        "b": "my_datalake.default.t2",
        "c": "my_datalake.default.t1, my_datalake.default.t3",
    }
    texts |= {"d": "use my_datalake\ninsert into t3", "e": "select 1"}
    for name, text in texts.items():
        (tests / f"{name}.test").write_text(text)
    assert groups(tmp_path) == [[f"{TESTS}/{name}.test" for name in group] for group in ("acd", "b", "e")]


def test_only_news_are_problems(tmp_path: Path) -> None:
    outcomes = [
        Outcome("a", "failed", "why"),
        Outcome("b", "failed"),
        Outcome("c", "passed"),
        Outcome("d", "not run", "flag"),
    ]
    assert problems(outcomes, {"a": "known", "c": "known"}) == [
        "failed: b: ",
        "c is listed in known_failures.toml, but passes: remove it",
    ]
    configs = tmp_path / "test" / "configs"
    configs.mkdir(parents=True)
    (tmp_path / TESTS).mkdir(parents=True)
    (tmp_path / TESTS / "x.test").touch()
    (configs / "peer.json").write_text(f'{{"skip_tests": [{{"paths": ["{TESTS}/x.test", "{TESTS}/gone.test"]}}]}}')
    printed = report(tmp_path, [*outcomes, Outcome(f"{TESTS}/x.test", "passed")], {"a": "known"})
    assert "5 files: 2 passed, 2 failed, 1 not run" in printed
    assert "peer skips 1, of which Skiway passes 1" in printed
