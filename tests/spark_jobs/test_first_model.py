"""The page "From an empty folder to a table that is checked": its files and commands do what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from runtime.servers import Server, skiway
from spark_jobs.lakes import SPARK
from spark_jobs.test_sync_server import PATIENCE_S

pytestmark = SPARK

PAGE = (Path(__file__).parents[2] / "docs" / "first-model.md").read_text()


@pytest.mark.timeout(900)
def test_the_page_is_true(server_with_spark: Server, tmp_path: Path) -> None:
    folder = tmp_path / "first"
    folder.mkdir()
    files = re.findall(r"```(?:yaml|sql|csv)\n(?:#|--) (\S+)\n(.*?)```", PAGE, re.DOTALL)
    first, second = (body for name, body in files if name == "orders.csv")
    for name, body in files:
        (folder / name).write_text(first if name == "orders.csv" else body)
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    commands = block.splitlines()
    results = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)
    assert len(commands) <= 5

    def run(line: str, code: int = 0) -> str:
        words = [str(folder) if word == "first" and "run" not in line else word for word in shlex.split(line)[1:]]
        more = ("-o", "csv") if words[0] == "sql" else ()
        done = skiway(*words, *more, timeout_s=PATIENCE_S, SKIWAY_SERVER=server_with_spark.address)
        assert done.returncode == code, (line, done.stdout, done.stderr)
        return done.stdout + (done.stderr if code else "")

    shown = [run(line) for line in commands]
    assert "passed" in shown[0]
    assert shown[-1] == results[0]
    (folder / "orders.csv").write_text(second)
    run("skiway pipelines apply first")
    plan = run("skiway pipelines run first --dry-run")
    assert re.findall(r"replace|merge|append|keep", plan) == ["replace", "replace"], plan
    assert "1 of 3 rows break not_null_price" in run("skiway pipelines run first")
    assert run(commands[-1]) == results[1]
    assert run("skiway sql 'SELECT id, skiway_reason FROM lake.first.orders_quarantine'").split() == [
        "id,skiway_reason",
        "4,not_null_price",
    ]
    (folder / "orders.csv").write_text(f"{first}1,ann,7\n")
    run("skiway pipelines apply first")
    assert "2 of 4 rows break unique_id" in run("skiway pipelines run first", 1)
    assert run(commands[-1]) == results[1], "nothing was published"
    assert "failed" in run("skiway rules list")
