"""The page about the metastore client: its programs run, and it documents every method and option."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import skiway.client.metastore
from client.metastore_server import serving_metastore
from skiway.client import Metastore

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metastore-client.md"
PART = PAGE.read_text()


def test_programs_run_in_order_and_print_the_output_shown(capsys: pytest.CaptureFixture[str]) -> None:
    programs = re.findall(r"```python metastore\n(.*?)```", PART, re.DOTALL)
    assert len(programs) == PART.count("```python")
    names: dict[str, Any] = {}
    with serving_metastore(namespaces=()) as server:
        for program in programs:
            exec(compile(program.replace("127.0.0.1:50051", server.address), str(PAGE), "exec"), names)
    expected = re.findall(r"print\(.*\) +# (.*)", PART)
    assert expected
    assert capsys.readouterr().out.splitlines() == expected


def test_the_page_names_every_kind_every_verb_and_every_option() -> None:
    for name, member in inspect.getmembers(Metastore):
        if inspect.isfunction(member) and not name.startswith("_"):
            assert f"lake.{name}(" in PART, name
        elif isinstance(member, property) and name != "target":
            assert f"| `lake.{name}` |" in PART
            verbs = [verb for verb in dir(get_type_hints(member.fget)["return"]) if not verb.startswith("_")]
            assert [verb for verb in verbs if not re.search(rf"[`.]{verb}[`(]", PART)] == [], name
    about = inspect.getdoc(Metastore) or ""
    assert [name for name in inspect.signature(Metastore).parameters if f"`{name}" not in about] == []


def test_public_names_are_importable_and_documented() -> None:
    for name in skiway.client.metastore.__all__:
        assert inspect.getdoc(getattr(skiway.client.metastore, name)), name


def test_program_in_the_readme_runs(capsys: pytest.CaptureFixture[str]) -> None:
    readme = PAGE.parents[1] / "README.md"
    [program] = re.findall(r"```python metastore\n(.*?)```", readme.read_text(), re.DOTALL)
    with serving_metastore(namespaces=()) as server:
        exec(compile(program.replace("127.0.0.1:50051", server.address), str(readme), "exec"), {})
    assert capsys.readouterr().out == "people None\n"
