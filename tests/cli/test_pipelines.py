"""Commands for pipelines. Runs on Spark are tested in `tests/spark_jobs/test_derive.py`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from cli.conftest import Run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "sales"
    found.mkdir()
    (found / "pipeline.yml").write_text("name: sales\ncatalog: lake\nnamespace: shop\n")
    (found / "big.sql").write_text("SELECT * FROM orders")
    (found / "ones.sql").write_text("SELECT 1 AS x")
    return found


CODE = """from pyspark import pipelines as dp

@dp.materialized_view
def coded():
\treturn spark.table("ones")  # \x1b[2J
"""


def test_pipelines_are_created_applied_shown_and_deleted(run: Run, folder: Path) -> None:
    plan = run("pipelines", "apply", folder, "--dry-run", "-o", "json").json
    assert [(each["table"], each["action"]) for each in plan] == [("shop.big", "fail"), ("shop.ones", "fail")]
    assert "shop" in plan[1]["reason"], "the namespace does not exist"
    run("namespaces", "create", "lake.shop")
    plan = run("pipelines", "apply", folder, "--dry-run", "-o", "json").json
    assert [(each["table"], each["action"]) for each in plan] == [("shop.big", "fail"), ("shop.ones", "replace")]
    assert "table shop.orders, which shop.big reads, does not exist" in plan[0]["reason"]
    assert run("pipelines", "list", "-o", "json").json == []
    made = run("pipelines", "apply", folder)
    assert made.out == "created pipeline sales; run it with: skiway pipelines run sales\n", made.err
    assert run("pipelines", "create", folder).code == 1
    shown = run("pipelines", "get", "sales", "-o", "json").json
    assert shown["files"] == ["big.sql", "ones.sql", "pipeline.yml"]
    assert shown["owner"]
    assert (shown["problem"], shown["lineage"]) == (None, {})
    (folder / "big.sql").unlink()
    plan = run("pipelines", "apply", folder, "--dry-run", "-o", "json").json
    assert [each["table"] for each in plan] == ["shop.ones"]
    assert len(run("pipelines", "run", "sales", "--dry-run", "-o", "json").json) == 2
    assert run("pipelines", "apply", folder).out == "updated pipeline sales\n"
    assert [each["files"] for each in run("pipelines", "list", "-o", "json").json] == [["ones.sql", "pipeline.yml"]]
    assert run("pipelines", "delete", "sales").out == "deleted pipeline sales\n"
    assert run("pipelines", "list", "-o", "json").json == []
    assert run("namespaces", "delete", "lake.shop").code == 0


def test_python_files_are_planned_and_shown_without_control_characters(run: Run, folder: Path) -> None:
    run("namespaces", "create", "lake.shop")
    (folder / "big.sql").unlink()
    (folder / "functions").mkdir()
    (folder / "functions" / "coded.py").write_text(CODE)
    plan = run("pipelines", "create", folder, "--dry-run", "-o", "json").json
    assert [(each["table"], each["action"], each["reads"]) for each in plan] == [
        ("shop.ones", "replace", []),
        ("shop.coded", "fail", ["shop.ones"]),
    ]
    assert "pipelines.python.enabled=true" in plan[1]["reason"]
    assert run("pipelines", "create", folder).code == 0
    shown = run("pipelines", "get", "sales", "--file", "functions/coded.py")
    assert shown.out.splitlines()[3:] == ["def coded():", '    return spark.table("ones")  # \\x1B[2J']
    assert run("pipelines", "get", "sales", "--file", "functions/coded.py", "-o", "json").json["text"] == CODE
    missing = run("pipelines", "get", "sales", "--file", "nothing.py")
    assert (missing.code, "it has functions/coded.py, ones.sql, pipeline.yml" in missing.err) == (1, True)
    assert run("pipelines", "delete", "sales").code == 0


def test_a_folder_is_applied_for_a_target_with_variables(run: Run, folder: Path) -> None:
    run("namespaces", "create", "lake.shop")
    (folder / "pipeline.yml").write_text(
        "name: sales\ncatalog: lake\nnamespace: shop\nvars: {x: 1}\ntargets: {dev: {}}\n"
    )
    (folder / "ones.sql").write_text("-- {{ target.name }}\nSELECT {{ var('x') }} AS x")
    (folder / "big.sql").unlink()
    assert run("pipelines", "apply", folder, "--target", "dev", "--var", "x=5").code == 0
    assert run("pipelines", "get", "sales_dev", "--file", "ones.sql").out == "-- dev\nSELECT 5 AS x\n"
    plan = run("pipelines", "run", "sales_dev", "--dry-run", "--select", "on*", "-o", "json").json
    assert [each["table"] for each in plan] == ["shop.ones"]
    wrong = run("pipelines", "run", "sales_dev", "--select", "nothing+")
    assert (wrong.code, "the selection 'nothing+' names no table" in wrong.err) == (1, True)
    assert run("pipelines", "test", folder).code == 0
    assert run("pipelines", "delete", "sales_dev").code == 0
    assert run("namespaces", "delete", "lake.shop").code == 0


def test_mistakes_are_explained(run: Run, folder: Path, tmp_path: Path) -> None:
    wrong = run("pipelines", "create", tmp_path)
    assert (wrong.code, "it has no pipeline.yml" in wrong.err) == (1, True)
    (folder / "ones.sql").write_text("SELECT * FROM ones")
    wrong = run("pipelines", "create", folder)
    assert (wrong.code, "table shop.ones reads itself" in wrong.err) == (1, True)
    assert run("pipelines", "run", "nothing").code == 1


def test_commands_of_the_page_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sales").mkdir()
    for name, body in re.findall(r"```(?:yaml|sql|python)\n(?:#|--) (\S+)\n(.*?)```", page, re.DOTALL):
        (tmp_path / "sales" / name).write_text(body)
    assert {each.name for each in (tmp_path / "sales").iterdir()} == {
        "pipeline.yml",
        "notes.yml",
        "big_orders.sql",
        "totals.sql",
        "shares.py",
    }
    found = re.findall(r"^skiway (pipelines .*?)(?:#.*)?$", page, re.MULTILINE)
    assert len(found) >= 7
    run("namespaces", "create", "lake.sandbox")
    shown = run("pipelines", "render", "./sales", "--target", "dev", "--file", "pipeline.yml")
    assert "namespace: sandbox" in shown.out
    for line in found:
        given = shlex.split(line)
        done = run(*given, *(["--no-watch"] if given[1] == "run" and "--dry-run" not in given else []))
        assert done.code == 0, (line, done.err)
    assert run("pipelines", "list", "-o", "json").json == []
