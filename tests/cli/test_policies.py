"""`skiway policies`, and the page about policies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.conftest import Run
from cli.test_cli_page import run_examples

PAGE = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()


@pytest.fixture
def without_policies(run: Run) -> Iterator[None]:
    """Delete the policies afterwards, because all tests of commands share a server."""
    yield
    for policy in run("policies", "list", "-o", "json").json:
        run("policies", "delete", policy["name"])
    run("sql", "DROP TABLE IF EXISTS lake.staff.people; DROP SCHEMA IF EXISTS lake.staff")


@pytest.mark.usefixtures("without_policies")
def test_every_example_on_the_page_produces_the_output_shown(run: Run) -> None:
    run_examples(run, PAGE)


@pytest.mark.usefixtures("without_policies")
def test_policy_is_created_updated_and_deleted(run: Run) -> None:
    create = ("policies", "create", "p", "--on", "lake.raw", "--to", "role:X", "--mask", "hash", "--column", "name")
    made = run(*create, "-o", "json").json
    assert (made["on"], made["subjects"]) == (["lake.raw"], ["role:x"])
    assert (made["mask"], made["columns"], made["row_filter"]) == ("hash", ["name"], None)
    assert "policy 'p' already exists" in run(*create).err
    changed = run(
        "policies", "update", "p", "--name", "q", "--on", "lake.raw.people", "--filter", "id > 1", "-o", "json"
    )
    assert (changed.json["name"], changed.json["row_filter"], changed.json["version"]) == ("q", "id > 1", 2)
    assert (changed.json["mask"], changed.json["on"]) == (None, ["lake.raw.people"])
    assert "has version 2, but version 1 was expected" in run("policies", "delete", "q", "--if-version", "1").err
    assert run("policies", "delete", "q", "--if-version", "2").out == "deleted policy q\n"
    assert run("policies", "list", "-o", "json").json == []


@pytest.mark.usefixtures("without_policies")
def test_deletion_asks_on_a_terminal(run: Run) -> None:
    assert run("policies", "create", "p", "--to", "everyone", "--mask", "null", "--column", "secret").code == 0
    refused = run("policies", "delete", "p", types="n\n")
    assert (refused.code, "Callers see the original rows and values again. Delete policy p?" in refused.err) == (
        1,
        True,
    )
    assert [each["name"] for each in run("policies", "list", "-o", "json").json] == ["p"]
    assert run("policies", "delete", "p", types="y\n").out.endswith("deleted policy p\n")
    assert run("policies", "delete", "p", "--yes", types="").code == 1, "it is gone, and nothing was asked"


@pytest.mark.usefixtures("without_policies")
def test_restricted_caller_still_lists_tables(run: Run) -> None:
    assert run("policies", "create", "p", "--on", "lake.raw.people", "--to", "everyone", "--filter", "id = 1").code == 0
    tables = {each["name"]: each for each in run("tables", "list", "lake.raw", "-o", "json").json}
    assert tables["lake.raw.people"]["rows"] is None
    assert run("tables", "get", "lake.raw.people").code == 0
    assert "policy p restricts what you see of table people" in run("stats", "files", "lake.raw.people").err
    assert run("sql", "SELECT id FROM lake.raw.people", "-o", "json").json == [{"id": 1}]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "ada", "--mask", "null", "--column", "x"], "subjects is 'ada'"),
        (["--to", "everyone"], "rule is missing"),
        (["--to", "everyone", "--column", "x"], "a policy has one rule, found columns alone"),
        (
            ["--to", "everyone", "--mask", "null", "--filter", "true"],
            "a policy has one rule, found row_filter and mask",
        ),
        (["--to", "everyone", "--mask", "null", "--column", "x", "--on", "lake.moon"], "there is no namespace"),
        (["--to", "everyone", "--mask", "null", "--column", "x", "--on", "lake.raw.people"], "matches no column"),
    ],
)
def test_policy_that_cannot_work_is_explained(run: Run, arguments: list[str], message: str) -> None:
    done = run("policies", "create", "p", *arguments)
    assert (done.code, done.out) == (1, "")
    assert message in done.err
