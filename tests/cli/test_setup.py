"""`skiway setup`: the page about it is accurate, and its output is for people and programs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cli.conftest import Run
from cli.test_cli_page import check, examples
from skiway.setup import checked, read

PAGE = (Path(__file__).parents[2] / "docs" / "setup.md").read_text()
FILES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
MISTAKES = "version: 1\ncatalogs:\n- nam: shop\ngrants:\n- to: role:x\n  privilege: own\n  on: {catalog: shop}\n"


@pytest.mark.timeout(120)
def test_examples_on_the_page_produce_the_output_shown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("accounts", "create", "shop", "--id", "shop").code == 0
    monkeypatch.setenv("SKIWAY_ACCOUNT", "shop")  # an empty account, which no other test uses
    Path("shop.yaml").write_text(FILES[0])
    Path("mistakes.yaml").write_text(MISTAKES)
    codes = []
    for line, expected in examples(PAGE):
        done = run(*line.split()[1:])
        codes.append(done.code)
        check(line, expected, done.err if expected[0].startswith("skiway: ") else done.out)
    assert codes == [2, 0, 0, 1]
    Path("shop.yaml").write_text("version: 1\ngrants: []\npolicies: []\nviews: []\nconnectors: []\n")
    Path("changed.yaml").write_text("version: 1\ncatalogs:\n- name: shop\n")
    (change,) = done_json(run, "changed.yaml")
    assert change == {
        "action": "update",
        "kind": "catalog",
        "name": "shop",
        "line": 3,
        "waits_for": None,
        "fields": [{"field": "description", "before": "Everything we sell", "after": None}],
        "missed": [],
    }
    assert "not in the file, and kept: " in run("setup", "plan", "shop.yaml").err
    applied = run("setup", "apply", "changed.yaml", "--output", "json")
    assert [each["name"] for each in applied.json] == ["shop"]
    assert "changed catalog shop" in applied.err


def done_json(run: Run, file: str) -> list[dict[str, object]]:
    done = run("setup", "plan", file, "--output", "json")
    assert done.code == 2, done.err
    found: list[dict[str, object]] = json.loads(done.out)
    return found


def test_every_file_on_the_page_is_valid() -> None:
    assert len(FILES) == 4
    for text in FILES:
        checked(read(text if text.startswith(("version", "#")) else f"version: 1\n{text}"))


def test_every_option_is_on_the_page(run: Run) -> None:
    for verb in ("export", "plan", "apply"):
        options = set(re.findall(r"--[a-z][a-z-]+", run("setup", verb, "--help").out))
        shared = {"--help", "--server", "--token", "--account"}
        assert {each for each in options - shared if each not in PAGE} == set(), verb


def test_export_goes_to_standard_output_or_a_file(run: Run, tmp_path: Path) -> None:
    shown = run("setup", "export")
    assert checked(read(shown.out)).setup.connectors
    written = run("setup", "export", tmp_path / "lake.yaml")
    assert (written.code, written.out) == (0, "")
    assert (tmp_path / "lake.yaml").read_text() == shown.out
    assert run("setup", "plan", "-", stdin_text=shown.out).code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan", "no/such.yaml"], "cannot read no/such.yaml: No such file or directory"),
        (["export", "no/such/folder.yaml"], "cannot write no/such/folder.yaml: No such file or directory"),
    ],
)
def test_file_that_cannot_be_used_is_reported(run: Run, arguments: list[str], message: str) -> None:
    done = run("setup", *arguments)
    assert (done.code, done.err) == (1, f"skiway: {message}\n")


def test_file_that_is_not_text_is_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"version: \xff")
    done = run("setup", "apply", tmp_path / "x.yaml")
    assert (done.code, "is not a text file in UTF-8" in done.err) == (1, True)
