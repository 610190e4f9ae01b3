"""The page about what can go wrong: its programs fail with the errors it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa

from lake.lakes import Lake
from skiway.client import AirportClient
from skiway.errors import SkiwayError

PAGE = Path(__file__).parents[2] / "docs" / "what-can-go-wrong.md"
PROGRAM = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def test_each_program_fails_with_the_error_shown_below_it(lake: Lake) -> None:
    found = PROGRAM.findall(PAGE.read_text())
    assert len(found) == PAGE.read_text().count("```python") > 5
    with lake.client() as db:
        names: dict[str, Any] = {"db": db, "pa": pa, "AirportClient": AirportClient}
        for program, expected in found:
            pattern = ".*".join(map(re.escape, expected.strip().split("…")))  # … matches anything
            assert re.fullmatch(pattern, error_of(program, names), re.DOTALL), (expected, error_of(program, names))


def error_of(program: str, names: dict[str, Any]) -> str:
    try:
        exec(program, names)
    except SkiwayError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def test_link_targets_of_the_page_exist() -> None:
    text = PAGE.read_text()
    for page in re.findall(r"\]\(([\w-]+\.md)", text):
        assert (PAGE.parent / page).is_file(), page
