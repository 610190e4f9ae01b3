"""The page about the client: its programs run. Docstrings, of which the reference is made, describe every method and option."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import skiway.client
from skiway.client import AirportClient

PAGE = Path(__file__).resolve().parents[3] / "docs" / "client.md"


def test_programs_on_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    try:
        for program in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
            exec(compile(program, str(PAGE), "exec"), names)
    finally:
        for server in names.keys() & {"server", "scratch"}:
            names[server].stop(0)
    printed = capsys.readouterr().out
    for expected in re.findall(
        r"# (sales \['people'\].*|table sales\.nobody not found; schemas of catalog 'demo')", PAGE.read_text()
    ):
        assert expected in printed


def test_every_method_and_option_is_documented() -> None:
    methods = inspect.getmembers(AirportClient, inspect.isfunction)
    assert [name for name, method in methods if not name.startswith("_") and not inspect.getdoc(method)] == []
    about = inspect.getdoc(AirportClient) or ""
    assert [name for name in inspect.signature(AirportClient).parameters if f"`{name}" not in about] == []


def test_public_names_are_importable_and_documented() -> None:
    for name in skiway.client.__all__:
        assert inspect.getdoc(getattr(skiway.client, name)), name
