"""The pages about data quality and webhooks: their commands, YAML and Python run as they are printed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import Run
from runtime.servers import Server
from skiway.metastore.webhooks import signature

DOCS = Path(__file__).parents[2] / "docs"
TABLE = "lake.sales.orders"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def commands(page: str) -> Iterator[list[str]]:
    """The commands of a page, without `skiway`."""
    for line in "".join(blocks(page, "sh")).splitlines():
        if line.startswith("skiway "):
            yield shlex.split(line, comments=True)[1:]


@pytest.fixture
def orders(run: Run) -> Iterator[None]:
    run("namespaces", "create", "lake.sales")
    columns = "id BIGINT, state VARCHAR, price DECIMAL(9,2)"
    assert run("sql", f"CREATE TABLE {TABLE} ({columns})").code == 0
    assert run("sql", f"INSERT INTO {TABLE} SELECT range, 'open', 1.5 FROM range(1200)").code == 0
    yield
    for rule in run("rules", "list", TABLE, "--output", "json").json:
        run("rules", "delete", rule["name"])
    run("sql", f"DROP TABLE {TABLE}")


@pytest.mark.usefixtures("orders")
def test_commands_about_rules_run(run: Run) -> None:
    codes = {" ".join(command[:2]): run(*command).code for command in commands("quality.md")}
    assert codes == {"rules check": 0, "rules create": 0, "rules list": 0, "rules results": 0, "rules update": 0}


@pytest.mark.usefixtures("orders")
def test_rules_of_the_file_can_be_applied(run: Run, tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(blocks("quality.md", "yaml")[0])
    done = run("rules", "apply", tmp_path / "rules.yml")
    assert done.code == 0, done.err
    checked = json.loads(run("rules", "check", TABLE, "--output", "json").out)
    found = {each["name"]: each["status"] for each in checked}
    assert found == {
        "enough": "passed",
        "fresh": "passed",
        "columns": "passed",
        "states": "passed",
        "prices": "passed",
        "key": "passed",
    }, "the check has made the profile that rules about columns need"


@pytest.mark.usefixtures("orders")
def test_python_about_rules_runs(lake: Server, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("quality.md", "python")
    exec(code.replace("127.0.0.1:50051", lake.address.removeprefix("grpc://")), {})
    assert capsys.readouterr().out.startswith("ids unknown")


def test_receiver_recognizes_our_signatures() -> None:
    names: dict[str, Any] = {}
    (code,) = blocks("webhooks.md", "python")
    exec(code, names)
    signed = signature(b"0123456789abcdef", 1700000000, b"{}")
    assert names["is_genuine"](b"0123456789abcdef", "1700000000", b"{}", signed)
    assert not names["is_genuine"](b"0123456789abcdef", "1700000001", b"{}", signed)


def test_commands_about_webhooks_run(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", "0" * 32)
    results = []
    try:
        for command in commands("webhooks.md"):
            sent = [each.replace("https://hooks.example.org", "http://127.0.0.1:9") for each in command]
            results.append((command[1], run(*sent).code))
    finally:
        run("webhooks", "delete", "alerts")
    assert results == [("create", 0), ("get", 0), ("update", 0), ("dead-letters", 0), ("redeliver", 0)]
