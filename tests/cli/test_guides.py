"""The guides for newcomers: their commands produce the output shown, and the tour notebook runs."""

from __future__ import annotations

import ast
import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cli.conftest import Run
from cli.test_cli_page import examples, run_examples
from runtime.servers import Server, started
from skiway.client import AirportClient

DOCS = Path(__file__).parents[2] / "docs"
GUIDES = [DOCS / "five-minutes.md", *sorted((DOCS / "coming-from").glob("*.md"))]
MAX_IMAGE_BYTES = 150_000


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What stands for the addresses on the pages: a REST catalog with the table `sales.orders`, and the place of its files.

    The catalog is another server of ours: all of them speak the same protocol.
    """
    folder = tmp_path_factory.mktemp("other")
    with started(folder / "home") as server:
        with AirportClient(server.addresses["airport"], "lake") as lake:
            lake.create_schema("sales")
            lake.create_table_as("sales.orders", pa.table({"id": [1, 2, 3]}))
        yield {
            r"https://catalog\.example\.com\S*": f"{server.addresses['http']}/iceberg",
            "s3://lake-bucket": str(folder),
        }


@pytest.fixture(scope="module")
def new_lake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server of a newcomer, which other tests do not see."""
    with started(tmp_path_factory.mktemp("newcomer") / "home") as server:
        yield server


@pytest.mark.parametrize("guide", GUIDES, ids=lambda each: each.stem)
def test_commands_produce_the_output_shown(
    guide: Path, run: Run, new_lake: Server, other: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SKIWAY_SERVER", new_lake.address)
    page = guide.read_text()
    assert examples(page), "a guide shows how to begin"
    for address, stand_in in other.items():
        page = re.sub(address, stand_in, page)
    run_examples(run, page)


def test_pictures_are_small_and_described() -> None:
    pictures = re.findall(r"!\[(.*)\]\((images/\S+)\)", GUIDES[0].read_text())
    assert len(pictures) >= 3
    for description, name in pictures:
        content = (DOCS / name).read_bytes()
        width, height = struct.unpack(">II", content[16:24])
        assert content.startswith(b"\x89PNG"), name
        assert len(content) < MAX_IMAGE_BYTES, name
        assert (800 <= width <= 1200, 400 <= height <= 1000, len(description) > 20) == (True, True, True), name


def test_tour_runs(new_lake: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell runs after the others, as in a notebook. The last line of a cell is its result."""
    monkeypatch.setenv("SKIWAY_SERVER", new_lake.address)
    monkeypatch.setenv("SKIWAY_HTTP", new_lake.addresses["http"])
    notebook = json.loads((DOCS / "tour.ipynb").read_text())
    assert (notebook["nbformat"], {len(each.get("outputs", ())) for each in notebook["cells"]}) == (4, {0})
    names: dict[str, Any] = {}
    results = []
    for number, cell in enumerate(each for each in notebook["cells"] if each["cell_type"] == "code"):
        *before, last = ast.parse("".join(cell["source"])).body
        exec(compile(ast.Module(before, []), f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            results.append(eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names))
        else:
            exec(compile(ast.Module([last], []), f"cell {number}", "exec"), names)
    far, travelled, by_city, known, read, _ = results
    assert (far, travelled, read) == (50, (250, 750, 1000), 750)
    assert [each["city"] for each in by_city] == ["Bern", "Oslo", "Pisa"]
    assert known[:2] == (750, 2)
