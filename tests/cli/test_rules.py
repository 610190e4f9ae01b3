"""`skiway rules` on a running server: definition in YAML and by options, results, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import SPARK_S, Run

TABLE = "lake.quality.orders"


@pytest.fixture
def table(run: Run) -> str:
    """A table with three rows, and without rules."""
    run("namespaces", "create", "lake.quality")
    for rule in run("rules", "list", "--output", "json").json:
        run("rules", "delete", rule["name"])
    run("sql", f"DROP TABLE IF EXISTS {TABLE}")
    assert run("sql", f"CREATE TABLE {TABLE} (id BIGINT, state VARCHAR)").code == 0
    assert run("sql", f"INSERT INTO {TABLE} VALUES (1, 'open'), (2, 'closed'), (3, NULL)").code == 0
    return TABLE


def test_rule_is_created_checked_shown_and_deleted(run: Run, table: str) -> None:
    made = run(
        "rules", "create", "enough", table, "row_count", "--min", "3", "--description", "three", "--output", "json"
    )
    assert (made.json["kind"], made.json["values"], made.json["version"]) == ("row_count", {"min": 3}, 1)
    assert run("rules", "list", table, "--output", "json").json[0]["status"] == "never checked"
    done = run("rules", "check", table, "--output", "json")
    (found,) = done.json
    assert (found["status"], found["method"], found["observed"]) == ("passed", "metadata", "3 rows")
    shown = run("rules", "get", "enough", "--output", "json").json
    assert (shown["status"], shown["table"], shown["severity"]) == ("passed", table, "error")
    assert [each["status"] for each in run("rules", "results", "enough", "--output", "json").json] == ["passed"]
    changed = run("rules", "update", "enough", "--severity", "warning", "--if-version", "1", "--output", "json").json
    assert (changed["severity"], changed["values"], changed["version"]) == ("warning", {"min": 3}, 2)
    assert run("rules", "update", "enough", "--severity", "warning", "--if-version", "1").code == 1
    by_sql = run("sql", "SELECT rule_name, status, observed FROM lake.skiway.quality", "--output", "json").json
    assert by_sql == [{"rule_name": "enough", "status": "passed", "observed": "3 rows"}]
    assert run("rules", "delete", "enough").out == "deleted rule enough\n"
    assert run("rules", "check", table).err == "there are no rules to check\n"


@pytest.mark.parametrize(
    ("rules", "options", "code"),
    [
        ((("min", "1", "error"),), (), 0),
        ((("min", "9", "error"),), (), 1),
        ((("min", "9", "warning"),), (), 0),
        ((("min", "9", "warning"),), ("--strict",), 1),
        ((("null", "", "error"),), (), 3),
        ((("null", "", "error"),), ("--strict",), 1),
        ((("null", "", "warning"),), (), 0),
        ((("null", "", "error"), ("min", "9", "error")), (), 1),
    ],
)
def test_exit_code_is_for_ci(
    run: Run, table: str, rules: tuple[tuple[str, str, str], ...], options: tuple[str, ...], code: int
) -> None:
    for kind, least, severity in rules:
        limits = ("row_count", "--min", least) if kind == "min" else ("null_share", "--column", "state", "--max", "0")
        made = run("rules", "create", f"r-{kind}", table, *limits, "--severity", severity)
        assert made.code == 0, made.err
    assert run("rules", "check", table, *options).code == code
    assert run("rules", "check", *options).code == code


FILE = f"""\
version: 1
rules:
  - name: states
    table: {TABLE}
    allowed_values: {{column: state, values: [open, closed]}}
  - name: columns
    table: {TABLE}
    severity: warning
    schema: {{allow_added: true}}
"""


def test_rules_are_applied_from_a_file(run: Run, table: str, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text(FILE)
    assert run("rules", "apply", file).out == "created rule columns\ncreated rule states\nmade 2 changes\n"
    assert run("rules", "apply", file).out == "the server matches the file\n"
    file.write_text(FILE.replace("[open, closed]", "[open]").replace("severity: warning", "severity: error"))
    assert run("rules", "apply", file).out == "changed rule columns\nchanged rule states\nmade 2 changes\n"
    found = {each["name"]: each for each in run("rules", "list", "--output", "json").json}
    assert found["states"]["values"]["values"] == ["open"]
    assert found["columns"]["values"]["columns"] == {"id": "long", "state": "string"}
    file.write_text(FILE.partition("  - name: columns")[0])
    run("rules", "apply", file)
    assert {each["name"] for each in run("rules", "list", "--output", "json").json} == {"columns", "states"}
    run("rules", "apply", file, "--delete")
    assert {each["name"] for each in run("rules", "list", "--output", "json").json} == {"states"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (FILE.replace("allowed_values", "allowed_vales"), "line 5: rules[0] has no key 'allowed_vales': did you mean"),
        (FILE.replace("schema: {allow_added: true}", ""), "line 6: rule columns has no check: give one of row_count"),
        (FILE.replace(f"table: {TABLE}", "table: lake.quality.nope", 1), "table lake.quality.nope does not exist"),
        (FILE.replace("column: state", "column: colour"), "'colour', which table orders does not have"),
        (FILE + "grants: []\n", "has the section grants, which only skiway setup apply reads"),
        ("version: 1\n", "has no section rules"),
    ],
)
def test_mistakes_in_a_file_are_named_with_their_line(
    run: Run, table: str, tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    done = run("rules", "apply", tmp_path / "rules.yaml")
    assert done.code == 1
    assert message in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "r", TABLE, "null_share", "--column", "age", "--max", "0"), 1, "choose from id, state"),
        (("create", "r", TABLE, "nulls"), 2, "'nulls' is not one of"),
        (("create", "r", TABLE, "row_count", "--min", "many"), 2, "'many' is not a whole number"),
        (("create", "r", TABLE, "row_count", "--column", "id"), 1, "a rule of kind row_count has no column"),
        (("create", "r", TABLE, "range", "--column", "id", "--column", "state"), 2, "is about one column"),
        (("create", "r", TABLE, "freshness", "--max-age", "soon"), 1, "give a duration above zero"),
        (("get", "nope"), 1, "there is no rule nope"),
        (("check", TABLE, "--rule", "nope"), 2, "there is no rule 'nope' of table"),
    ],
)
def test_wrong_requests_say_what_to_do(
    run: Run, table: str, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = run("rules", *arguments)
    assert done.code == code
    assert message in " ".join(done.err.replace("│", " ").split())


@pytest.mark.timeout(SPARK_S)
def test_close_estimate_is_decided_by_a_job_that_reads_the_rows(run: Run, table: str, profiled: str) -> None:
    assert run("rules", "create", "ids", "lake.raw.orders", "unique", "--column", "id").code == 0
    assert (
        run("rules", "create", "pair", "lake.raw.orders", "unique", "--column", "amount", "--column", "paid").code == 0
    )
    estimated = run("rules", "check", "lake.raw.orders", "--estimates-only")
    assert estimated.code == 1, estimated.out  # there are fewer pairs than rows; whether ids are unique is open
    done = run("rules", "check", "lake.raw.orders", "--output", "json")
    found = {each["name"]: each for each in json.loads(done.out)}
    assert (found["ids"]["status"], found["ids"]["method"]) == ("passed", "exact")
    assert (found["pair"]["status"], found["pair"]["method"]) == ("failed", "profile")
    assert "reads rows of lake.raw.orders" in done.err
