"""`skiway tables health`, `optimize`, `expire` and `clean` on a running server, whose worker runs the jobs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cli.conftest import Run

TABLE = "lake.upkeep.events"


@pytest.fixture
def table(run: Run) -> str:
    """A table with six small files."""
    run("namespaces", "create", "lake.upkeep")
    run("sql", f"DROP TABLE IF EXISTS {TABLE}")
    assert run("sql", f"CREATE TABLE {TABLE} (id BIGINT, name VARCHAR)").code == 0
    for number in range(6):
        assert run("sql", f"INSERT INTO {TABLE} VALUES ({number}, 'n{number}')").code == 0
    return TABLE


def rows(run: Run) -> Any:
    return run("sql", f"SELECT id FROM {TABLE} ORDER BY id", "--output", "json").json


def test_table_is_maintained_by_jobs(run: Run, table: str) -> None:
    before = rows(run)
    health = run("tables", "health", table, "--output", "json").json
    assert (health["data_files"], health["small_files"], health["snapshots"], health["files_saved"]) == (6, 6, 6, 5)
    assert {each["action"]: each["is_due"] for each in health["decisions"]} == {
        "optimize": True,
        "expire": False,
        "clean": False,
    }
    planned = run("tables", "optimize", table, "--dry-run", "--output", "json").json
    assert [each["action"] for each in planned] == ["rewrite"] * 6
    done = run("tables", "optimize", table, "--output", "json").json
    assert (done["job"]["state"], done["files_rewritten"], done["files_added"]) == ("succeeded", 6, 1)
    assert "rewrote 6 files as 1" in done["job"]["message"]
    assert rows(run) == before
    after = run("tables", "health", table)
    assert "optimize" in after.out
    assert run("tables", "health", table, "--output", "json").json["data_files"] == 1
    kept = run("tables", "expire", table, "--older-than", "1s", "--dry-run", "--output", "json").json
    assert {each["action"] for each in kept} == {"keep"}, "all were current within the last hour"
    expired = run("tables", "expire", table, "--older-than", "1s", "--output", "json").json
    assert (expired["job"]["state"], expired["snapshots_removed"]) == ("succeeded", 0)
    cleaned = run("tables", "clean", table)
    assert (cleaned.code, "removed 0 orphan files" in cleaned.out) == (0, True)
    assert rows(run) == before


def test_job_can_run_in_the_background(run: Run, table: str) -> None:
    started = run("tables", "optimize", table, "--sort", "id DESC", "--no-watch", "--output", "json").json
    watched = run("jobs", "watch", started["job"]["id"], "--output", "json")
    assert json.loads(watched.out)["phase"] == "optimize"
    assert watched.code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("expire", TABLE, "--older-than", "soon"), "'soon' is not"),
        (("clean", TABLE, "--older-than", "5m"), "must be older than an hour"),
        (("optimize", TABLE, "--sort", "nope"), "unknown column 'nope'"),
        (("optimize", TABLE, "--z-order", "id"), "2 to 6 columns"),
        (("health", "lake.raw.orders"), "is not a managed table"),
        (("optimize", "lake.raw.orders"), "is not a managed table"),
    ],
)
def test_wrong_requests_say_what_to_do(run: Run, table: str, arguments: tuple[str, ...], message: str) -> None:
    done = run("tables", *arguments)
    assert done.code != 0
    assert message in " ".join((done.out + done.err).split())
